"""What the agent reads of its jobs and its host. Everything here may block; one thread runs it all, in turn."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pipeline.agent.attempts import job_cgroup, logs
from pipeline.agent.attempts.attempt_files import oom_kills
from pipeline.agent.attempts.identity import Process
from pipeline.agent.attempts.progress_reader import ProgressTail
from pipeline.agent.attempts.run import Run
from pipeline.agent.figures import OF_SERVER
from pipeline.agent.host import cgroups, procs
from pipeline.agent.host.disks import Disks
from pipeline.agent.host.gpus import GpuWatch
from pipeline.agent.host.hoststats import HostSampler
from pipeline.agent.host.log_caps import LogCaps
from pipeline.agent.rules.full_disks import disks_of
from pipeline.protocol import HostSample, JobSample, Progress, Result

Answer = TypeVar("Answer")
LOG_TAIL: Final = 64 * 1024
KILLS_KEPT: Final = 120  # readings, one a second
MACHINE_KILLS: Final = "/proc/vmstat"


@dataclass(frozen=True)
class Seen:
    """What one look found of a job."""

    sample: JobSample
    quiet_s: float  # since its progress advanced
    advanced: bool = True  # its progress was seen to advance, not only found as it is


@dataclass(frozen=True)
class Remains:
    """What an attempt left to read."""

    log_tail: bytes
    log_bytes: int
    progress: Progress | None
    result: Result | None


class _Tracker:
    """The readers of one attempt."""

    def __init__(self, run: Run) -> None:
        self.number = run.number
        self.tail = ProgressTail(run.progress)
        self.index = logs.LogIndexer(run.log, run.folder / "log.idx")
        self.cpu: tuple[float, float] | None = None
        self._said: tuple[int, str] = (0, "")  # the log's size, and its last line then
        self._log = run.log

    def said(self) -> tuple[int, str]:
        """The size of the log, and its last line; read only when it has grown."""
        try:
            size = self._log.stat().st_size
        except OSError:
            size = 0
        if size != self._said[0]:
            self._said = size, logs.last_line(self._log) if size else ""
        return self._said


class Senses:
    """One thread, and the readers that live in it."""

    def __init__(self, workdir: Path) -> None:
        self._thread = ThreadPoolExecutor(1, "senses")
        self.gpus = GpuWatch()
        self.disks = Disks(workdir)
        self._host = HostSampler(self.disks.work)
        self.log_caps = LogCaps()
        self._trackers: dict[str, _Tracker] = {}
        self._kills: dict[str, deque[tuple[float, int]]] = {}  # by counter: its newest readings
        self._began = time.monotonic()
        self._machine_kills: tuple[int | None, int | None] = (None, None)  # at the last two ticks
        self._kills_in_jobs = 0  # of the kernel's kills, those counted in jobs' own cgroups only

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.gpus.stop()

    async def call(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        """Run a function in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def look(self, runs: tuple[Run, ...]) -> tuple[HostSample, dict[str, Seen]]:
        """The host, and each job that runs: one pass over /proc for all of them."""
        table = procs.snapshot()
        now = time.monotonic()
        seen = {run.job: self._look_at(run, table, now) for run in runs}
        for name in self._trackers.keys() - seen.keys():
            del self._trackers[name]
        self.disks.look_at_others()
        remarks = self.gpus.remarks() + self.log_caps.remarks + self.disks.remarks()
        return self._host.sample(self.gpus.latest(), remarks, self._kills_in_jobs), seen

    def tick(self, runs: tuple[Run, ...]) -> list[tuple[Run, int]]:
        """Once a second: note the size of each log, and how many processes the kernel has killed for memory.

        Gives the runs with a cgroup of their own in which it killed some since the tick before, and how many. Those
        from before this agent's time are not told again.
        """
        found = []
        for run in runs:
            self._tracker(run).index.tick()
        for counter in self._kills.keys() - {run.oom_counter for run in runs}:
            del self._kills[counter]
        quiet = self._nothing_killed()
        for run in {run.oom_counter: run for run in runs if run.oom_counter}.values():
            known = self._kills.get(run.oom_counter)
            count = known[-1][1] if known and quiet else oom_kills(run.oom_counter)
            if count is not None and (more := self.count_kills(run, count)):
                found.append((run, more))
        return found

    def _nothing_killed(self) -> bool:
        """Whether the kernel killed nothing on the whole machine lately: then no counter of a job has moved.

        It counts for the machine first: a counter may move just after it was read, so they are read once more.
        """
        kills = oom_kills(MACHINE_KILLS)
        before, self._machine_kills = self._machine_kills, (self._machine_kills[1], kills)
        return kills is not None and before == (kills, kills)

    def count_kills(self, run: Run, count: int) -> int:
        """Note a reading of the run's counter; by how much it moved, where that is the job's own."""
        readings = self._kills.setdefault(run.oom_counter, deque(maxlen=KILLS_KEPT))
        more, first = count - (readings[-1][1] if readings else 0), not readings
        readings.append((time.monotonic(), count))
        if not run.cgroup:
            return 0
        if more and not cgroups.counts_below(run.cgroup):
            self._kills_in_jobs += more
        return 0 if first and (run.began or 0.0) < self._began else more

    def kills_before(self, run: Run, moment: float) -> tuple[float, int] | None:
        """The newest reading of the run's counter that is not later than a monotonic time: when, and what."""
        return next((seen for seen in reversed(self._kills.get(run.oom_counter, ())) if seen[0] <= moment), None)

    def remains(self, run: Run) -> Remains:
        """What is to be read of an attempt that has ended."""
        tracker = self._tracker(run)
        tracker.tail.poll()
        tracker.index.tick(last=True)
        self._trackers.pop(run.job, None)
        end = logs.page(run.log, -LOG_TAIL, LOG_TAIL)
        return Remains(end.data, end.size, tracker.tail.progress, tracker.tail.result)

    def _look_at(self, run: Run, table: procs.Table, now: float) -> Seen:
        tracker = self._tracker(run)
        tracker.tail.poll()
        # What a job leaves behind becomes a child of its shim, so the shim's tree is the whole job.
        tree = table.tree(run.shim.pid, run.shim.start)[1:] if run.shim is not None else ()
        if tree:
            run.known = frozenset(Process(proc.pid, proc.start) for proc in tree)
        if not tree and run.main is not None:
            tree = table.those(job_cgroup.members(run.cgroup)) or table.tree(run.main.pid, run.main.start)
        use = procs.tree_use(tree)
        held = job_cgroup.held(run.cgroup)
        log_bytes, last_line = tracker.said()
        percent = None
        if tracker.cpu is not None and now > tracker.cpu[1]:
            percent = max(0.0, 100 * (use.cpu_s - tracker.cpu[0]) / (now - tracker.cpu[1]))
        tracker.cpu = (use.cpu_s, now)
        sample = JobSample(
            cpu_percent=percent,
            memory=procs.tree_memory(tree) if held is None else held,
            processes=use.processes,
            progress=tracker.tail.progress,
            rate=tracker.tail.rate,
            eta=tracker.tail.eta,
            last_line=last_line,
            log_bytes=log_bytes,
        )
        return Seen(sample, tracker.tail.quiet_s, tracker.tail.advanced)

    def _tracker(self, run: Run) -> _Tracker:
        tracker = self._trackers.get(run.job)
        if tracker is None or tracker.number != run.number:
            tracker = self._trackers[run.job] = _Tracker(run)
            disks_of(self.disks, run.folder)  # they are looked at from now on
        return tracker


def figures(host: HostSample | None, samples: dict[str, JobSample]) -> dict[tuple[str, str], float]:
    """The figures whose history is kept, by (job, figure); job "" is the host."""
    found: dict[tuple[str, str], float | int | None] = {}
    if host is not None:
        found["", "cpu_percent"] = host.cpu_percent
        found["", "memory_used"] = host.memory_used
        found["", "memory_some"] = host.memory_some
        found["", "disk_free"] = host.disk_free
        for gpu in host.gpus:
            found["", f"gpu{gpu.index}.utilisation"] = gpu.utilisation
            found["", f"gpu{gpu.index}.memory_used"] = gpu.memory_used
    for job, sample in samples.items():
        found[job, "cpu_percent"] = sample.cpu_percent
        found[job, "memory"] = sample.memory
        found[job, "rate"] = sample.rate
        if sample.progress is not None:
            found[job, "done"] = sample.progress.done
            found.update({(job, name): value for name, value in sample.progress.figures.items()})
        if sample.server is not None:
            for name in OF_SERVER:
                found[job, name] = getattr(sample.server, name)
    return {key: float(value) for key, value in found.items() if value is not None}
