"""From a checked config to the plan that the agent makes real. Pure: the same config and release give the same plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from console.config import schema
from console.config.content import content_hash, content_of
from console.config.fields import FlagValue
from console.config.flags import baseline_flags, served_context
from console.config.graph import BASELINE, DEDUP_JOB, ROUTER, SERVER_NAMES, needs_of, uses_baseline, uses_router
from console.config.schema import Config, Dataset, Partition
from console.config.stages import StagePolicy
from console.describe import describe
from pipeline.protocol import Checks, DiskPolicy, JobSpec, Need, Notify, Plan, Readiness, Resources, RestartPolicy

__all__ = [
    "BATCH_OOM",
    "FORMAT",
    "SERVER_OOM",
    "TRAIN_OOM",
    "build",
    "describe",
    "flag_words",
    "model_of",
    "server_url",
]

FORMAT: Final = 1
"""Of what content hashes are made from; raised when the same settings would write something else."""

BATCH_OOM: Final = 500
TRAIN_OOM: Final = 300
SERVER_OOM: Final = 100
"""oom_score_adj: the kernel takes batch jobs before training, and training before the server."""

PROMPTS: Final = "data/prompts"
SAMPLES: Final = "data/samples"
DEDUP: Final = "data/dedup"
RESPONSES: Final = "data/responses"
TRAIN: Final = "data/train"
"""Folders of the work directory; jobs run in it."""


def build(config: Config, release: str) -> Plan:
    """The graph of jobs. ``release`` is the content hash of the deployed pipeline."""
    needs = needs_of(config)
    hashes = _hashes(config)
    jobs = [_prep(config, name, needs, hashes) for name in config.datasets]
    jobs.append(_dedup(config, needs, hashes))
    if uses_baseline(config):
        jobs.append(_baseline(config, needs, hashes))
    if uses_router(config):
        jobs.append(_router(config, needs, hashes))
    jobs += [_generate(config, needs, hashes), _merge(config, needs, hashes)]
    return Plan(
        config.run.name,
        release,
        tuple(jobs),
        reserve_memory=config.resources.reserve,
        notify=notify_of(config),
        disk=disk_of(config),
    )


def notify_of(config: Config) -> Notify:
    """Whom the agent tells, by the names of the secrets that hold the URLs."""
    return Notify(config.notify.webhook, config.notify.heartbeat, config.notify.format)


def disk_of(config: Config) -> DiskPolicy:
    """The rules for the disk of the work directory."""
    disk = config.disk
    return DiskPolicy(disk.log, disk.old_logs, disk.old_attempts, disk.warn_left, disk.warn_share)


def model_of(config: Config) -> str:
    """What a job loads the target by: its folder in the container, else its hub id."""
    return config.target.path or config.target.model


def server_url(config: Config, server: str) -> str:
    """The URL of a server that ``generate.servers`` names."""
    if server not in SERVER_NAMES:
        return server
    # A server that listens on every address is reached on the loopback one.
    host = "127.0.0.1" if config.serve.host in ("0.0.0.0", "::") else config.serve.host  # noqa: S104 - compared, not bound
    router = config.serve.router
    port = router.port if router is not None and server == "router" else config.serve.baseline.port
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def flag_words(flags: dict[str, FlagValue]) -> list[str]:
    """Engine flags as ``pipeline.serve`` takes them: ``tp-size=8``, ``enable-metrics``."""
    return [name if value is True else f"{name}={value}" for name, value in flags.items() if value is not False]


# --- One function a job ---------------------------------------------------------------------------------------------


def _prep(config: Config, name: str, needs: dict[str, tuple[Need, ...]], hashes: dict[str, Hashes]) -> JobSpec:
    dataset = config.datasets[name]
    prompts = dataset.kind == "prompts"
    argv = ["--dataset", name, "--kind", dataset.kind, "--source", dataset.source]
    argv += _option("--config", dataset.config) + _option("--split", dataset.split)
    argv += _option("--revision", dataset.revision)
    for pattern in dataset.files:
        argv += ["--file", pattern]
    argv += ["--shape", dataset.shape, *_option("--take", dataset.take)]
    argv += ["--seed", str(config.prep.seed)]
    if not prompts:
        argv += ["--train-turns", dataset.train_turns, "--over-context", dataset.over_context]
    argv += _option("--damaged", "" if dataset.damaged == "fail" else dataset.damaged)
    argv += _option("--group", dataset.group)
    argv += ["--heldout-share", _number(config.prep.heldout_share)]
    argv += ["--min-kept-share", _number(config.prep.min_kept_share)]
    argv += [*_target(config), "--target-family", config.target.family]
    if config.target.template:
        argv += ["--template-json", _json(config.target.template)]
    argv += ["--context-length", str(_context(config, dataset))]
    if prompts:
        budget = config.generate.partitions[dataset.partition].max_new_tokens
        argv += ["--max-new-tokens", str(budget), "--partition", dataset.partition]
    argv += ["--out", prep_folder(name, dataset)]
    memory = config.resources.prep.memory if dataset.memory is None else dataset.memory
    resources = Resources(memory, config.resources.prep.gpus)
    return _job(config, "prep", f"prep:{name}", argv, needs, hashes, resources, config.prep.environment)


def _dedup(config: Config, needs: dict[str, tuple[Need, ...]], hashes: dict[str, Hashes]) -> JobSpec:
    argv = [*_prepared(config), "--threshold", _number(config.dedup.threshold), "--shingle", str(config.dedup.shingle)]
    argv += ["--out", DEDUP]
    stage = config.resources.dedup
    resources = Resources(stage.memory, stage.gpus)
    return _job(config, "dedup", DEDUP_JOB, argv, needs, hashes, resources, config.dedup.environment)


def _baseline(config: Config, needs: dict[str, tuple[Need, ...]], hashes: dict[str, Hashes]) -> JobSpec:
    serve = config.serve
    argv = ["--engine", serve.engine, "--model", model_of(config), "--name", "baseline"]
    argv += ["--host", serve.host, "--port", str(serve.baseline.port), "--python", serve.python or config.host.python]
    for word in flag_words(served_flags(config)):
        argv += ["--flag", word]
    readiness = Readiness(
        url=server_url(config, "baseline"),
        model_path=model_of(config),
        checks=_checks(serve.readiness),
    )
    stage = config.resources.serve
    resources = Resources(stage.memory, stage.gpus)
    return _job(config, "serve", BASELINE, argv, needs, hashes, resources, serve.environment, readiness)


def _router(config: Config, needs: dict[str, tuple[Need, ...]], hashes: dict[str, Hashes]) -> JobSpec:
    router = config.serve.router
    assert router is not None
    argv: list[str] = []
    for worker in router.workers:
        argv += ["--worker", server_url(config, worker)]
    argv += ["--host", config.serve.host, "--port", str(router.port), "--metrics-port", str(router.metrics_port)]
    argv += ["--start", str(int(config.serve.readiness.start)), "--python", router.python or config.host.python]
    readiness = Readiness(server_url(config, "router"), model_of(config), checks=_checks(config.serve.readiness))
    resources = Resources(router.memory, 0)
    job = _job(config, "serve", ROUTER, argv, needs, hashes, resources, config.serve.environment, readiness)
    return replace(job, argv=(config.host.python, "-m", "pipeline.serve.router", *argv))


def served_flags(config: Config) -> dict[str, FlagValue]:
    """The baseline server's flags, with those that follow from ``[target]``."""
    target = config.target
    own: dict[str, FlagValue] = {}
    if target.trust_remote_code:
        own["trust-remote-code"] = True
    if target.revision and not target.path:
        own["revision"] = target.revision
    return own | baseline_flags(config)


def _generate(config: Config, needs: dict[str, tuple[Need, ...]], hashes: dict[str, Hashes]) -> JobSpec:
    generate = config.generate
    argv: list[str] = []
    for server in generate.servers:
        argv += ["--server", server_url(config, server)]
    for name, dataset in _of_kind(config, "prompts"):
        argv += ["--prompts", prep_folder(name, dataset)]
    argv += ["--dedup", DEDUP]
    for name in _used_partitions(config):
        argv += ["--partition", _json(_partition(name, generate.partitions[name]))]
    if generate.side_by_side:
        argv.append("--side-by-side")
    if generate.overlap:
        argv.append("--overlap")
    if generate.adaptive:
        argv += ["--adaptive", str(generate.adaptive)]
    argv += ["--pilot", str(generate.pilot), "--seed", str(generate.seed), "--retries", str(generate.retries)]
    argv += ["--suspect-after", str(generate.suspect_after)]
    argv += ["--max-set-aside-share", _number(generate.max_set_aside_share), "--faulty", _json(_faulty(config))]
    for token in config.target.stop_ids:
        argv += ["--stop-id", str(token)]
    argv += ["--model-path", model_of(config), "--out", RESPONSES]
    stage = config.resources.generate
    resources = Resources(stage.memory, stage.gpus)
    return _job(config, "generate", "generate", argv, needs, hashes, resources, generate.environment)


def _merge(config: Config, needs: dict[str, tuple[Need, ...]], hashes: dict[str, Hashes]) -> JobSpec:
    argv = [*_prepared(config), "--dedup", DEDUP, "--responses", RESPONSES, *_target(config)]
    argv += ["--drop", ",".join(config.merge.drop)]
    argv += ["--max-lost-share", _number(config.merge.max_lost_share)]
    argv += ["--draft-vocab", str(config.draft.draft_vocab_size), "--out", TRAIN]
    stage = config.resources.merge
    resources = Resources(stage.memory, stage.gpus)
    return _job(config, "merge", "merge", argv, needs, hashes, resources, config.merge.environment)


def _job(
    config: Config,
    stage: str,
    name: str,
    argv: list[str],
    needs: dict[str, tuple[Need, ...]],
    hashes: dict[str, Hashes],
    resources: Resources,
    environment: dict[str, str],
    readiness: Readiness | None = None,
) -> JobSpec:
    policy: StagePolicy = getattr(config.policy, stage)
    return JobSpec(
        name=name,
        stage=stage,
        argv=(config.host.python, "-m", f"pipeline.{stage}", *argv),
        env=config.environment.variables | environment,
        secrets=config.environment.secrets,
        needs=needs[name],
        resources=resources,
        restart=RestartPolicy(
            when=policy.restart,
            limit=policy.limit,
            window_s=policy.window,
            backoff_s=policy.backoff,
            backoff_max_s=policy.backoff_max,
            healthy_s=policy.healthy,
            no_retry=policy.no_retry,
        ),
        service=readiness is not None,
        readiness=readiness,
        stop_grace_s=policy.grace,
        liveness=_checks(config.serve.liveness),
        stall_s=policy.stall,
        on_stall=policy.on_stall,
        oom_score_adj=SERVER_OOM if stage == "serve" else BATCH_OOM,
        content_hash=hashes[name].content,
        inputs_hash=hashes[name].inputs,
    )


# --- What is written by which settings ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hashes:
    """Of a job's own content settings, and of those of the jobs whose output it reads."""

    content: str
    inputs: str = ""


def _hashes(config: Config) -> dict[str, Hashes]:
    """Every job's hashes. A change of inputs makes a job run again; only its own content makes its records useless."""
    tokenizing = content_of(config.target, "model", "revision", "template")
    hashes: dict[str, Hashes] = {}
    for name, dataset in config.datasets.items():
        budget = config.generate.partitions[dataset.partition].max_new_tokens if dataset.kind == "prompts" else None
        of_prep = {
            "format": FORMAT,
            "target": tokenizing,
            "dataset": content_of(dataset),
            "prep": content_of(config.prep),
            "context": _context(config, dataset),
            "budget": budget,
        }
        hashes[f"prep:{name}"] = Hashes(content_hash(of_prep))
    hashes[ROUTER] = Hashes(content_hash({"format": FORMAT}))
    hashes[BASELINE] = Hashes(content_hash({"format": FORMAT, "target": tokenizing}))
    # In the config's order: of two rows alike the first stays.
    preps = [[name, hashes[f"prep:{name}"].content] for name in config.datasets]
    of_dedup = {"format": FORMAT, "dedup": content_of(config.dedup)}
    hashes[DEDUP_JOB] = Hashes(content_hash(of_dedup), content_hash(preps))
    known = [hashes[DEDUP_JOB].content, hashes[DEDUP_JOB].inputs]
    of_generate = {
        "format": FORMAT,
        "target": content_of(config.target, "model", "revision", "template", "stop_ids"),
        "partitions": {name: content_of(config.generate.partitions[name]) for name in _used_partitions(config)},
    }
    hashes["generate"] = Hashes(content_hash(of_generate), content_hash(known))
    of_merge = {
        "format": FORMAT,
        "merge": content_of(config.merge),
        "draft_vocab": config.draft.draft_vocab_size,
    }
    hashes["merge"] = Hashes(content_hash(of_merge), content_hash([known, hashes["generate"].content]))
    return hashes


# --- Small parts ----------------------------------------------------------------------------------------------------


def prep_folder(name: str, dataset: Dataset) -> str:
    """Where a prep writes, relative to the work directory."""
    return f"{PROMPTS if dataset.kind == 'prompts' else SAMPLES}/{name}"


def _prepared(config: Config) -> list[str]:
    """All preps' folders for a command line, answers first."""
    words: list[str] = []
    for name, dataset in _of_kind(config, "answers"):
        words += ["--samples", prep_folder(name, dataset)]
    for name, dataset in _of_kind(config, "prompts"):
        words += ["--prompts", prep_folder(name, dataset)]
    return words


def _of_kind(config: Config, kind: str) -> list[tuple[str, Dataset]]:
    return [(name, dataset) for name, dataset in config.datasets.items() if dataset.kind == kind]


def _used_partitions(config: Config) -> list[str]:
    used = {dataset.partition for dataset in config.datasets.values()}
    return [name for name in config.generate.partitions if name in used]


def _partition(name: str, partition: Partition) -> dict[str, Any]:
    return {
        "name": name,
        "concurrency": partition.concurrency,
        "max_new_tokens": partition.max_new_tokens,
        "temperature": partition.temperature,
        "top_p": partition.top_p,
        "top_k": partition.top_k,
    }


def _faulty(config: Config) -> dict[str, Any]:
    faulty, target = config.generate.faulty, config.target
    found: dict[str, Any] = {"retry": faulty.retry, "set_aside": faulty.set_aside, "retries": faulty.retries}
    thinks = all(target.template.get(name, True) for name in ("thinking", "enable_thinking"))
    return found | ({"thinking_end": target.thinking_end_id} if thinks and target.thinking_end_id is not None else {})


def _context(config: Config, dataset: Dataset) -> int:
    """Prompts have to fit the server's context, the target's own answers only the target's."""
    return served_context(config) if dataset.kind == "prompts" else config.target.context_length


def _target(config: Config) -> list[str]:
    target = config.target
    revision = [] if target.path else _option("--target-revision", target.revision)
    return ["--target", model_of(config), *revision, *(["--trust-remote-code"] if target.trust_remote_code else [])]


def _option(name: str, value: str | int | None) -> list[str]:
    return [name, str(value)] if value not in (None, "") else []


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _checks(section: schema.Readiness | schema.Liveness) -> Checks:
    return Checks(section.start, section.interval, section.timeout, section.threshold)


def _number(value: float) -> str:
    return repr(value)
