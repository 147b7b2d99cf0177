"""Says once when memory or disk runs short, and once when there is enough again. Pure.

Memory is short: less than 5 % of the limit is left for a while, or processes wait for memory more than a fifth of the
time. It is over only when both have been well clear of that for a minute, so that a figure near the line is told once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from pipeline.agent.diagnosis.evidence import in_time
from pipeline.agent.rules.admission import in_words
from pipeline.protocol import DiskPolicy, HostSample

SHORT_SHARE: Final = 0.05
SHORT_S: Final = 6.0
PRESSURE: Final = 20.0  # per cent of the time in which something waited for memory
PRESSURE_S: Final = 30.0
ENOUGH_SHARE: Final = 0.08
EASE: Final = 5.0
ENOUGH_S: Final = 60.0
NAMED: Final = 3
ROOMY: Final = 1.25
"""How many times what counts as short a disk must have to be no longer short."""
LATER: Final = 4.0
"""A disk that is short is told of again when the time left is a fourth of what was told."""


class Memory:
    """Looked at every two seconds. ``short``: whether it was, and was told, when this begins."""

    def __init__(self, *, short: bool = False) -> None:
        self.short = short
        self._since: dict[str, float] = {}  # by condition: when it began to hold

    def look(self, host: HostSample, users: Iterable[tuple[str, int]], now: float) -> str:
        """What is to be told, "" mostly. ``users``: jobs and their bytes; ``now`` is monotonic."""
        left = max(0, host.memory_limit - host.memory_used)
        some = host.memory_some or 0.0
        if self.short:
            enough = left > ENOUGH_SHARE * host.memory_limit and some < EASE
            if self._held("enough", enough, now) >= ENOUGH_S:
                self._since.clear()
                self.short = False
                return f"memory is no longer short: {in_words(left)} of {in_words(host.memory_limit)} left"
            return ""
        full = self._held("full", left < SHORT_SHARE * host.memory_limit, now)
        slow = self._held("slow", some > PRESSURE, now)
        if full < SHORT_S and slow < PRESSURE_S:
            return ""
        self._since.clear()
        self.short = True
        words = f"memory is short: {in_words(left)} of {in_words(host.memory_limit)} left"
        if some > EASE:
            words += f", something waited for memory {some:.0f} % of the last 10 s"
        largest = sorted(users, key=lambda user: -user[1])[:NAMED]
        return words + (f"; {', '.join(f'{name} has {in_words(used)}' for name, used in largest)}" if largest else "")

    def _held(self, name: str, holds: bool, now: float) -> float:
        """For how many seconds a condition has held, −1 where it does not."""
        if not holds:
            self._since.pop(name, None)
            return -1.0
        return now - self._since.setdefault(name, now)


class DiskSpace:
    """As ``Memory``, for the disk of the work directory: what is free, and how soon that is used up."""

    def __init__(self, *, short: bool = False) -> None:
        self.short = short
        self._told_left = 0.0  # seconds that were left when it was told last
        self._ample_since: float | None = None  # monotonic

    def look(self, host: HostSample, policy: DiskPolicy, now: float) -> str:
        """What is to be told, "" mostly. ``now`` is monotonic."""
        if host.disk_free is None or not host.disk_total:
            return ""
        left = host.disk_left_s
        if disk_short(host, policy):
            self._ample_since = None
            left = left if left is not None and left < policy.warn_left_s else math.inf
            # Told again when it has become much more pressing.
            if self.short and (left == math.inf or left > self._told_left / LATER):
                return ""
            self.short, self._told_left = True, left
            return f"the disk is short: {_free(host)}"
        roomy = host.disk_free > ROOMY * policy.warn_share * host.disk_total
        ample = roomy and (left is None or left > ROOMY * policy.warn_left_s)
        if not self.short or not ample:
            self._ample_since = None
            return ""
        self._ample_since = self._ample_since if self._ample_since is not None else now
        if now - self._ample_since < ENOUGH_S:
            return ""
        self.short = False
        return f"the disk is no longer short: {_free(host)}"


def disk_short(host: HostSample, policy: DiskPolicy) -> bool:
    """Whether the disk has less free than the policy wants, or is full sooner, or no more files can be made soon."""
    few = host.disk_free is not None and host.disk_free < policy.warn_share * (host.disk_total or 0)
    soon = host.disk_left_s is not None and host.disk_left_s < policy.warn_left_s
    names = host.inodes_free is not None and host.inodes_free < policy.warn_share * (host.inodes_total or 0)
    return few or soon or names


def _free(host: HostSample) -> str:
    words = f"{in_words(host.disk_free or 0)} of {in_words(host.disk_total or 0)} free"
    if host.inodes_free is not None and host.inodes_total and host.inodes_free < host.inodes_total / 5:
        words += f", room for {host.inodes_free:,} more files"
    if host.disk_left_s is not None:
        words += f", full in {in_time(host.disk_left_s)} at the present rate"
    return words
