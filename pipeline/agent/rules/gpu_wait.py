"""Whether the GPUs a job is to run on have given back the memory of what ran there before.

NVML tells what a device holds, not whose it is: in a container its pids are the host's. So a device is free again when
it holds no more than before the last job of ours began there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.agent.rules.admission import in_words
from pipeline.protocol import GpuSample, JobSpec

if TYPE_CHECKING:
    from pipeline.agent.store import Store

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
MARK: Final = "gpus"
MARGIN: Final = 10**9
FLOOR: Final = 2 * 10**9
"""Bytes: so much more than before, or so little at all, keeps no job from starting."""
LONG_S: Final = 60.0
"""After such a wait it is said how to start the job all the same."""


@dataclass(frozen=True)
class Look:
    """The GPUs at one monotonic moment."""

    at: float
    gpus: tuple[GpuSample, ...]


class Ledger:
    """What each GPU held before the last job of ours began there, by NVML's index; journaled."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: dict[int, int] = store.mark(MARK, dict[int, int]) or {}
        self.ended: dict[int, float] = {}  # monotonic; absent: before this agent's time

    def begin(self, wanted: Iterable[int], look: Look) -> None:
        """A job begins on these devices."""
        used = {gpu.index: gpu.memory_used for gpu in look.gpus}
        for index in set(wanted) & used.keys():
            # The margin is not added up from attempt to attempt.
            known = self.before.get(index)
            near = known is not None and known < used[index] <= max(known + MARGIN, FLOOR)
            self.before[index] = known if known is not None and near else used[index]
        self._store.set_mark(MARK, self.before)

    def end(self, wanted: Iterable[int], now: float) -> None:
        """A job has ended on these devices."""
        self.ended.update(dict.fromkeys(wanted, now))

    def held(self, wanted: Sequence[int], look: Look) -> str:
        """What keeps a job from these devices, on which none of ours runs; "" where nothing does."""
        used = {gpu.index: gpu.memory_used for gpu in look.gpus}
        # What was read before a job ended there is what that job itself held.
        unread = [index for index in wanted if index in used and look.at <= self.ended.get(index, 0.0)]
        over = {}
        for index in wanted:
            if index not in self.before or index not in used or index in unread:
                continue
            if used[index] > max(self.before[index] + MARGIN, FLOOR):
                over[index] = used[index] - self.before[index]
        if not over:
            return f"GPU {unread[0]}: what it still holds is being read" if unread else ""
        figure = in_words(max(over.values()))
        if len(over) == 1:
            return f"GPU {next(iter(over))}: {figure} still held"
        return f"GPUs {_listed(sorted(over))}: up to {figure} still held"


def devices(spec: JobSpec, inherited: str | None, gpus: tuple[GpuSample, ...]) -> tuple[int, ...]:
    """The GPUs a job will see, by NVML's index: those its environment names, else the first that it asks for.

    ``inherited`` is the variable's value in the container. What is named otherwise than by number or UUID (a MIG
    slice) counts as not named.
    """
    if not spec.resources.gpus:
        return ()
    named = spec.env.get(VISIBLE, inherited)
    present = tuple(gpu.index for gpu in gpus)
    if named is None:
        return present[: spec.resources.gpus]
    words = [word.strip() for word in named.split(",") if word.strip()]
    found = [gpu.index for word in words for gpu in gpus if _is(gpu, word)]
    return tuple(found) if found or not words else present[: spec.resources.gpus]


def _is(gpu: GpuSample, word: str) -> bool:
    return word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))


def _listed(numbers: list[int]) -> str:
    if numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2:
        return f"{numbers[0]}–{numbers[-1]}"
    return ", ".join(str(number) for number in numbers)
