"""Draftdeck's own agent, driven like its peers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from benchmarks.supervision.jobs import Jobs, wait_for
from pipeline.agent.attempts import handover
from pipeline.agent.attempts.identity import alive
from pipeline.agent.attempts.records import read_exit, read_started
from pipeline.protocol import Attempt, JobDetail, JobSpec, JobState, RestartPolicy, State
from tests.agent.rig import Rig, survivors

Answer = TypeVar("Answer")

ALWAYS: Final = RestartPolicy(when="always", limit=1_000_000, healthy_s=1.0)
"""Like the peers: a job that was up for a second starts again at once."""


class Draftdeck:
    """One agent with its keeper, in a work directory below ``folder``."""

    title = "draftdeck"
    revived = True

    def __init__(self, folder: Path) -> None:
        os.environ["SHELL"] = "/bin/sh"
        self.rig = Rig(folder / "work")
        self.loop = asyncio.Runner()

    def wait(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.loop.run(work)

    def start(self, jobs: Jobs) -> None:
        specs = [JobSpec(name, "demo", jobs.argv(name), restart=ALWAYS) for name in jobs.names]
        self.start_plan(*specs)
        assert wait_for(jobs.all_started)

    def start_plan(self, *specs: JobSpec) -> None:
        self.wait(self.rig.start())
        assert self.wait(self.rig.apply(*specs)).applied

    def processes(self) -> Mapping[str, list[int]]:
        agent, keeper = self.rig.holder("agent"), self.rig.holder("keeper")
        assert agent is not None and keeper is not None
        found: dict[str, list[int]] = {"agent": [agent.pid], "keeper": [keeper.pid], "shims": [], "spare shim": []}
        for pid in survivors(self.rig.workdir):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if not any(part.endswith(b"/shim.py") for part in argv):
                continue
            idle = Path(f"/proc/{pid}/cwd").readlink().parent.parent != self.rig.workdir / "jobs"
            found["spare shim" if handover.SPARE.encode() in argv and idle else "shims"].append(pid)
        return found

    def kill(self) -> None:
        self.killed = self.rig.holder("agent")
        assert self.killed is not None
        os.kill(self.killed.pid, signal.SIGKILL)

    def again(self) -> None:
        """Returns when another agent answers: nobody but the keeper has started it."""
        self.wait(self._served())

    async def _served(self) -> None:
        assert self.killed is not None
        deadline = time.monotonic() + 60
        while True:
            try:
                if (await self.rig.state()).agent.pid != self.killed.pid:
                    return
            except Exception:
                assert time.monotonic() < deadline, self.rig.log()[-2000:]
            await asyncio.sleep(0.002)

    def state(self) -> State:
        return self.wait(self.rig.state())

    def adopted(self, before: Mapping[str, int]) -> set[str]:
        jobs = self.state().jobs
        return {
            name for name, pid in before.items() if jobs[name].state is JobState.RUNNING and jobs[name].pid == pid
        }  # fmt: skip

    def exit_code(self, name: str) -> int | None:
        """Of the attempt before the present one."""
        wait_for(lambda: len(self.attempts(name)) > 1 and self.attempts(name)[-2].ended_at is not None, 30)
        return self.attempts(name)[-2].exit_code

    def attempts(self, name: str) -> tuple[Attempt, ...]:
        answer = self.wait(self.rig.client.get(f"/v1/jobs/{name}"))
        return msgspec.json.decode(answer.content, type=JobDetail).attempts

    def ends_recorded_first(self, jobs: Jobs) -> int:
        return sum(self._recorded_first(name, number) for name in jobs.names for number in self._ended(name))

    def _ended(self, name: str) -> range:
        return range(1, self.state().jobs[name].attempt)

    def _recorded_first(self, name: str, number: int) -> bool:
        """Whether the end of an attempt was on disk before the process of the next one was made."""
        record, after = read_exit(self.rig.folder(name, number)), read_started(self.rig.folder(name, number + 1))
        return (
            record is not None and after is not None
            and record.signal == signal.SIGKILL and record.tree_empty[1] <= after.monotonic
        )  # fmt: skip

    def close(self) -> None:
        self.wait(self.rig.close())
        self.loop.close()
        shutil.rmtree(self.rig.workdir, ignore_errors=True)
        assert self.rig.holder("agent") is None or not alive(self.rig.holder("agent"))  # type: ignore[arg-type]
