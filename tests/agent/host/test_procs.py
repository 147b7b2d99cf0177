from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.agent.attempts.identity import Process
from pipeline.agent.attempts.run import Run
from pipeline.agent.host import procs
from pipeline.agent.host.procs import (
    Proc,
    Table,
    memory,
    parse_shm,
    parse_stat,
    read_proc,
    snapshot,
    tree_memory,
    tree_use,
)
from pipeline.agent.host.senses import Senses
from tests.agent.sensing import python, until

MIB = 1 << 20


def _proc(pid: int, ppid: int, *, start: int = 1, state: str = "S") -> Proc:
    return Proc(pid=pid, start=start, ppid=ppid, state=state, cpu_s=1.0)


def _start(pid: int) -> int:
    found = read_proc(pid)
    assert found is not None
    return found.start


@given(
    name=st.binary(max_size=20),
    pid=st.integers(1, 4_000_000),
    ppid=st.integers(0, 4_000_000),
    ticks=st.lists(st.integers(0, 10**9), min_size=4, max_size=4),
    start=st.integers(0, 2**63),
)
def test_stat_is_read_whatever_the_process_calls_itself(
    name: bytes, pid: int, ppid: int, ticks: list[int], start: int
) -> None:
    numbers = [0] * 9 + ticks + [20, 0, 1, 0, start, 4096, 7] + [0] * 28
    fields = " ".join(str(number) for number in numbers)
    found = parse_stat(b"%d (%s) S %d %s\n" % (pid, name, ppid, fields.encode()))
    assert found is not None
    assert (found.pid, found.ppid, found.start, found.state) == (pid, ppid, start, "S")
    assert found.cpu_s == sum(ticks) / procs.TICKS


@given(st.binary(max_size=200))
def test_stat_of_rubbish_is_none_or_a_process(line: bytes) -> None:
    found = parse_stat(line)
    assert found is None or found.pid >= 0 or line.lstrip().startswith(b"-")


def test_own_process_is_found_as_the_kernel_tells_it() -> None:
    me = snapshot().procs[os.getpid()]
    assert me.ppid == os.getppid()
    assert me.state == "R"
    status = Path(f"/proc/{os.getpid()}/status").read_bytes()
    anon = int(status.partition(b"RssAnon:")[2].split()[0]) * 1024
    assert abs(memory(me.pid).anon - anon) < 16 * MIB  # the two are read at different moments
    assert abs(me.cpu_s - sum(os.times()[:4])) < 0.5


def test_a_tree_holds_children_that_left_the_session() -> None:
    code = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("ready", flush=True)
    time.sleep(600)
time.sleep(600)
"""
    with python(code) as root:
        tree = until(lambda: found if len(found := snapshot().tree(root.pid, _start(root.pid))) == 3 else ())
        assert tree[0].pid == root.pid
        assert tree[1].ppid == root.pid
        assert tree[2].ppid == tree[1].pid
        assert tree_use(tree).processes == 3
        for proc in tree[1:]:
            os.kill(proc.pid, signal.SIGKILL)


def test_a_pid_given_to_another_process_is_not_the_job() -> None:
    with python("print('ready', flush=True); input()") as process:
        table = snapshot()
        start = _start(process.pid)
        assert table.alive(process.pid, start)
        assert not table.alive(process.pid, start - 1)
        assert table.tree(process.pid, start - 1) == ()


def test_a_zombie_is_dead() -> None:
    with python("print('ready', flush=True); input()") as process:
        start = _start(process.pid)
        process.kill()
        until(lambda: snapshot().procs[process.pid].dead)
        table = snapshot()
        assert not table.alive(process.pid, start)
        assert table.tree(process.pid, start) == ()
    assert snapshot().tree(process.pid, start) == ()


def test_a_process_whose_main_thread_ended_lives_on() -> None:
    code = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(60, 0)  # exit of this thread alone
"""
    with python(code) as process:
        start = _start(process.pid)

        def main_thread_ended() -> bool:
            return b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes()

        until(main_thread_ended)
        assert snapshot().alive(process.pid, start)


def test_a_cycle_in_the_table_ends() -> None:
    table = Table([_proc(1, 2), _proc(2, 1)])
    assert [proc.pid for proc in table.tree(1, 1)] == [1, 2]


def test_dead_children_do_not_count() -> None:
    table = Table([_proc(1, 0), _proc(2, 1, state="Z"), _proc(3, 1)])
    assert [proc.pid for proc in table.tree(1, 1)] == [1, 3]


def test_memory_is_private_pages_of_all_and_shared_pages_once() -> None:
    code = f"""
import mmap, os, time
shared = mmap.mmap(-1, {96 * MIB})
for at in range(0, {96 * MIB}, 4096):
    shared[at] = 1
ready, go = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        for at in range(0, {96 * MIB}, 4096):
            shared[at]
        private = bytearray({20 * MIB})
        os.write(go, b"r")
        time.sleep(600)
for _ in range(3):
    os.read(ready, 1)
print("ready", flush=True)
time.sleep(600)
"""
    with python(code) as root:
        tree = snapshot().tree(root.pid, _start(root.pid))
        assert tree_use(tree).processes == 4
        assert all(memory(proc.pid).shm >= 96 * MIB for proc in tree)
        assert 156 * MIB <= tree_memory(tree) < 220 * MIB  # 3 × 20 and 96, and what four interpreters need
        for proc in tree[1:]:
            os.kill(proc.pid, signal.SIGKILL)


def test_cpu_time_of_a_tree_does_not_fall_when_a_child_ends() -> None:
    code = """
import os, time
if os.fork() == 0:
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(600)
"""
    with python(code) as root:
        assert tree_use(snapshot().tree(root.pid, _start(root.pid))).cpu_s >= 0.25


def test_shared_memory_is_nothing_where_the_kernel_does_not_tell() -> None:
    assert parse_shm(b"Name:\tx\nRssShmem:\t    128 kB\n") == 128 * 1024
    assert parse_shm(b"Name:\tx\n") == 0
    assert parse_shm(b"RssShmem:") == 0


def test_an_empty_tree_uses_nothing() -> None:
    use = tree_use(())
    assert (use.cpu_s, use.processes, tree_memory(())) == (0, 0, 0)


def test_one_pass_over_many_processes_is_cheap() -> None:
    code = """
import os, time
for _ in range(250):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
print("ready", flush=True)
time.sleep(600)
"""
    with python(code) as root:
        start = _start(root.pid)
        costs = []
        for _ in range(9):
            began = time.thread_time()
            table = snapshot()
            costs.append((time.thread_time() - began) / len(table.procs))
        tree = table.tree(root.pid, start)
        for proc in tree[1:]:
            os.kill(proc.pid, signal.SIGKILL)
        assert len(tree) == 251
        assert min(costs) < 200e-6, "seconds of CPU time a process"


def test_all_jobs_are_sampled_by_one_pass_over_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    listing = os.listdir

    def counted(path: str | Path = ".") -> list[str]:
        if str(path) == "/proc":
            passes.append(path)
        return listing(path)

    monkeypatch.setattr(os, "listdir", counted)
    code = """
import os, time
if os.fork() == 0: time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""
    senses = Senses(tmp_path)
    with ExitStack() as stack:
        runs = []
        for number in range(5):
            process = stack.enter_context(python(code))
            folder = tmp_path / str(number)
            folder.mkdir()
            runs.append(Run(f"j{number}", 1, "rel", folder, main=Process(process.pid, _start(process.pid))))
        passes.clear()
        _, seen = senses.look(tuple(runs))
        assert len(passes) == 1
        assert [found.sample.processes for found in seen.values()] == [2] * 5
        for run in runs:
            assert run.main is not None
            for child in snapshot().tree(run.main.pid, run.main.start)[1:]:
                os.kill(child.pid, signal.SIGKILL)
    senses.close()
