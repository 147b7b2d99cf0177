"""SGLang's /metrics text to the few figures that are shown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?[ \t]+(?P<value>\S+)(?:[ \t]+-?\d+)?[ \t]*$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SAME_WORK = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
"""Labels that tell apart processes which all report the same requests; those of other labels add up."""

WORK = (
    "num_running_reqs",
    "num_used_tokens",
    "token_usage",
    "gen_throughput",
    "realtime_tokens_total",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "prompt_tokens_total",
    "generation_tokens_total",
)
"""Figures that change only when the scheduler works or tokens reach the HTTP server, some often, some when a request
ends. Left out is what the HTTP server counts by itself: requests that came, waited or were given up."""


@dataclass(frozen=True)
class ServerFigures:
    """None: the server does not say. ``generated_tokens`` grows only when a request ends.

    ``work`` holds what there is of ``WORK``: while it stays the same, nothing is seen to be computed.
    """

    running: int | None = None
    queued: int | None = None
    kv_use: float | None = None  # 0 to 1
    tok_s: float | None = None
    accept_length: float | None = None  # None also without speculation
    generated_tokens: int | None = None
    retracted: int | None = None
    work: tuple[tuple[str, float], ...] = ()


def parse(text: str) -> ServerFigures:
    """Read a /metrics body. Lines that are not samples are passed over, never an error."""
    samples = _samples(text)

    def figure(name: str, combine: Callable[[Iterable[float]], float]) -> float | None:
        values = samples.get(name)
        return combine(values.values()) if values else None

    def count(name: str) -> int | None:
        value = figure(name, sum)
        return None if value is None else int(value)

    accept = figure("spec_accept_length", max)
    return ServerFigures(
        running=count("num_running_reqs"),
        queued=count("num_queue_reqs"),
        kv_use=figure("token_usage", max),
        tok_s=figure("gen_throughput", sum),
        accept_length=accept or None,
        generated_tokens=count("generation_tokens_total"),
        retracted=count("num_retracted_reqs"),
        work=tuple((name, sum(samples[name].values())) for name in WORK if name in samples),
    )


def _samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Name without prefix to (labels that add up to value)."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for line in text.splitlines():
        if not line.startswith(("sglang:", "sglang_")):
            continue
        match = SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        labels = tuple(sorted(pair for pair in LABEL.findall(match["labels"] or "") if pair[0] not in SAME_WORK))
        found.setdefault(match["name"][len("sglang:") :], {}).setdefault(labels, value)
    return found
