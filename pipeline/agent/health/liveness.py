"""Whether a server that was ready still lives, decided over successive checks from what shows that tokens flow. Pure.

Neither a gauge nor /health is evidence: gauges stand at their last values and the HTTP server answers 200 while the
scheduler behind them is dead, and under load /health times out although tokens flow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.protocol import Checks

Work = tuple[tuple[str, float], ...]
"""Figures that change only while the server computes, by name."""


@dataclass(frozen=True)
class Check:
    """What was found of a server. ``at`` is monotonic."""

    at: float
    work: Work | None = None  # None: its figures could not be read
    busy: int | None = None  # requests running or waiting; None: not known
    batches: bool = False  # its log has told of a batch since the check before
    token: str | None = None  # "": one came that was asked for; else why none came; None: there was no need to ask


@dataclass(frozen=True)
class Pulse:
    """What the checks so far say. ``seen_at``: when it last showed life, monotonic."""

    seen_at: float
    work: Work | None = None
    misses: int = 0
    trouble: str = ""  # of the newest check

    def failed(self, checks: Checks) -> bool:
        return self.misses >= checks.threshold


def computes(pulse: Pulse, check: Check) -> bool:
    """Whether it has visibly worked since the check before."""
    return check.batches or (check.work is not None and pulse.work is not None and check.work != pulse.work)


def must_be_asked(pulse: Pulse, check: Check) -> bool:
    """Whether only a token on demand can tell: nothing moves, and no request is known to run."""
    return not computes(pulse, check) and not check.busy


def after(pulse: Pulse, check: Check, checks: Checks, ready_at: float) -> Pulse:
    """The pulse after one more check. ``ready_at``: when the server first answered, monotonic."""
    work = check.work if check.work is not None else pulse.work
    if computes(pulse, check) or check.token == "":
        return Pulse(check.at, work)
    misses = pulse.misses + 1 if check.at - ready_at >= checks.start_s else 0
    if check.busy:
        trouble = f"with {check.busy} request{'s' if check.busy > 1 else ''} in it"
    else:
        trouble = f"not even one that was asked for ({check.token})"
    return replace(pulse, work=work, misses=misses, trouble=trouble)
