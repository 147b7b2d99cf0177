"""The container itself: restarted, and with a first process that never waits for its orphans."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import msgspec
import pytest

from pipeline.agent.attempts.identity import Process, alive, identify, read_stat, send
from pipeline.agent.attempts.records import read_claim
from pipeline.protocol import History, JobState, RestartPolicy
from tests.agent.rig import NEVER, Rig, shell, survivors, until

S = JobState


def _may_unshare() -> bool:
    done = subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, check=False)
    return done.returncode == 0


pytestmark = pytest.mark.skipif(not _may_unshare(), reason="no right to make a pid namespace: needs root")


class Container:
    """A pid namespace of its own whose first process runs a script, then sleeps and waits for nobody."""

    def __init__(self, rig: Rig, script: str) -> None:
        environment = {**rig.environment, "SHELL": "/bin/sh"}
        self.said = rig.workdir / "said"
        self.said.unlink(missing_ok=True)
        self._unshare = subprocess.Popen(
            ["unshare", "-pf", "--mount-proc", "sh", "-c", f"({script}) > {self.said}; exec sleep 100000"],
            env=environment,
            start_new_session=True,
        )

    def first(self) -> Process | None:
        """Its pid 1, as it is known out here."""
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text().split()
        return identify(int(children[0])) if children else None

    def process(self, pid: int) -> Process:
        """The process that has a number in there."""
        first = self.first()
        assert first is not None
        space = Path(f"/proc/{first.pid}/ns/pid").readlink()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, StopIteration):
                if entry.name.isdigit() and (entry / "ns" / "pid").readlink() == space:
                    lines = (entry / "status").read_text().splitlines()
                    numbers = next(line for line in lines if line.startswith("NSpid:")).split()
                    found = identify(int(entry.name))
                    if int(numbers[-1]) == pid and found is not None:
                        return found
        raise AssertionError(f"no process {pid} in the container")

    def end(self) -> None:
        """Kill its first process, and so all."""
        first = self.first() if self._unshare.poll() is None else None
        if first is not None:
            send(first, signal.SIGKILL)
        self._unshare.kill() if first is None else None
        self._unshare.wait(30)


@pytest.fixture
def containers() -> Iterator[list[Container]]:
    """Those that the test started; ended with it."""
    started: list[Container] = []
    yield started
    for container in started:
        container.end()


async def answers(rig: Rig) -> int | None:
    with contextlib.suppress(httpx.TransportError):
        return (await rig.state()).agent.pid
    return None


async def remembered(rig: Rig, job: str) -> bool:
    answer = await rig.client.get("/v1/history", params={"job": job, "figure": "memory"})
    return any(msgspec.json.decode(answer.content, type=History).values)


async def test_a_restarted_container_lost_what_ran_and_the_start_script_goes_on(
    rig: Rig, containers: list[Container]
) -> None:
    containers.append(Container(rig, " ".join(rig.command("start"))))
    await until(partial(answers, rig), within=40, what="an agent in the container")
    runs = rig.workdir / "runs"
    await rig.apply(
        shell("a", f"echo a >> {runs}; sleep 1000; :", restart=NEVER),
        shell("b", f"echo b >> {runs}; sleep 1000; :", restart=RestartPolicy(limit=2)),
        shell("c", f"echo c >> {runs}; exit 0"),
        shell("d", f"echo d >> {runs}; sleep 1000; :"),
    )
    for name, state in (("a", S.RUNNING), ("b", S.RUNNING), ("c", S.DONE), ("d", S.RUNNING)):
        await rig.reach(name, state)
    await rig.act("d", "stop")
    done = [await rig.reach("c", S.DONE), await rig.reach("d", S.STOPPED)]
    await until(lambda: remembered(rig, "a"), within=30, what="memory in the history")
    assert sorted(runs.read_text().split()) == ["a", "b", "c", "d"]
    containers[0].end()
    await until(lambda: not survivors(rig.workdir), what="the end of all")
    assert (rig.runtime / "agent.sock").is_socket()  # as the dead agent left it

    # The image's entrypoint calls the script; somebody calls it by hand at the same time.
    script = rig.workdir / "agent" / "start"
    containers.append(Container(rig, f"{script} & {script} & wait"))
    await until(partial(answers, rig), within=40, what="an agent in the new container")
    status = await rig.reach("a", S.LOST)
    assert status.reason == "container restarted" and status.diagnosis is not None
    assert any(line.startswith("memory at the last sample: ") for line in status.diagnosis.evidence)
    again = await rig.reach("b", S.RUNNING)
    assert (again.attempt, again.restarts) == (2, 1)
    assert [await rig.status("c"), await rig.status("d")] == done
    assert sorted(runs.read_text().split()) == ["a", "b", "b", "c", "d"]
    said = containers[1].said
    await until(lambda: said.read_text().count("\n") == 2, within=40, what="two answers")
    first, second = said.read_text().splitlines()
    assert first == second and json.loads(first)["ok"]
    assert (len(running(rig, b"keeper.py")), len(running(rig, b"\0run\0"))) == (1, 1)


def running(rig: Rig, mark: bytes) -> list[Process]:
    """The living processes of the work directory with ``mark`` in their command line."""
    found = []
    for pid in survivors(rig.workdir):
        with contextlib.suppress(OSError):
            process = identify(pid)
            if mark in Path(f"/proc/{pid}/cmdline").read_bytes() and process is not None:
                found.append(process)
    return found


async def test_zombies_that_nobody_collects_are_dead(rig: Rig, containers: list[Container]) -> None:
    containers.append(Container(rig, " ".join(rig.command("start"))))
    container = containers[0]
    first = await until(partial(answers, rig), within=40, what="an agent in the container")
    gate = rig.workdir / "gate"
    await rig.apply(
        shell("a", f"while [ ! -e {gate} ]; do sleep 0.02; done; exit 7"),
        shell("b", "exec sleep 1000"),
        shell("c", "exec sleep 1000"),
    )
    for name in "abc":
        await rig.reach(name, S.RUNNING)
    # Without its agent a shim is an orphan: the container's first process is its parent, and does not wait for it.
    send(container.process(first), signal.SIGKILL)

    async def another() -> int | None:
        pid = await answers(rig)
        return pid if pid != first else None

    second = await until(another, what="another agent")
    shims = {}
    for name in "abc":
        claim = read_claim(rig.folder(name))
        assert claim is not None and (await rig.status(name)).state is S.RUNNING
        shims[name] = container.process(claim.pid)
    gate.touch()
    status = await rig.reach("a", S.FAILED)
    assert status.exit_code == 7 and zombie(shims["a"]) and not alive(shims["a"])

    main = (await rig.status("b")).pid
    assert main is not None
    job = container.process(main)
    send(shims["b"], signal.SIGKILL)
    await until(lambda: zombie(shims["b"]))
    assert (await rig.status("b")).state is S.RUNNING and alive(job)
    send(job, signal.SIGKILL)
    assert (await rig.reach("b", S.LOST)).exit_code is None
    assert zombie(job)

    await rig.act("c", "stop")
    await rig.reach("c", S.STOPPED)
    assert zombie(shims["c"])

    # Keeper and agent themselves, both as orphans.
    (keeper,) = running(rig, b"keeper.py")
    send(keeper, signal.SIGKILL)
    await until(lambda: running(rig, b"keeper.py"), what="another keeper")
    assert zombie(keeper)
    send(container.process(second), signal.SIGKILL)
    first = second
    await until(another, what="another agent")
    assert {name: (await rig.status(name)).state for name in "abc"} == {"a": S.FAILED, "b": S.LOST, "c": S.STOPPED}


def zombie(process: Process) -> bool:
    stat = read_stat(process.pid)
    return stat is not None and stat[3] == process.start and stat[0] == "Z"
