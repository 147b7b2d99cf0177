"""The shim that waits for an attempt: taken once, replaced when it does not answer, gone when the agent is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from pipeline.agent.attempts import handover
from pipeline.agent.attempts.identity import Process, alive, identify, read_stat, send
from pipeline.agent.attempts.records import claimed, find_shim, read_claim, read_exit, read_started
from pipeline.agent.attempts.run import SHIM, Ending, Run, follow, prepare
from pipeline.agent.attempts.spare import Spare
from pipeline.protocol import JobSpec, JobState, RestartPolicy
from tests.agent.rig import Rig, shell, survivors, until

S = JobState
SECRET = "hf_verysecretvalue"


def waiting(workdir: Path) -> list[Process]:
    """The shims that wait for an attempt of this work directory."""
    found = []
    for pid in survivors(workdir):
        with contextlib.suppress(OSError):  # it has just ended
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            process = identify(pid)
            # One that has an attempt works in the attempt's folder.
            taken = Path(f"/proc/{pid}/cwd").readlink().is_relative_to(workdir / "jobs")
            if handover.SPARE.encode() in argv and process is not None and not taken:
                found.append(process)
    return found


async def one_waits(workdir: Path) -> Process:
    """The shim that waits, once it reads its pipe."""

    def look() -> Process | None:
        found = [process for process in waiting(workdir) if blocked_in_read(process.pid)]
        return found[0] if len(found) == 1 else None

    process: Process = await until(look, what="a waiting shim")
    return process


def proc(process: Process, name: str) -> bytes:
    return Path(f"/proc/{process.pid}/{name}").read_bytes()


def blocked_in_read(pid: int) -> bool:
    try:
        call = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:
        return False
    return call[0] in ("0", "63") and call[1] == "0x0"  # read, on x86 and on ARM


@pytest.fixture
async def spare(tmp_path: Path) -> AsyncIterator[Spare]:
    made = Spare(tmp_path)
    yield made
    made.close()
    await until(lambda: not waiting(tmp_path))


def attempt(workdir: Path, script: str, number: int = 1) -> tuple[Run, dict[str, str]]:
    run = Run("a", number, "rel", workdir / "jobs" / "a" / str(number), grace_s=1.0)
    spec = JobSpec("a", "demo", ("/bin/sh", "-c", script), secrets=("TOKEN",), stop_grace_s=1.0)
    return run, prepare(run, spec, {"PATH": os.environ["PATH"], "TOKEN": SECRET}, workdir, workdir)


async def ended(run: Run, word: int | None) -> Ending:
    assert word is not None
    return await asyncio.wait_for(follow(run, word, lambda _: None), 20)


async def test_the_shim_that_waits_takes_the_attempt(spare: Spare, tmp_path: Path) -> None:
    spare.prepare()
    shim = await one_waits(tmp_path)
    run, secrets = attempt(tmp_path, 'echo "$TOKEN"; exit 7')
    ending = await ended(run, await spare.start(run, secrets))
    claim = read_claim(run.folder)
    assert claim is not None and claim.process == shim
    assert ending.exit is not None and ending.exit.exit_code == 7
    assert run.log.read_text() == f"{SECRET}\n"
    assert not alive(shim) and identify(shim.pid) != shim  # collected, too
    assert await one_waits(tmp_path) != shim


async def test_secrets_are_in_the_job_and_nowhere_else(spare: Spare, tmp_path: Path) -> None:
    spare.prepare()
    shim = await one_waits(tmp_path)
    run, secrets = attempt(tmp_path, "exec sleep 1000")
    word = await spare.start(run, secrets)
    started = read_started(run.folder)
    assert started is not None
    await until(lambda: SECRET.encode() in proc(started.process, "environ"))
    assert SECRET.encode() not in proc(shim, "cmdline") and SECRET.encode() not in proc(shim, "environ")
    assert all(SECRET.encode() not in path.read_bytes() for path in run.folder.iterdir())
    assert find_shim(run.folder) == shim and find_shim(run.folder.with_name("2")) is None
    run.end(kill=True)
    await ended(run, word)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_one_that_does_not_answer_is_replaced(spare: Spare, tmp_path: Path, number: int) -> None:
    spare.prepare()
    shim = await one_waits(tmp_path)
    send(shim, number)
    run, secrets = attempt(tmp_path, "echo ran; exit 7")
    ending = await ended(run, await spare.start(run, secrets))
    claim = read_claim(run.folder)
    assert claim is not None and claim.process != shim and not alive(shim)
    assert ending.exit is not None and ending.exit.exit_code == 7 and run.log.read_text() == "ran\n"
    await one_waits(tmp_path)


async def test_a_stop_while_it_does_not_answer_is_obeyed(spare: Spare, tmp_path: Path) -> None:
    spare.prepare()
    shim = await one_waits(tmp_path)
    send(shim, signal.SIGSTOP)
    run, secrets = attempt(tmp_path, "echo ran")
    starting = asyncio.create_task(spare.start(run, secrets))
    await until(lambda: run.shim == shim)
    run.stop_by = "tester"
    run.end()
    assert await starting is None
    assert not alive(shim) and not claimed(run.folder) and not run.log.exists()


async def test_of_ten_at_once_one_takes_it_and_each_runs_once(spare: Spare, tmp_path: Path) -> None:
    spare.prepare()
    shim = await one_waits(tmp_path)
    attempts = [attempt(tmp_path, "echo ran", number) for number in range(1, 11)]
    words = await asyncio.gather(*(spare.start(run, secrets) for run, secrets in attempts))
    await asyncio.gather(*(ended(run, word) for (run, _), word in zip(attempts, words, strict=True)))
    claims = [read_claim(run.folder) for run, _ in attempts]
    assert [claim is not None and claim.process == shim for claim in claims] == [True] + [False] * 9
    assert all(run.log.read_text() == "ran\n" for run, _ in attempts)


def test_one_without_an_errand_ends_with_the_agent_and_claims_nothing(tmp_path: Path) -> None:
    run, secrets = attempt(tmp_path, "echo ran")
    read, write = os.pipe()
    assert handover.give(write, str(run.folder), secrets)
    line = os.read(read, 65536)
    os.close(read)
    os.close(write)
    for part in (b"", line[: len(line) // 2], line[:-1]):
        done = subprocess.run([*SHIM, handover.SPARE, str(tmp_path)], input=part, timeout=20, check=False)
        assert done.returncode == 0 and not claimed(run.folder)
    done = subprocess.run([*SHIM, handover.SPARE, str(tmp_path)], input=line, timeout=20, check=False)
    assert done.returncode == 0 and run.log.read_text() == "ran\n"


async def test_one_that_cannot_take_all_at_once_is_not_waited_for(spare: Spare, tmp_path: Path) -> None:
    spare.prepare()
    shim = await one_waits(tmp_path)
    send(shim, signal.SIGSTOP)
    run, secrets = attempt(tmp_path, 'echo "${#LONG}"')
    long = {**secrets, "LONG": "x" * 100_000}  # more than a pipe holds
    (run.folder / "spec.json").write_text(
        (run.folder / "spec.json").read_text().replace('"secrets":[', '"secrets":["LONG",')
    )
    ending = await ended(run, await spare.start(run, long))
    assert ending.exit is not None and ending.exit.exit_code == 0 and run.log.read_text() == "100000\n"
    assert not alive(shim)


async def test_a_waiting_shim_is_small(spare: Spare, tmp_path: Path) -> None:
    spare.prepare()
    shim = await one_waits(tmp_path)
    rollup = proc(shim, "smaps_rollup").splitlines()
    private = sum(int(line.split()[1]) for line in rollup if line.startswith(b"Private_"))
    assert private < 6 * 1024, f"{private} KiB"
    stat = read_stat(shim.pid)
    assert stat is not None and stat[2] == shim.pid  # a session of its own


async def test_the_agent_killed_around_a_start_starts_nothing_twice(agent: Rig) -> None:
    always = RestartPolicy(when="always", limit=1000, healthy_s=0.0)
    await agent.apply(shell("a", "echo $$; exec sleep 1000", restart=always))
    await agent.reach("a", S.RUNNING)
    await until(lambda: running(agent.workdir))
    for turn in range(6):
        await one_waits(agent.workdir)
        (before,) = running(agent.workdir)
        old = agent.holder("agent")
        assert old is not None
        os.kill(before, signal.SIGKILL)
        await asyncio.sleep(0.004 * turn)
        send(old, signal.SIGKILL)
        await agent.replaced("agent", old, within=20)
        await agent.start()
        # Whoever of the two agents has started it: one process of it runs, and the agent knows which.
        await until(lambda before=before: running(agent.workdir) not in ([], [before]))  # type: ignore[misc]
        (after,) = running(agent.workdir)
        await until(partial(known, agent, after), within=30)
    ran = [path.read_text() for path in agent.workdir.glob("jobs/a/*/log")]
    assert all(text.count("\n") == 1 for text in ran)
    attempts = [int(folder.name) for folder in agent.workdir.glob("jobs/a/*")]
    for number in range(1, max(attempts)):
        claim = read_claim(agent.folder("a", number))
        record = read_exit(agent.folder("a", number))
        assert claim is not None
        assert (record is not None and record.signal == signal.SIGKILL) is (claim.owner == "shim")


async def known(agent: Rig, pid: int) -> bool:
    status = await agent.status("a")
    return (status.state, status.pid) == (S.RUNNING, pid)


def running(workdir: Path) -> list[int]:
    found = []
    for pid in survivors(workdir):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x001000\x00":
                found.append(pid)
    return found


async def test_a_spare_ends_with_its_agent(agent: Rig) -> None:
    shim = await one_waits(agent.workdir)
    old = agent.holder("agent")
    assert old is not None
    send(old, signal.SIGKILL)
    await until(lambda: not alive(shim))
    await agent.replaced("agent", old, within=20)
    await agent.start()
    after = await one_waits(agent.workdir)
    assert after != shim
    assert (await asyncio.to_thread(agent.call, "stop"))["ok"]
    await until(lambda: not alive(after))
