"""The config of the stages after merge, and what is said of every stage: resources and restart policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from console.config.fields import Amount, Count, Duration, Positive, Range, Share, Size, Version, content, live, run

ExitCode = Annotated[int, Range(1, 255)]


@dataclass(frozen=True, kw_only=True)
class Extract:
    """Hidden states of every training token."""

    engine: Literal["sglang", "transformers"] = run("sglang")
    rolling: bool = run(True)  # shards are deleted once training has used them
    disk_budget: Size = run(10**12)
    shard_size: Size = run(4 * 10**9)
    mean_tokens: Count = run(1000)  # tokens a sample, for the estimate that check prints
    processes: Count = run(1)


@dataclass(frozen=True, kw_only=True)
class Train:
    """Training-time test of the draft. ``step_decay``: weight of step k is decay to the power k."""

    ttt_steps: Annotated[int, Range(1, 32)] = content(7)
    step_decay: Annotated[float, Range(0, 1, above=True)] = content(0.8)
    epochs: Count = content(1)
    learning_rate: Positive = content(5e-5)
    warmup_share: Share = content(0.015)
    beta1: Annotated[float, Range(0, 1, below=True)] = content(0.9)
    beta2: Annotated[float, Range(0, 1, below=True)] = content(0.95)
    weight_decay: Annotated[float, Range(0)] = content(0.0)
    grad_clip: Positive = content(0.5)
    max_length: Count = content(4096)  # tokens a window; longer samples become several windows
    batch_size: Count = content(1)  # windows a process and step
    accumulation: Count = content(1)
    seed: Amount = content(0)
    start_from: str = content("")  # folder of a draft to go on from
    processes: Count = run(1)
    checkpoint_every: Duration = run(1800.0)
    evaluate_every: Duration = run(3600.0)


@dataclass(frozen=True, kw_only=True)
class Export:
    sglang_version: Version = content("0.5.23")  # decides how aux layer ids are written down


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """One setting of the draft that bench tries."""

    steps: Count = run()
    topk: Count = run()
    draft_tokens: Count = run()


@dataclass(frozen=True, kw_only=True)
class Bench:
    prompts: Count = run(200)  # held out, over all datasets
    max_new_tokens: Count = run(1024)
    temperatures: tuple[Annotated[float, Range(0, 10)], ...] = run((0.0, 1.0))
    batch_sizes: tuple[Count, ...] = run((1, 8, 32))
    repeats: Annotated[int, Range(5, 1000)] = run(5)
    grid: tuple[GridPoint, ...] = run(())


@dataclass(frozen=True, kw_only=True)
class StageResources:
    """What a job of the stage needs. ``memory`` None: the peak measured before, or nothing."""

    memory: Size | None = run(None)
    gpus: Annotated[int, Range(0, 4096)] = run(0)


@dataclass(frozen=True, kw_only=True)
class Resources:
    reserve: Size = run(0)  # memory that admission leaves free
    memory: Size | None = run(None)  # of the whole container; lets check refuse what can never start
    gpus: Annotated[int, Range(0, 4096)] | None = run(None)
    prep: StageResources = StageResources()
    dedup: StageResources = StageResources()
    serve: StageResources = StageResources()
    generate: StageResources = StageResources()
    merge: StageResources = StageResources()
    extract: StageResources = StageResources()
    train: StageResources = StageResources()
    export: StageResources = StageResources()
    bench: StageResources = StageResources()


@dataclass(frozen=True, kw_only=True)
class StagePolicy:
    """What happens when a job of the stage ends or stands still. ``stall`` None: never called stalled."""

    restart: Literal["never", "on-failure", "always"] = live("on-failure")
    limit: Amount = live(5)  # restarts within window, then it gave up
    window: Duration = live(600.0)
    backoff: Duration = live(1.0)
    backoff_max: Duration = live(60.0)
    healthy: Duration = live(300.0)  # after so long a run the count starts anew; a server's begins when it is ready
    no_retry: tuple[ExitCode, ...] = live((3,))  # exit codes that are final; 3: a stage's own verdict on its input
    grace: Duration = live(15.0)  # between TERM and KILL
    stall: Duration | None = live(None)  # without progress for so long
    on_stall: Literal["tell", "restart"] = live("tell")  # also of a server that lives no more, or is never ready


@dataclass(frozen=True, kw_only=True)
class Policies:
    """A stage's keys that are not given keep the values here, not those of ``StagePolicy``."""

    prep: StagePolicy = StagePolicy(stall=600.0)
    dedup: StagePolicy = StagePolicy(stall=600.0)
    serve: StagePolicy = StagePolicy(restart="always", window=7200.0, grace=60.0, no_retry=(3, 4))  # 4: refused
    generate: StagePolicy = StagePolicy(limit=20, window=3600.0, grace=30.0, stall=1800.0)
    merge: StagePolicy = StagePolicy(stall=600.0)
    extract: StagePolicy = StagePolicy(grace=60.0, stall=1800.0)
    train: StagePolicy = StagePolicy(grace=300.0, stall=1800.0)
    export: StagePolicy = StagePolicy()
    bench: StagePolicy = StagePolicy(stall=3600.0)
