"""What config.toml may hold, section by section: names, types, defaults, and what changing each key does.

``content`` keys change what a job writes, ``run`` keys only how it runs, ``live`` keys take effect at once. Sizes are
bytes, durations seconds. The sections of the later half (extract to bench) are in ``console.config.stages``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from console.config.fields import (
    Amount,
    ClassName,
    Count,
    Duration,
    Filled,
    FilledWord,
    FlagName,
    FlagValue,
    Folder,
    Interval,
    Key,
    Name,
    Port,
    Positive,
    Range,
    SecretName,
    Share,
    Size,
    Variable,
    Word,
    content,
    live,
    run,
)
from console.config.stages import Bench, Export, Extract, Policies, Resources, Train


@dataclass(frozen=True, kw_only=True)
class Run:
    name: Name = run()


@dataclass(frozen=True, kw_only=True)
class Host:
    """How the console reaches the container, and what it finds there."""

    address: FilledWord = run()  # a host name, an address, or an alias of ssh_config
    port: Port | None = run(None)  # None: ssh_config's, else 22
    user: Word = run("")  # "": ssh_config's, else the operator's own
    workdir: Folder = run()
    python: FilledWord = run("python3")  # 3.11 or later, with what an SGLang image brings
    known_hosts: str = run("")  # "": ssh_config's, else ~/.ssh/known_hosts
    identity_files: tuple[Filled, ...] = run(())  # empty: ssh_config's and the SSH agent's
    ssh_config: str = run("~/.ssh/config")  # "": none is read


@dataclass(frozen=True, kw_only=True)
class Target:
    """The model that a draft is trained for."""

    model: FilledWord = content()  # hub id
    revision: Word = content("")  # commit of the hub repository
    path: Word = run("")  # folder in the container that holds this model; "": loaded from the hub by id
    trust_remote_code: bool = run(False)
    family: Literal["kimi_k25", "deepseek", "llama", "qwen", "other"] = content("other")
    hidden_size: Count = content()
    layers: Count = content()
    vocab_size: Count = content()
    context_length: Count = content()
    template: dict[Key, Any] = content(factory=dict)  # arguments of the chat template
    stop_ids: tuple[Amount, ...] = content(())  # token ids that end an answer
    thinking_end_id: Amount | None = run(None)  # of the tag that ends its thinking; None: answers do not think


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The draft model's shape. ``aux_layers`` are indices into Hugging Face hidden_states."""

    architecture: ClassName = content("LlamaForCausalLMEagle3")
    path: Word = content("")  # folder that export writes and serve:draft loads
    aux_layers: tuple[Amount, ...] = content()
    draft_vocab_size: Count = content()
    intermediate_size: Count = content()
    attention_heads: Count = content()
    key_value_heads: Count = content()
    head_dim: Count = content()
    rms_norm_eps: Positive = content(1e-6)
    rope_theta: Positive = content(10000.0)
    rope_scaling: dict[Key, Any] = content(factory=dict)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What every job finds in its environment. Secrets are names only; values stay on the container."""

    secrets: tuple[Variable, ...] = run(())
    variables: dict[Variable, str] = run(factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One source. ``answers`` hold the target's own answers, ``prompts`` are put to the target."""

    kind: Literal["answers", "prompts"] = content()
    source: FilledWord = content()  # hub id, or a file or folder in the container
    config: Word = content("")
    split: Word = content("")
    revision: Word = content("")
    files: tuple[FilledWord, ...] = content(())  # globs: only files like these; * also stands for /
    shape: Literal["auto", "messages", "conversations", "pair", "dialogue", "trajectory"] = content("auto")
    take: Count | None = content(None)  # rows kept, drawn by seed; None: all
    train_turns: Literal["assistant", "all-but-system"] = content("assistant")  # answers only
    over_context: Literal["drop", "cut"] = content("drop")  # answers longer than the context: cut after a turn
    damaged: Literal["fail", "keep"] = run("fail")  # a file that cannot be read to its end; keep: what came before
    partition: str = content("")  # prompts only: a name of [generate.partitions]
    group: Word = content("")  # field whose equal values stay on one side of the held-out split
    memory: Size | None = run(None)  # None: [resources.prep]'s
    needs: tuple[Filled, ...] = run(())  # more jobs that have to be done first, such as "prep:B1"
    note: str = live("")


@dataclass(frozen=True, kw_only=True)
class Prep:
    seed: Amount = content(0)
    heldout_share: Annotated[float, Range(0, 0.5)] = content(0.02)
    min_kept_share: Share = run(0.0)  # a set that keeps less of what it read has failed
    environment: dict[Variable, str] = run(factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dedup:
    """Rows that say what another one says already, over all datasets: neither put to the target nor trained on."""

    threshold: Annotated[float, Range(0, 1, above=True)] = content(0.8)  # Jaccard similarity from which rows are alike
    shingle: Annotated[int, Range(1, 100)] = content(5)  # words that are compared at once
    environment: dict[Variable, str] = run(factory=dict)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The target without a draft: the server that answers the prompts."""

    port: Port = run(30000)
    flags: dict[FlagName, FlagValue] = run(factory=dict)  # beside or instead of [serve.flags]
    needs: tuple[Filled, ...] = run(())  # jobs that have to be done before it loads, such as "prep:*"


@dataclass(frozen=True, kw_only=True)
class DraftServer:
    """The target with the draft."""

    port: Port = run(30001)
    algorithm: Literal["EAGLE3", "EAGLE", "NEXTN", "STANDALONE"] = run("EAGLE3")
    steps: Count = run(3)
    topk: Count = run(1)
    draft_tokens: Count = run(4)
    flags: dict[FlagName, FlagValue] = run(factory=dict)


@dataclass(frozen=True, kw_only=True)
class Router:
    """SGLang's router over several servers; ``generate.servers = ["router"]`` sends to it."""

    workers: tuple[Filled, ...] = run()  # "baseline", and URLs of servers that run elsewhere
    port: Port = run(30002)
    metrics_port: Port = run(30003)
    python: Word = run("")  # with sglang-router installed; "": the host's
    memory: Size = run(4 * 10**9)


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """How a server is looked at until it answers, and how many looks in a row make one that did not ready."""

    start: Duration = live(3600.0)  # it may load for so long
    interval: Interval = live(2.0)
    timeout: Interval = live(30.0)
    threshold: Count = live(2)


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """How a server that was ready is seen to be alive: tokens flow, or one comes that is asked for."""

    start: Duration = live(60.0)  # after it was ready, before a failed check counts
    interval: Interval = live(30.0)
    timeout: Interval = live(30.0)  # of a token that is asked for
    threshold: Count = live(10)  # failed checks in a row


@dataclass(frozen=True, kw_only=True)
class Serve:
    """The model servers. ``flags`` go to the engine as they are; what has a key here is no flag."""

    engine: Literal["sglang", "reference"] = run("sglang")
    host: Filled = run("127.0.0.1")
    python: Word = run("")  # "": the host's
    readiness: Readiness = Readiness()
    liveness: Liveness = Liveness()
    flags: dict[FlagName, FlagValue] = run(factory=dict)
    environment: dict[Variable, str] = run(factory=dict)
    baseline: Baseline = Baseline()
    draft: DraftServer | None = None
    router: Router | None = None


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Prompts that are answered alike. ``top_k`` −1: off."""

    concurrency: Count = run()  # on each server
    max_new_tokens: Count = content()
    temperature: Annotated[float, Range(0, 10)] = content()
    top_p: Annotated[float, Range(0, 1, above=True)] = content(1.0)
    top_k: Annotated[int, Range(-1, 10**9)] = content(-1)


Fault = Literal["truncated", "aborted", "empty", "repetitive", "thinking not ended"]


@dataclass(frozen=True, kw_only=True)
class Faulty:
    """What becomes of an answer with something wrong about it. What is in neither list is kept, and counted."""

    retry: tuple[Fault, ...] = run(("aborted", "empty"))  # another sample; after ``retries`` of them set aside
    set_aside: tuple[Fault, ...] = run(())
    retries: Amount = run(2)


@dataclass(frozen=True, kw_only=True)
class Generate:
    servers: tuple[Filled, ...] = run(("baseline",))  # "baseline", or the URL of a server that runs elsewhere
    pilot: Amount = run(100)  # random prompts of every dataset that go first
    seed: Amount = run(0)  # of the order in which prompts are sent
    side_by_side: bool = run(False)  # all partitions at once instead of in turn
    overlap: bool = run(False)  # the next partition starts while the last answers of one are awaited
    adaptive: Amount = run(0)  # least slots of a server whose slots follow its load; 0: they do not
    retries: Amount = run(8)
    suspect_after: Count = run(3)  # crashes of the server under the same prompt, before it is asked alone
    max_set_aside_share: Share = run(0.5)  # of the latest prompts; above it the run ends early
    faulty: Faulty = Faulty()
    partitions: dict[Key, Partition] = content()
    environment: dict[Variable, str] = run(factory=dict)


@dataclass(frozen=True, kw_only=True)
class Merge:
    # Answers that are left out; a truncated one that is kept has no loss on its last position.
    drop: tuple[Literal["truncated", "aborted", "empty", "repetitive"], ...] = content(
        ("aborted", "empty", "repetitive")
    )
    max_lost_share: Share = run(0.02)  # of answer tokens; above it the stage fails
    environment: dict[Variable, str] = run(factory=dict)


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The disk of the work directory: how much logs may take of it, and when it is short."""

    log: Size = live(2 * 10**9)  # of a running job; the front of a longer one is given back to the disk
    old_logs: Size = live(4 * 10**9)  # of all earlier attempts of a job together; the oldest go first
    old_attempts: Amount = live(100)  # earlier attempts of a job whose files are kept
    warn_left: Duration = live(6 * 3600.0)  # full sooner than this at the present rate is worth a warning
    warn_share: Annotated[float, Range(0, 0.9)] = live(0.05)  # so is less than this share free


@dataclass(frozen=True, kw_only=True)
class Notify:
    """Names of the secrets that hold the URLs; empty: no notification."""

    webhook: SecretName = live("")
    heartbeat: SecretName = live("")
    format: Literal["auto", "ntfy", "slack", "discord", "json"] = live("auto")  # what the webhook takes


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole of config.toml, every value checked and every default filled in."""

    run: Run
    host: Host
    target: Target
    draft: Draft
    environment: Environment = Environment()
    datasets: dict[Key, Dataset] = content()
    prep: Prep = Prep()
    dedup: Dedup = Dedup()
    serve: Serve = Serve()
    generate: Generate
    merge: Merge = Merge()
    extract: Extract = Extract()
    train: Train = Train()
    export: Export = Export()
    bench: Bench = Bench()
    resources: Resources = Resources()
    policy: Policies = Policies()
    disk: Disk = Disk()
    notify: Notify = Notify()
