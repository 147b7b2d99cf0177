"""Says once when memory runs short, and once when there is enough again. Pure.

Short: less than 5 % of the limit is left for a while, or processes wait for memory more than a fifth of the time. It is
over only when both have been well clear of that for a minute, so that a figure near the line is told once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pipeline.agent.admission import in_words
from pipeline.protocol import HostSample

SHORT_SHARE: Final = 0.05
SHORT_S: Final = 6.0
PRESSURE: Final = 20.0  # per cent of the time in which something waited for memory
PRESSURE_S: Final = 30.0
ENOUGH_SHARE: Final = 0.08
EASE: Final = 5.0
ENOUGH_S: Final = 60.0
NAMED: Final = 3


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
