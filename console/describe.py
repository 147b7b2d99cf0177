"""What ``draftdeck check`` prints of a config that is sound: the run in numbers, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from console.config.flags import served_context
from console.config.schema import Config, Draft
from console.config.units import show_size
from pipeline.protocol import JobSpec, Plan

BF16: Final = 2
"""Bytes of a hidden state's number."""

TRAINING: Final = 16
"""Bytes a trained parameter takes: bf16 weight and gradient, fp32 master and two moments."""


def state_bytes(config: Config) -> int:
    """Bytes of hidden states a token: the aux states and the lm_head's input, in bf16."""
    return (len(config.draft.aux_layers) + 1) * config.target.hidden_size * BF16


def draft_parameters(draft: Draft, hidden_size: int) -> int:
    """Trained parameters of an EAGLE-3 draft: fc, one layer whose attention reads two widths, and its own head."""
    heads = draft.attention_heads * draft.head_dim
    shared = draft.key_value_heads * draft.head_dim
    attention = 2 * hidden_size * (heads + 2 * shared) + heads * hidden_size
    fuse = len(draft.aux_layers) * hidden_size * hidden_size
    norms = 4 * hidden_size
    return fuse + attention + 3 * hidden_size * draft.intermediate_size + draft.draft_vocab_size * hidden_size + norms


def describe(config: Config, plan: Plan) -> str:
    """The datasets, jobs, memory and disk of a run, in lines of at most 120 characters where names allow it."""
    parts = [
        _head(config, plan),
        _datasets(config),
        _jobs(plan),
        _memory(config, plan),
        _draft(config),
        _later(plan),
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def _head(config: Config, plan: Plan) -> Iterator[str]:
    target = config.target
    place = target.path or f"the hub{f', {target.revision[:12]}' if target.revision else ''}"
    user = f"{config.host.user}@" if config.host.user else ""
    yield f"{plan.run} @ {user}{config.host.address}:{config.host.workdir}"
    yield f"target   {target.model} from {place}: {target.layers} layers of {target.hidden_size:,}"
    yield f"server   {config.serve.engine}, {served_context(config):,} of {target.context_length:,} tokens of context"
    if config.environment.secrets:
        yield f"secrets  {', '.join(config.environment.secrets)}: stored in the container by draftdeck secret set NAME"
    told = [f"{what} by {name}" for what, name in _told(config) if name]
    if told:
        yield f"notify   {', '.join(told)}: secrets that hold URLs; draftdeck notify test tries them"


def _told(config: Config) -> tuple[tuple[str, str], ...]:
    return ("webhook", config.notify.webhook), ("heartbeat", config.notify.heartbeat)


def _datasets(config: Config) -> Iterator[str]:
    yield f"{'dataset':<9}{'kind':<9}{'take':>9}  {'shape':<14}{'partition':<24}source"
    for name, dataset in config.datasets.items():
        take = f"{dataset.take:,}" if dataset.take is not None else "all"
        partition = dataset.partition
        if dataset.kind == "prompts":
            chosen = config.generate.partitions[partition]
            partition += f" {chosen.concurrency} × {chosen.max_new_tokens:,}"
        unsure = "  (!)" if "not confirmed" in dataset.note else ""
        yield f"{name:<9}{dataset.kind:<9}{take:>9}  {dataset.shape:<14}{partition:<24}{dataset.source}{unsure}"
    for name, dataset in config.datasets.items():
        if "not confirmed" in dataset.note:
            yield f"(!) {name}: {dataset.note}"
    taken, whole = _samples(config)
    yield f"in all {taken:,} samples{'' if whole else ' and the sets that are taken whole'}"


def _samples(config: Config) -> tuple[int, bool]:
    """Samples that the config names a number for, and whether that is all of them."""
    takes = [dataset.take for dataset in config.datasets.values()]
    return sum(take for take in takes if take is not None), None not in takes


def _jobs(plan: Plan) -> Iterator[str]:
    yield f"{'job':<18}{'memory':>9}{'GPUs':>6}  {'restart':<12}{'waits for'}"
    for job in plan.jobs:
        memory = show_size(job.resources.memory) if job.resources.memory is not None else "measured"
        gpus = str(job.resources.gpus) if job.resources.gpus else "–"
        yield f"{job.name:<18}{memory:>9}{gpus:>6}  {job.restart.when:<12}{_needs(job)}".rstrip()


def _needs(job: JobSpec) -> str:
    words = [need.job if need.condition == "done" else f"{need.job} {need.condition}" for need in job.needs]
    if len(words) <= 5:
        return ", ".join(words)
    return f"{', '.join(words[:2])}, … ({len(words)} in all), {words[-1]}"


def _memory(config: Config, plan: Plan) -> Iterator[str]:
    first = [job for job in plan.jobs if not job.needs]
    together = sum(job.resources.memory or 0 for job in first)
    whole = config.resources.memory
    of_whole = f" of {show_size(whole)}" if whole is not None else ""
    yield (
        f"memory   {show_size(together)} for the {len(first)} jobs that start at once, "
        f"{show_size(plan.reserve_memory)} kept free{of_whole}"
    )
    if whole is not None and together + plan.reserve_memory > whole:
        yield "         more than there is: some of them will be queued until others have ended"


def _draft(config: Config) -> Iterator[str]:
    token = state_bytes(config)
    taken, whole = _samples(config)
    total = token * taken * config.extract.mean_tokens
    layers = ", ".join(str(layer) for layer in config.draft.aux_layers)
    parameters = draft_parameters(config.draft, config.target.hidden_size)
    yield (
        f"draft    {config.draft.architecture}, aux layers {layers}, vocabulary {config.draft.draft_vocab_size:,}: "
        f"{_millions(parameters)} parameters, {show_size(parameters * TRAINING)} to train them"
    )
    yield (
        f"states   {token:,} bytes a token; {taken:,} samples of {config.extract.mean_tokens:,} tokens: "
        f"{'' if whole else 'more than '}{show_size(total)}"
    )
    budget = show_size(config.extract.disk_budget)
    if config.extract.rolling:
        yield f"disk     {budget} for hidden states, rolling: used shards are deleted and extracted again when needed"
    else:
        yield f"disk     {budget} for hidden states, all kept at once"


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 10**9 else f"{count / 1e6:.1f} M"


def _later(plan: Plan) -> Iterator[str]:
    stages = {job.stage for job in plan.jobs}
    later = [stage for stage in ("extract", "train", "export", "bench") if stage not in stages]
    if later:
        yield f"not run by this release: {', '.join(later)}; their sections are checked and used once they are"
