"""Whether the model servers' flags, ports and speculation belong together."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from console.config.decode import Notes
from console.config.errors import Path, quote
from console.config.fields import FlagValue
from console.config.flags import NAMED, baseline_flags, canonical, draft_flags, whole
from console.config.schema import Config, DraftServer

EAGLE_NAMES: Final = ("EAGLE", "NEXTN")
"""Algorithms that read only the last hidden state; NEXTN is another name of EAGLE."""

NUMBERS: Final = (
    "tp-size",
    "dp-size",
    "pp-size",
    "ep-size",
    "context-length",
    "max-running-requests",
    "max-queued-requests",
    "nccl-port",
    "watchdog-timeout",
    "decode-log-interval",
)
"""Flags whose values are whole numbers of at least 1."""

HOST: Final = re.compile(r"[A-Za-z0-9._:-]+")


def check_servers(config: Config, notes: Notes) -> None:
    """Note every flag, port and speculation key that cannot be meant."""
    _flag_names(config, notes)
    for path, flags in (
        (("serve", "baseline", "flags"), baseline_flags(config)),
        (("serve", "draft", "flags"), draft_flags(config)),
    ):
        if path[1] == "baseline" or config.serve.draft is not None:
            _flag_values(config, path, flags, notes)
    _ports(config, notes)
    if not HOST.fullmatch(config.serve.host):
        notes.add(("serve", "host"), f"given {quote(config.serve.host)}", allowed="an address to listen on: 127.0.0.1")
    if config.serve.draft is not None:
        _speculation(config, config.serve.draft, notes)
    for index, point in enumerate(config.bench.grid):
        _chain(("bench", "grid", index), point.steps, point.topk, point.draft_tokens, notes)


def _tables(config: Config) -> Iterator[tuple[Path, Mapping[str, FlagValue]]]:
    yield ("serve", "flags"), config.serve.flags
    yield ("serve", "baseline", "flags"), config.serve.baseline.flags
    if config.serve.draft is not None:
        yield ("serve", "draft", "flags"), config.serve.draft.flags


def _flag_names(config: Config, notes: Notes) -> None:
    first: dict[str, str] = {}
    for path, table in _tables(config):
        for name in table:
            own = canonical(name)
            if own in NAMED:
                notes.add(
                    (*path, name),
                    f"flag {name} is given by {NAMED[own]}; twice, the two could contradict each other",
                    hint=f"take it out and set {NAMED[own]}",
                )
            elif first.setdefault(own, name) != name:
                notes.add((*path, name), f"given as {first[own]} already: the same flag", hint=f"write {own} alone")


def _flag_values(config: Config, table: Path, flags: Mapping[str, FlagValue], notes: Notes) -> None:
    def place(name: str) -> Path:
        own = (*table, name)
        return own if notes.has(own) else ("serve", "flags", name)

    for name in NUMBERS:
        value = whole(flags, name)
        if name in flags and (value is None or value < 1):
            notes.add(place(name), f"given {quote(flags[name])}", allowed="a whole number of at least 1")
    share = flags.get("mem-fraction-static")
    if share is not None and not (isinstance(share, float) and 0 < share < 1):
        notes.add(place("mem-fraction-static"), f"given {quote(share)}", allowed="a number above 0 and below 1")
    context = whole(flags, "context-length")
    if context is not None and context > config.target.context_length:
        notes.add(
            place("context-length"),
            f"{context} is more than the target was made for",
            allowed=f"at most target.context_length, {config.target.context_length}",
        )
    gpus = 1
    for name in ("tp-size", "pp-size"):
        gpus *= whole(flags, name) or 1
    planned = config.resources.serve.gpus
    if config.serve.engine == "sglang" and gpus > max(planned, 1):
        notes.add(
            place("tp-size"),
            f"the server takes {gpus} GPUs, resources.serve.gpus sets {planned} aside",
            hint=f"set resources.serve.gpus = {gpus}",
        )
    if flags.get("enable-metrics") is not True:
        notes.add(
            place("enable-metrics"),
            "the server's figures (running, queued, KV use, tok/s) come from /metrics",
            hint="set serve.flags.enable-metrics = true",
        )


def _ports(config: Config, notes: Notes) -> None:
    taken: dict[int, str] = {}
    ports: list[tuple[Path, int | None]] = [(("serve", "baseline", "port"), config.serve.baseline.port)]
    if config.serve.draft is not None:
        ports.append((("serve", "draft", "port"), config.serve.draft.port))
    if config.serve.router is not None:
        router = config.serve.router
        ports += [
            (("serve", "router", "port"), router.port),
            (("serve", "router", "metrics_port"), router.metrics_port),
        ]
    for path, table in _tables(config):
        ports += [((*path, name), whole(table, name)) for name in ("nccl-port", "prometheus-port") if name in table]
    for index, server in enumerate(config.generate.servers):
        ports.append((("generate", "servers", index), _local_port(server)))
    for path, port in ports:
        if port is None:
            continue
        name = ".".join(str(part) for part in path)
        if port in taken:
            notes.add(path, f"port {port} is taken by {taken[port]}", hint="give each its own")
        taken.setdefault(port, name)


def _local_port(url: str) -> int | None:
    """The port of a URL that means the container itself; None for another host or no URL."""
    try:
        parts = urlsplit(url)
        if parts.hostname == "localhost" or (parts.hostname and ipaddress.ip_address(parts.hostname).is_loopback):
            return parts.port
    except ValueError:
        pass
    return None


def _speculation(config: Config, server: DraftServer, notes: Notes) -> None:
    at: Path = ("serve", "draft")
    architecture = config.draft.architecture
    eagle3 = "Eagle3" in architecture
    if eagle3 and server.algorithm != "EAGLE3":
        why = (
            "SGLang takes it without an error, replaces the trained draft head by the target's and runs at "
            "accept length 1.0, slower than no draft"
            if server.algorithm in EAGLE_NAMES
            else "that algorithm does not read an EAGLE-3 draft"
        )
        notes.add(
            (*at, "algorithm"),
            f"{quote(server.algorithm)} with the EAGLE-3 draft {architecture}: {why}",
            hint='write algorithm = "EAGLE3"',
        )
    if not eagle3 and server.algorithm == "EAGLE3":
        notes.add(
            (*at, "algorithm"),
            f'"EAGLE3" with {architecture}, which is no EAGLE-3 draft',
            hint='set draft.architecture to the draft\'s own, such as "LlamaForCausalLMEagle3"',
        )
    if not config.draft.path:
        notes.add(
            (*at, "algorithm"),
            f"{server.algorithm} without draft.path: SGLang would take the target as its own draft and crash",
            hint="set draft.path to the folder that export writes",
        )
    _chain(at, server.steps, server.topk, server.draft_tokens, notes)
    backend = draft_flags(config).get("attention-backend")
    if server.topk > 1 and backend == "trtllm_mha":
        notes.add((*at, "topk"), f"topk {server.topk} with attention backend trtllm_mha", allowed="1 with this backend")


def _chain(at: Path, steps: int, topk: int, draft_tokens: int, notes: Notes) -> None:
    if topk == 1 and draft_tokens != steps + 1:
        notes.add(
            (*at, "draft_tokens"),
            f"{draft_tokens} with topk 1 and {steps} steps: a chain verifies one token more than steps",
            hint=f"set draft_tokens = {steps + 1}",
        )
    elif draft_tokens < 2:
        notes.add((*at, "draft_tokens"), f"given {draft_tokens}", allowed="at least 2")
