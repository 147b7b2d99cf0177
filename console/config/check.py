"""Whether a config that has the right names and types also makes sense."""

from __future__ import annotations

import re
from typing import Final

from console.config.check_serve import check_servers
from console.config.decode import Notes
from console.config.errors import Path, nearest, quote
from console.config.flags import baseline_flags, served_context, whole
from console.config.graph import SERVER_NAMES, find_cycle, job_names, matches, needs_of, uses_baseline
from console.config.schema import Config
from console.config.stages import StagePolicy
from console.config.units import show_size

AUX_STATES: Final = 3
"""Hidden states that an EAGLE-3 draft fuses."""

LEAST_LOG: Final = 10**6

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
URL: Final = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]+(?:/[!-~]*)?")
SECRET: Final = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|APIKEY|KEY)$")
OWN_VARIABLES: Final = frozenset({"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "DRAFTDECK_PROGRESS"})
STAGES: Final = ("prep", "dedup", "serve", "generate", "merge", "extract", "train", "export", "bench")


def check(config: Config, notes: Notes) -> None:
    """Note everything that does not fit together."""
    _target(config, notes)
    _draft(config, notes)
    _environment(config, notes)
    _datasets(config, notes)
    _generate(config, notes)
    _faulty(config, notes)
    check_servers(config, notes)
    _needs(config, notes)
    _extract(config, notes)
    _resources(config, notes)
    _policies(config, notes)
    _notify(config, notes)
    if config.disk.log < LEAST_LOG:
        notes.add(
            ("disk", "log"),
            f"{show_size(config.disk.log)} would not keep what tells why a job ended",
            allowed=f"at least {show_size(LEAST_LOG)}",
        )


def _target(config: Config, notes: Notes) -> None:
    target = config.target
    if target.trust_remote_code and not target.path and not COMMIT.fullmatch(target.revision):
        where: Path = ("target", "revision") if target.revision else ("target", "trust_remote_code")
        notes.add(
            where,
            f"trust_remote_code with revision {quote(target.revision)}: code of a branch that moves would run",
            hint="pin target.revision to a commit, or set target.path to a folder you have looked at",
            allowed="a commit of 40 hexadecimal digits",
        )
    ids: list[tuple[Path, int | None]] = [(("target", "thinking_end_id"), target.thinking_end_id)]
    ids += [(("target", "stop_ids", index), token) for index, token in enumerate(target.stop_ids)]
    for at, token in ids:
        if token is not None and token >= target.vocab_size:
            notes.add(
                at,
                f"token id {token} is not in the vocabulary",
                allowed=f"0 to {target.vocab_size - 1}",
            )


def _draft(config: Config, notes: Notes) -> None:
    draft, target = config.draft, config.target
    at: Path = ("draft", "aux_layers")
    if "Eagle3" in draft.architecture and len(draft.aux_layers) != AUX_STATES:
        notes.add(
            at,
            f"{len(draft.aux_layers)} layers given",
            allowed=f"exactly {AUX_STATES}: {draft.architecture} fuses three",
        )
    if list(draft.aux_layers) != sorted(set(draft.aux_layers)):
        notes.add(at, f"given {list(draft.aux_layers)}", allowed="rising, each layer once")
    for index, layer in enumerate(draft.aux_layers):
        if layer >= target.layers:
            notes.add(
                (*at, index),
                f"layer {layer} of a target with {target.layers} layers",
                allowed=f"0 to {target.layers - 1}: the residual streams that enter the layers",
            )
    if draft.draft_vocab_size > target.vocab_size:
        notes.add(
            ("draft", "draft_vocab_size"),
            f"{draft.draft_vocab_size} is more than the target's vocabulary",
            allowed=f"at most target.vocab_size, {target.vocab_size}",
        )
    if draft.attention_heads % draft.key_value_heads:
        notes.add(
            ("draft", "key_value_heads"),
            f"{draft.key_value_heads} key/value heads for {draft.attention_heads} heads",
            allowed=f"a divisor of draft.attention_heads, {draft.attention_heads}",
        )


def _environment(config: Config, notes: Notes) -> None:
    tables: list[tuple[Path, dict[str, str]]] = [
        (("environment", "variables"), config.environment.variables),
        (("prep", "environment"), config.prep.environment),
        (("dedup", "environment"), config.dedup.environment),
        (("serve", "environment"), config.serve.environment),
        (("generate", "environment"), config.generate.environment),
        (("merge", "environment"), config.merge.environment),
    ]
    for path, table in tables:
        for name in table:
            if name in config.environment.secrets:
                notes.add((*path, name), "both a variable and a secret", hint="keep it in environment.secrets alone")
            elif SECRET.search(name):
                notes.add(
                    (*path, name),
                    "a secret's value in the config would be in every plan and log",
                    hint=f'name it in environment.secrets and store it with "draftdeck secret set {name}"',
                )
            elif name in OWN_VARIABLES:
                notes.add((*path, name), "set by the agent for every job", hint="leave it out")


def _datasets(config: Config, notes: Notes) -> None:
    partitions = config.generate.partitions
    if not any(dataset.kind == "prompts" for dataset in config.datasets.values()):
        notes.add(("datasets",), "no dataset of kind prompts: generate would have nothing to do", hint="add one")
    for name, dataset in config.datasets.items():
        at: Path = ("datasets", name)
        if dataset.kind == "answers":
            if dataset.partition:
                notes.add((*at, "partition"), "an answers set is not put to the target", hint="leave it out")
            continue
        for key in ("train_turns", "over_context"):
            if notes.has((*at, key)):
                notes.add((*at, key), "a prompts set has no answers to train on", hint="leave it out")
        known = ", ".join(partitions) or "none: add [generate.partitions.NAME]"
        if not dataset.partition:
            notes.add(at, 'key "partition" is missing', hint="say which partition answers these prompts", allowed=known)
        elif dataset.partition not in partitions:
            notes.add(
                (*at, "partition"),
                f"no partition is called {quote(dataset.partition)}",
                hint=nearest(dataset.partition, partitions),
                allowed=known,
            )


def _generate(config: Config, notes: Notes) -> None:
    servers = config.generate.servers
    if not servers:
        notes.add(("generate", "servers"), "no server is named", allowed='["baseline"], and URLs of servers elsewhere')
    for index, server in enumerate(servers):
        at: Path = ("generate", "servers", index)
        if servers.index(server) != index:
            notes.add(at, f"{quote(server)} is named twice", hint="name it once")
        elif server == "draft":
            notes.add(
                at, "the server with the draft exists only after training on these answers", hint='write "baseline"'
            )
        elif server not in SERVER_NAMES and not URL.fullmatch(server):
            notes.add(
                at,
                f"no server is called {quote(server)}",
                hint=nearest(server, SERVER_NAMES),
                allowed='"baseline", or a URL such as "http://gpu-4:30000"',
            )
    _router(config, notes)
    context = served_context(config)
    # Servers elsewhere are not described here; only the planned one's limit is known.
    planned = "baseline" in servers
    running = whole(baseline_flags(config), "max-running-requests") if planned else None
    together = 0
    for name, partition in config.generate.partitions.items():
        at = ("generate", "partitions", name)
        if partition.max_new_tokens >= context:
            notes.add(
                (*at, "max_new_tokens"),
                f"{partition.max_new_tokens} leaves no room for a prompt in the context, {context}",
                allowed=f"less than {context}",
            )
        if running is not None and partition.concurrency > running:
            notes.add(
                (*at, "concurrency"),
                f"{partition.concurrency} is more than the server runs at once",
                hint="raise serve.flags.max-running-requests or lower it",
                allowed=f"at most {running}",
            )
        together += partition.concurrency
        if partition.top_k == 0:
            notes.add((*at, "top_k"), "given 0", allowed="at least 1, or -1 for all tokens")
    if config.generate.side_by_side and running is not None and together > running:
        notes.add(
            ("generate", "side_by_side"),
            f"the partitions together run {together} at once, the server {running}",
            hint=f"raise serve.flags.max-running-requests to {together}, or run the partitions in turn",
        )


def _router(config: Config, notes: Notes) -> None:
    servers, router = config.generate.servers, config.serve.router
    if "router" in servers and router is None:
        hint = 'add [serve.router] with workers = ["baseline", "http://gpu-4:30000"]'
        notes.add(("generate", "servers", servers.index("router")), "there is no [serve.router]", hint=hint)
    if router is None:
        return
    at: Path = ("serve", "router", "workers")
    if not router.workers:
        notes.add(at, "no server is named", allowed='"baseline", and URLs of servers elsewhere')
    for index, worker in enumerate(router.workers):
        if router.workers.index(worker) != index:
            notes.add((*at, index), f"{quote(worker)} is named twice", hint="name it once")
        elif worker != "baseline" and not URL.fullmatch(worker):
            allowed = '"baseline", or a URL such as "http://gpu-4:30000"'
            notes.add((*at, index), f"no server is called {quote(worker)}", allowed=allowed)
        elif "router" in servers and worker in servers:
            notes.add((*at, index), f"{quote(worker)} is in generate.servers too", hint="name it in one place")


def _faulty(config: Config, notes: Notes) -> None:
    faulty, target = config.generate.faulty, config.target
    for index, fault in enumerate(faulty.set_aside):
        if fault in faulty.retry:
            notes.add(
                ("generate", "faulty", "set_aside", index),
                f"{quote(fault)} is in retry too",
                hint="name it in one of the two; after its retries an answer is set aside anyway",
            )
    thinks = target.thinking_end_id is not None
    for key, faults in (("retry", faulty.retry), ("set_aside", faulty.set_aside)):
        if "thinking not ended" in faults and not thinks:
            notes.add(
                ("generate", "faulty", key, faults.index("thinking not ended")),
                '"thinking not ended" is never found without the id that ends it',
                hint="set target.thinking_end_id",
            )


def _needs(config: Config, notes: Notes) -> None:
    names = job_names(config)
    places: list[tuple[Path, tuple[str, ...]]] = [
        (("datasets", name, "needs"), dataset.needs) for name, dataset in config.datasets.items()
    ]
    places.append((("serve", "baseline", "needs"), config.serve.baseline.needs))
    for path, patterns in places:
        for index, pattern in enumerate(patterns):
            if not matches(pattern, names):
                notes.add(
                    (*path, index),
                    f"no job is called {quote(pattern)}",
                    hint=nearest(pattern, names),
                    allowed=f"{', '.join(names)}, or a pattern such as prep:*",
                )
    cycle = find_cycle(needs_of(config))
    if cycle:
        at = next((path for path, patterns in places if patterns and _job_of(path) in cycle), ())
        notes.add(at, f"jobs wait for each other: {' → '.join(cycle)}", hint="take one of these needs out")


def _job_of(path: Path) -> str:
    return f"prep:{path[1]}" if path[0] == "datasets" else "serve:baseline"


def _extract(config: Config, notes: Notes) -> None:
    extract = config.extract
    if extract.shard_size > extract.disk_budget:
        notes.add(
            ("extract", "shard_size"),
            f"a shard of {show_size(extract.shard_size)} does not fit the disk budget",
            allowed=f"at most extract.disk_budget, {show_size(extract.disk_budget)}",
        )
    if config.train.max_length > config.target.context_length:
        notes.add(
            ("train", "max_length"),
            f"{config.train.max_length} is more than the target's context",
            allowed=f"at most target.context_length, {config.target.context_length}",
        )


def _resources(config: Config, notes: Notes) -> None:
    resources = config.resources
    server = (resources.serve.memory or 0) if uses_baseline(config) else 0
    demands: list[tuple[Path, int, str]] = [
        (("resources", stage, "memory"), getattr(resources, stage).memory or 0, "") for stage in STAGES
    ]
    demands += [(("datasets", name, "memory"), dataset.memory or 0, "") for name, dataset in config.datasets.items()]
    beside = resources.generate.memory or 0
    demands.append((("resources", "generate", "memory"), server + beside if beside else 0, " beside the server"))
    if resources.memory is not None:
        left = resources.memory - resources.reserve
        said: set[Path] = set()
        for path, memory, beside_what in demands:
            if memory > left and path not in said:
                said.add(path)
                notes.add(
                    path,
                    f"{show_size(memory)}{beside_what} can never be had: the job would wait for ever",
                    allowed=f"at most {show_size(max(left, 0))}: resources.memory less resources.reserve",
                )
    if resources.gpus is not None:
        for stage in STAGES:
            gpus = getattr(resources, stage).gpus
            if gpus > resources.gpus:
                notes.add(
                    ("resources", stage, "gpus"),
                    f"{gpus} GPUs can never be had: the job would wait for ever",
                    allowed=f"at most resources.gpus, {resources.gpus}",
                )


def _notify(config: Config, notes: Notes) -> None:
    notify = config.notify
    if notify.webhook and notify.webhook == notify.heartbeat:
        notes.add(
            ("notify", "heartbeat"),
            f"the secret {quote(notify.webhook)} holds the webhook's URL",
            hint="name another secret: called every minute, a webhook would post every minute",
        )


def _policies(config: Config, notes: Notes) -> None:
    for stage in STAGES:
        policy: StagePolicy = getattr(config.policy, stage)
        if policy.backoff_max < policy.backoff:
            notes.add(
                ("policy", stage, "backoff_max"),
                f"{policy.backoff_max:g} s is less than backoff",
                allowed=f"at least policy.{stage}.backoff, {policy.backoff:g} s",
            )
        if policy.stall is not None and policy.stall < 1:
            notes.add(("policy", stage, "stall"), f"given {policy.stall:g} s", allowed="at least 1 s, or leave it out")
        if policy.on_stall == "restart" and policy.stall and policy.window < policy.limit * policy.stall:
            notes.add(
                ("policy", stage, "window"),
                f"{policy.window:g} s: a job that stalls every time would never have {policy.limit} restarts in it",
                allowed=f"at least limit times stall, {policy.limit * policy.stall:g} s",
            )
