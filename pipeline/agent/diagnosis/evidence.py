"""What is known of an attempt that ended, and the words for it that claim no cause."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass

from pipeline.agent.host.gpu_faults import GpuFault
from pipeline.agent.rules.admission import in_words
from pipeline.protocol import JobSample, JobSpec, Progress, Result


@dataclass(frozen=True)
class Evidence:
    """An attempt that ended. ``exit_code`` and ``signal`` are both None where the end was not seen."""

    spec: JobSpec
    exit_code: int | None = None
    signal: int | None = None
    log_tail: bytes = b""  # 64 KiB or so
    result: Result | None = None
    progress: Progress | None = None
    oom_before: int | None = None  # the cgroup's oom_kill, at the last sample before the end or at the start
    oom_after: int | None = None
    oom_window_s: float = 0.0  # between the two
    oom_own: bool = False  # counted in a cgroup of the job's own
    gpu_faults: tuple[GpuFault, ...] = ()  # on its devices, not long before its end
    stopped_by: str = ""  # who asked for the end
    stopped_at: float | None = None  # and when, wall time
    stop_kill: bool = False  # and whether at once, without a grace
    condemned: str = ""  # why the agent ended it for good
    unhealthy: str = ""  # why the agent ended it to start it again
    shim_lost: bool = False
    record_torn: bool = False  # there is an exit record, but it cannot be read
    container_restarted: bool = False
    last_sample: JobSample | None = None
    peak: int | None = None  # bytes; of one that was never sampled, its largest process at most
    cgroup_peak: int | None = None  # the most its own cgroup was charged with, page cache included
    enospc: bool = False  # its last words tell of a full disk, and a disk of its own was low or nothing else ended it
    filled: str = ""  # which disk of its own was low when it ended, in words
    brim: bool = False  # that one was so full that not even its log may say why
    error: str = ""  # why its program could not be executed
    sigkills: int = 1  # jobs that died of SIGKILL while the counter went from oom_before to oom_after

    @property
    def ending(self) -> str:
        """How the process ended."""
        if self.signal is not None:
            return f"ended by {signal_name(self.signal)}"
        if self.exit_code is None:
            return "its end was not seen"
        if self.exit_code > 128:
            return f"exit code {self.exit_code}: as a shell says {signal_name(self.exit_code - 128)}"
        return f"exit code {self.exit_code}"

    @property
    def oom_kills(self) -> int | None:
        """By how much the kernel's count moved; None where it is not counted."""
        if self.oom_before is None or self.oom_after is None:
            return None
        return self.oom_after - self.oom_before

    @property
    def last_memory(self) -> tuple[str, ...]:
        """The job's memory when it was last seen, and the most its cgroup held, where known."""
        sample, held = self.last_sample, self.cgroup_peak
        return (
            *((f"memory at the last sample: {in_words(sample.memory)}",) if sample and sample.memory else ()),
            *((f"its cgroup held {in_words(held)} at most, page cache included",) if held else ()),
        )

    @property
    def memory(self) -> int | None:
        """What it had when it was last seen, else what is known of its peak."""
        return (self.last_sample.memory if self.last_sample else None) or self.peak

    @property
    def reported(self) -> tuple[str, ...]:
        """The last that the job said of its work, if it did."""
        result, progress = self.result, self.progress
        if result is not None:
            return (f"result: {result.records:,} records, {result.message}",)
        if progress is not None:
            share = f" of {progress.total:,.0f}" if progress.total is not None else ""
            return (f"last progress: {progress.phase}, {progress.done:,.0f}{share} {progress.unit}",)
        return ()

    def died_of(self, number: signals.Signals) -> bool:
        """Whether this signal ended it, or a shell says that it ended its child."""
        return self.signal == number or self.exit_code == 128 + number


def signal_name(number: int) -> str:
    """A signal as "SIGKILL"."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def in_time(seconds: float) -> str:
    """Seconds as "40 s", "12 min" or "3 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
