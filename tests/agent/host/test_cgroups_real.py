"""A job's own memory cgroup, with the kernel's own cgroups; and what is done where it can have none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.agent.attempts import job_cgroup
from pipeline.agent.attempts.identity import alive, identify
from pipeline.agent.attempts.records import read_claim, read_exit, read_started
from pipeline.agent.host import cgroups
from pipeline.agent.host.cgroups import Cgroup, home
from pipeline.protocol import JobState
from tests.agent.attempts.test_shim import run
from tests.agent.boxes import NO_CGROUPS, NO_LOWERING, box, memory_home, start_in
from tests.agent.rig import Rig, exists, shell, until
from tests.agent.sensing import until as until_now

S = JobState
MIB = 1 << 20


def own(folder: Path) -> str:
    """The memory cgroup of the job that runs in an attempt's folder."""
    started = read_started(folder)
    return started.cgroup if started is not None else ""


# --- The shim --------------------------------------------------------------------------------------------------------


def test_a_job_runs_in_a_cgroup_of_its_own_which_goes_with_it(tmp_path: Path) -> None:
    folder = memory_home() / f"ddtest-{os.getpid()}-own"
    script = f"{sys.executable} -I -S -c 'held = bytearray(60 << 20)'; grep memory /proc/self/cgroup"
    record = run(tmp_path, script, cgroup=str(folder), oom_counter="/elsewhere")
    started = read_started(tmp_path)
    assert started is not None and started.cgroup == str(folder) and started.refused == ()
    assert started.oom_counter == f"{folder}/memory.oom_control"
    assert (tmp_path / "log").read_text().strip().endswith(f"/{folder.name}")
    assert (record.oom_before, record.oom_after) == (0, 0)
    assert record.cgroup_peak is not None and 60 * MIB < record.cgroup_peak < 300 * MIB
    assert not folder.exists()


def test_the_kernel_counts_a_kill_where_the_job_is(tmp_path: Path, child_cgroup: Path) -> None:
    folder = child_cgroup / "job"
    (child_cgroup / "memory.limit_in_bytes").write_text("80M")
    code = "held = [bytearray(1 << 20) for _ in range(200)]"
    record = run(tmp_path, "", argv=[sys.executable, "-I", "-S", "-c", code], cgroup=str(folder))
    assert record.signal == signal.SIGKILL
    assert (record.oom_before, record.oom_after) == (0, 1)
    assert record.cgroup_peak is not None and 60 * MIB < record.cgroup_peak < 90 * MIB
    assert 60 * MIB < record.max_rss < 100 * MIB


def test_a_cgroup_that_was_left_is_made_anew(tmp_path: Path, child_cgroup: Path) -> None:
    folder = child_cgroup / "job"
    folder.mkdir()
    record = run(tmp_path, "true", cgroup=str(folder))
    assert record.exit_code == 0 and own(tmp_path) == str(folder) and not folder.exists()


def test_where_no_cgroup_can_be_made_the_job_runs_all_the_same(tmp_path: Path) -> None:
    counter = tmp_path / "memory.oom_control"
    counter.write_text("oom_kill 7\n")
    record = run(tmp_path, "exit 4", cgroup="/proc/no/cgroup", oom_counter=str(counter))
    started = read_started(tmp_path)
    assert record.exit_code == 4 and (record.oom_before, record.cgroup_peak) == (7, None)
    assert started is not None and (started.cgroup, started.oom_counter) == ("", str(counter))
    assert started.refused == ("a memory cgroup for each job: No such file or directory",)


def test_a_cgroup_that_cannot_be_entered_is_not_the_jobs(tmp_path: Path) -> None:
    # A plain folder can be made and removed, but no process can enter it.
    folder = tmp_path / "group"
    assert run(tmp_path, "exit 4", cgroup=str(folder)).exit_code == 4
    started = read_started(tmp_path)
    assert started is not None and started.cgroup == "" and len(started.refused) == 1 and not folder.exists()


def test_a_place_in_the_oom_order_that_is_refused_is_told(tmp_path: Path) -> None:
    # Below what it was given, a process may go only with CAP_SYS_RESOURCE: prctl(PR_CAPBSET_DROP, 24) takes it away.
    drop = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 24, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
    record = run(
        tmp_path, "cat /proc/self/oom_score_adj", oom_score_adj=-500, before=[sys.executable, "-I", "-S", "-c", drop]
    )
    started = read_started(tmp_path)
    assert record.exit_code == 0 and started is not None
    assert started.refused == ("oom_score_adj -500: Permission denied",)
    assert int((tmp_path / "log").read_text()) > -500
    folder = tmp_path / "raised"
    assert run(folder, "cat /proc/self/oom_score_adj; cat /proc/$PPID/oom_score_adj").exit_code == 0
    job, shim = (folder / "log").read_text().split()
    assert job == "500" and shim == Path("/proc/self/oom_score_adj").read_text().strip()


# --- The agent -------------------------------------------------------------------------------------------------------


async def test_memory_that_forked_workers_share_counts_once(agent: Rig) -> None:
    memory_home()
    code = f"""
import os, time
held = bytearray({100 * MIB})
for at in range(0, len(held), 4096): held[at] = 1
for _ in range(3):
    if os.fork() == 0: break
time.sleep(600)
"""
    script = agent.workdir / "share.py"
    script.write_text(code)
    await agent.apply(shell("a", f"exec {sys.executable} -I -S {script}"))
    await agent.reach("a", S.RUNNING)

    async def seen() -> int:
        sample = (await agent.state()).beat.jobs.get("a")
        return sample.memory or 0 if sample is not None and sample.processes == 4 else 0

    memory = await until(seen)
    assert 100 * MIB <= memory < 160 * MIB, "the sum over the processes would be 400 MiB"


async def test_what_left_tree_session_and_environment_is_found_when_the_shim_is_dead(agent: Rig) -> None:
    memory_home()
    pids = agent.workdir / "pids"
    script = f"env -i /bin/sh -c 'setsid sleep 1000 & echo $! > {pids}'; exec sleep 1000"
    await agent.apply(shell("a", script))
    status = await agent.reach("a", S.RUNNING)
    await until(lambda: exists(pids) and pids.read_text().strip())
    escaped = identify(int(pids.read_text()))
    claim = read_claim(agent.folder("a"))
    assert escaped is not None and claim is not None and status.pid is not None
    os.kill(claim.pid, signal.SIGKILL)
    await until(lambda: not alive(claim.process))
    os.kill(status.pid, signal.SIGKILL)
    status = await agent.reach("a", S.LOST)
    assert not alive(escaped)
    assert not exists(own(agent.folder("a")))


async def test_an_agent_sweeps_what_killed_shims_left(rig: Rig) -> None:
    with box() as populated:
        place = memory_home()
        young, old = (place / f"draftdeck-{os.getpid()}-{name}" for name in ("young", "old"))
        try:
            for folder in (young, old):
                folder.mkdir()
            os.utime(old, (0, 0))
            await rig.start()
            await until(lambda: not old.exists())
            assert young.exists() and populated.exists()
        finally:
            for folder in (young, old):
                job_cgroup.remove(str(folder))


async def test_what_the_kernel_refuses_is_no_failure_and_is_logged_once(rig: Rig) -> None:
    with box() as folder:
        await start_in(rig, folder, f"{NO_CGROUPS} && {NO_LOWERING}")
        lowered = {"oom_score_adj": -100}
        await rig.apply(shell("a", "sleep 600", **lowered), shell("b", "sleep 0.2", **lowered))
        await rig.reach("a", S.RUNNING)
        await rig.reach("b", S.DONE)
        assert own(rig.folder("a")) == own(rig.folder("b")) == ""
        record = read_exit(rig.folder("b"))
        assert record is not None and record.cgroup_peak is None

        async def sampled() -> int | None:
            sample = (await rig.state()).beat.jobs.get("a")
            return sample.memory if sample is not None else None

        assert await until(sampled) < 60 * MIB
        assert rig.log().count("a memory cgroup for each job: Read-only file system") == 1
        assert rig.log().count("oom_score_adj -100: Permission denied") == 1
        await rig.act("a", "stop")
        await rig.reach("a", S.STOPPED)


# --- Version 2 -------------------------------------------------------------------------------------------------------


def group_of_version_2(tmp_path: Path, *, delegated: bool, enabled: bool) -> Cgroup:
    folder = tmp_path / "service" / "agent"
    folder.mkdir(parents=True)
    (folder.parent / "cgroup.controllers").write_text("cpu memory\n")
    (folder / "cgroup.controllers").write_text("cpu memory\n" if enabled else "")
    # The kernel refuses to write it where there are processes: here because it is no file.
    (folder / "cgroup.subtree_control").mkdir()
    (folder.parent / "cgroup.subtree_control").write_text("memory\n" if enabled else "")
    if delegated:
        try:
            os.setxattr(folder.parent, "user.delegate", b"1")
        except OSError as error:
            pytest.skip(f"the temporary folder has no extended attributes: {error.strerror}")
    return Cgroup(2, folder, tmp_path)


def test_under_version_2_jobs_go_beside_the_agent_where_that_was_delegated(tmp_path: Path) -> None:
    group = group_of_version_2(tmp_path, delegated=True, enabled=False)
    assert home(group) == (tmp_path / "service", "")
    assert (tmp_path / "service" / "cgroup.subtree_control").read_text() == "+memory"


def test_under_version_2_no_job_escapes_the_limit_of_the_container(tmp_path: Path) -> None:
    folder, why = home(group_of_version_2(tmp_path, delegated=False, enabled=True))
    assert folder is None and "holds its processes itself" in why
    top = tmp_path / "service" / "agent"
    assert home(Cgroup(2, top, top))[0] is None


def test_under_version_2_without_a_memory_controller_there_are_none(tmp_path: Path) -> None:
    assert home(Cgroup(2, tmp_path, tmp_path)) == (None, "no memory controller is given to this cgroup")
    assert home(None) == (None, "no memory cgroup is mounted here")


def test_a_cgroup_of_version_2_is_entered_and_removed() -> None:
    group = next((cgroups.find(name) for name in ("", "hugetlb") if cgroups.find(name)), None)
    if group is None or group.version != 2 or not os.access(group.folder, os.W_OK):
        pytest.skip("no writable cgroup of version 2 here")
    folder = group.folder / f"ddtest-{os.getpid()}-v2"
    job_cgroup.make(str(folder))
    enter = f"import sys; sys.path.insert(0, {str(Path(cgroups.__file__).parents[3])!r})\n"
    enter += f"from pipeline.agent.attempts import job_cgroup; job_cgroup.enter({str(folder)!r}); input()"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", enter], stdin=subprocess.PIPE) as process:
        try:
            until_now(lambda: job_cgroup.members(str(folder)) == (process.pid,))
            job_cgroup.remove(str(folder))
            assert folder.exists(), "a cgroup with a process in it stays"
        finally:
            process.kill()
            process.wait()
            job_cgroup.remove(str(folder))
    assert not folder.exists()


def test_figures_of_version_2(tmp_path: Path) -> None:
    (tmp_path / "memory.stat").write_text("anon 5000\nfile 900\nshmem 300\nanon_thp 1\n")
    (tmp_path / "memory.peak").write_text("7000\n")
    (tmp_path / "memory.events").write_text("low 0\noom_kill 2\n")
    assert job_cgroup.held(str(tmp_path)) == 5300
    assert job_cgroup.peak(str(tmp_path)) == 7000
    assert job_cgroup.counter(str(tmp_path)) == str(tmp_path / "memory.events")
    nowhere = str(tmp_path / "nowhere")
    assert (job_cgroup.held(nowhere), job_cgroup.peak(nowhere), job_cgroup.members(nowhere)) == (None, None, ())
    assert (job_cgroup.held(""), job_cgroup.counter("")) == (None, "")
