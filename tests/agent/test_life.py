"""Agent, keeper and bridge as processes: upgrades, restarts of the container, services, and the ways in."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pipeline.agent import launch, paths
from pipeline.agent.attempts.identity import Process, alive, container_id, identify, send
from pipeline.agent.attempts.records import read_started
from pipeline.protocol import History, JobSpec, JobState, Need, Readiness, RestartPolicy
from tests.agent.rig import NEVER, RELEASE, ROOT, Rig, shell, until

S = JobState


async def test_an_upgrade_keeps_running_jobs_on_their_release(agent: Rig) -> None:
    (agent.workdir / "releases" / "rel2").symlink_to(ROOT)
    await agent.apply(shell("a", "exec sleep 100"))
    before = await agent.reach("a", S.RUNNING)
    old, keeper = agent.holder("agent"), agent.holder("keeper")
    assert old is not None and keeper is not None
    assert (await agent.post("/v1/upgrade?release=rel2")).done
    await agent.replaced("agent", old, within=5)

    async def moved() -> bool:
        with contextlib.suppress(Exception):
            state = await agent.state()
            return state.agent.release == "rel2" and state.agent.keeper
        return False

    await until(moved)
    assert await agent.status("a") == before
    assert keeper == agent.holder("keeper") and b"/releases/rel2/" in command_line(keeper.pid)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(("part", "reason"), [(1, "container restarted"), (0, "host rebooted")])
async def test_after_a_restart_of_the_container_what_ran_is_lost(agent: Rig, part: int, reason: str) -> None:
    policy = RestartPolicy(limit=2)
    await agent.apply(shell("a", "exec sleep 100", restart=NEVER), shell("b", "exec sleep 100", restart=policy))
    for name in ("a", "b"):
        await agent.reach(name, S.RUNNING)

    async def kept() -> bool:
        answer = await agent.client.get("/v1/history", params={"job": "a", "figure": "memory"})
        return any(msgspec.json.decode(answer.content, type=History).values)

    if part == 1:
        await until(kept)
    assert (await asyncio.to_thread(agent.call, "stop"))["ok"]
    for name in ("a", "b"):
        # As after a restart: all processes are gone, and the claim was made in a container of another identity.
        folder = agent.folder(name)
        claim = json.loads((folder / "claim").read_text())
        os.kill(claim["pid"], signal.SIGKILL)
        started = read_started(folder)
        assert started is not None
        os.kill(started.pid, signal.SIGKILL)
        fields = claim["container"].split(":")
        fields[part] = "1"
        (folder / "claim").write_text(json.dumps({**claim, "container": ":".join(fields)}))
    await agent.start()
    status = await agent.reach("a", S.LOST)
    assert status.reason == reason and status.diagnosis is not None
    seen = any(line.startswith("memory at the last sample: ") for line in status.diagnosis.evidence)
    assert seen or part == 0
    assert (await agent.attempted("b", 2)).restarts == 1


async def test_an_attempt_nobody_claimed_is_abandoned_and_done_anew(agent: Rig) -> None:
    await agent.apply(shell("a", "echo ran; exec sleep 100"))
    await agent.reach("a", S.RUNNING)
    assert (await asyncio.to_thread(agent.call, "stop"))["ok"]
    folder = agent.folder("a")
    claim, started = json.loads((folder / "claim").read_text()), read_started(folder)
    assert started is not None
    os.kill(claim["pid"], signal.SIGKILL)
    os.kill(started.pid, signal.SIGKILL)
    # As if the agent had been killed between the journal and the shim.
    for name in ("claim", "started.json", "log"):
        (folder / name).unlink()
    await agent.start()
    status = await agent.attempted("a", 2)
    assert (await agent.reach("a", S.RUNNING)).restarts == status.restarts == 0
    assert json.loads((folder / "claim").read_text())["owner"] == "abandoned"


SERVER = """
import json, sys, http.server
port, model, ready = int(sys.argv[1]), sys.argv[2], sys.argv[3]
import os
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, value, code=200, kind="application/json"):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(code); self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_GET(self):
        if self.path == "/health": return self.answer({}, 200 if os.path.exists(ready) else 503)
        if self.path == "/model_info": return self.answer({"model_path": model})
        if self.path == "/server_info": return self.answer({"max_running_requests": 8})
        if self.path == "/metrics": return self.answer(b"sglang:num_running_reqs 3.0\\n", 200, "text/plain")
        self.answer({}, 404)
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer({"text": "26", "meta_info": {"completion_tokens": 8}})
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def server(rig: Rig, port: int, model: str) -> JobSpec:
    ready = str(rig.workdir / "ready")
    return JobSpec(
        "serve:x", "serve", (sys.executable, "-c", SERVER, str(port), "tiny", ready), restart=NEVER, service=True,
        readiness=Readiness(f"http://127.0.0.1:{port}", model),
    )  # fmt: skip


async def test_a_server_becomes_ready_and_lets_others_start(agent: Rig, unused_tcp_port: int) -> None:
    spec = server(agent, unused_tcp_port, "tiny")
    await agent.apply(spec, shell("g", "true", needs=(Need("serve:x", "ready"),)))
    await agent.reach("serve:x", S.RUNNING)
    await agent.says("serve:x", "503")
    assert (await agent.status("g")).reason == "waits for serve:x"
    (agent.workdir / "ready").touch()
    await agent.reach("serve:x", S.READY)
    await agent.reach("g", S.DONE)

    async def figures() -> bool:
        sample = (await agent.state()).beat.jobs["serve:x"].server
        return sample is not None and sample.running == 3

    await until(figures)


async def test_a_server_is_attended_again_once_its_readiness_is_asked_for_again(
    agent: Rig, unused_tcp_port: int
) -> None:
    spec = server(agent, unused_tcp_port, "tiny")
    behind = shell("g", "true", needs=(Need("serve:x", "ready"),), autostart=False)
    await agent.apply(spec, behind)
    before = await agent.reach("serve:x", S.RUNNING)
    await agent.says("serve:x", "503")
    await agent.apply(replace(spec, readiness=None), behind)
    assert (await agent.reach("serve:x", S.READY)).reason == "its readiness is not asked for"
    await agent.apply(spec, behind)
    await agent.reach("serve:x", S.RUNNING)
    await agent.says("serve:x", "503")
    (agent.workdir / "ready").touch()
    status = await agent.reach("serve:x", S.READY)
    assert (status.attempt, status.pid, status.reason) == (1, before.pid, "")
    await agent.act("g", "start")
    await agent.reach("g", S.DONE)


async def test_the_figures_of_a_server_are_waited_for_in_words_after_an_agent_has_died(
    agent: Rig, unused_tcp_port: int
) -> None:
    (agent.workdir / "ready").touch()
    await agent.apply(server(agent, unused_tcp_port, "tiny"))
    status = await agent.reach("serve:x", S.READY)
    old = agent.holder("agent")
    assert old is not None and status.pid is not None
    os.kill(status.pid, signal.SIGSTOP)  # a look takes its time now
    os.kill(old.pid, signal.SIGKILL)
    await agent.replaced("agent", old)

    async def said() -> str:
        sample = (await agent.heard_all()).get("serve:x")
        return sample.server.step if sample is not None and sample.server is not None else ""

    first = await until(said)
    assert first == "waiting for the first look" or first.startswith("has not answered for"), first
    os.kill(status.pid, signal.SIGCONT)

    async def figures() -> bool:
        sample = (await agent.heard_all()).get("serve:x")
        return sample is not None and sample.server is not None and sample.server.running == 3

    await until(figures, within=40)


async def test_a_wrong_server_is_stopped_and_said_why(agent: Rig, unused_tcp_port: int) -> None:
    (agent.workdir / "ready").touch()
    await agent.apply(server(agent, unused_tcp_port, "other"))
    status = await agent.reach("serve:x", S.FAILED)
    assert status.reason == "serves tiny, the plan says other" and status.restarts == 0
    # Figures of a server that has gone are not shown as if it were there.
    assert (await agent.state()).beat.jobs["serve:x"].server is None


async def test_a_stalled_job_is_told_and_goes_on(agent: Rig) -> None:
    line = json.dumps({"progress": {"at": 1.0, "phase": "later", "done": 1}})
    script = f"while [ ! -e go ]; do sleep 0.02; done; echo '{line}' >> $DRAFTDECK_PROGRESS; exec sleep 100"
    await agent.apply(shell("a", script, stall_s=0.5))
    status = await agent.reach("a", S.STALLED)
    assert "no progress for" in status.reason
    (agent.workdir / "go").touch()
    await agent.reach("a", S.RUNNING)


async def test_memory_decides_who_starts(agent: Rig) -> None:
    from pipeline.protocol import Resources

    limit = (await agent.state()).beat.host.memory_limit  # type: ignore[union-attr]
    most = int(0.6 * limit)
    await agent.apply(*(shell(name, "exec sleep 100", resources=Resources(most)) for name in ("a", "b")))
    states = await until(lambda: _settled(agent))
    assert sorted(states) == [S.QUEUED, S.RUNNING]
    first, second = ("a", "b") if (await agent.status("a")).state is S.RUNNING else ("b", "a")
    assert "left" in (await agent.status(second)).reason
    await agent.act(first, "stop")
    await agent.reach(second, S.RUNNING)


async def _settled(rig: Rig) -> list[JobState]:
    states = [status.state for status in (await rig.state()).jobs.values()]
    return states if S.RUNNING in states and S.QUEUED in states else []


async def test_the_bridge_carries_a_request_and_ends_with_its_reader(agent: Rig) -> None:
    script = str(Path(paths.release_dir(agent.workdir, RELEASE)) / "pipeline" / "agent" / "bridge.py")
    command = [sys.executable, "-I", "-S", script, "--workdir", str(agent.workdir)]
    request = b"GET /v1/state HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    done = await asyncio.to_thread(subprocess.run, command, input=request, capture_output=True, timeout=10)
    assert (
        done.returncode == 0 and done.stdout.startswith(b"HTTP/1.1 200") and str(agent.workdir).encode() in done.stdout
    )
    await asyncio.to_thread(read_a_line_and_leave, [*command, "--read-only"])


def read_a_line_and_leave(command: list[str]) -> None:
    """A stream ends with the bridge when its reader has gone, though stdin is still open."""
    bridge = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert bridge.stdin is not None and bridge.stdout is not None
    bridge.stdin.write(b"GET /v1/events?since=0 HTTP/1.1\r\nHost: a\r\n\r\n")
    bridge.stdin.flush()
    assert bridge.stdout.readline() == b"HTTP/1.1 200 OK\r\n"
    began = time.monotonic()
    bridge.stdout.close()
    assert bridge.wait(10) == 0
    assert time.monotonic() - began < 1.9  # it does not wait for the next beat
    bridge.stdin.close()


async def test_the_bridge_says_when_there_is_no_agent(rig: Rig) -> None:
    done = await asyncio.to_thread(
        subprocess.run, rig.command("bridge"), env=rig.environment, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 69 and b"no agent at" in done.stderr


async def test_secrets_are_kept_private(rig: Rig) -> None:
    assert rig.call("secret", "set", "HF_TOKEN", text="abc\n") == {"ok": True}
    kept = rig.runtime / "secrets" / "HF_TOKEN"
    assert kept.read_text() == "abc" and kept.stat().st_mode & 0o777 == 0o600
    assert not rig.call("secret", "set", "../x", text="abc")["ok"]


async def test_a_runtime_directory_open_to_others_is_refused(rig: Rig) -> None:
    rig.runtime.chmod(0o755)
    answer = rig.call("start")
    assert not answer["ok"] and "chmod 700" in answer["error"]
    rig.runtime.chmod(0o700)


async def test_the_start_script_brings_the_agent_back(agent: Rig) -> None:
    assert (await asyncio.to_thread(agent.call, "start"))["ok"]
    assert (await asyncio.to_thread(agent.call, "stop"))["ok"]
    script = agent.workdir / "agent" / "start"
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    for _ in range(2):
        done = await asyncio.to_thread(subprocess.run, [str(script)], env=environment, capture_output=True, timeout=40)
        assert json.loads(done.stdout)["ok"], done.stderr
    assert agent.holder("agent") is not None


async def test_jobs_may_be_stopped_with_the_agent(agent: Rig) -> None:
    await agent.apply(shell("a", "exec sleep 1000"))
    await agent.reach("a", S.RUNNING)
    started = read_started(agent.folder("a"))
    assert started is not None
    answer = await asyncio.to_thread(agent.call, "stop", "--jobs")
    assert answer["ok"] and not alive(started.process)
    answer = await asyncio.to_thread(agent.call, "stop", "--jobs")
    assert not answer["ok"] and "no agent runs" in answer["error"]
    assert (await asyncio.to_thread(agent.call, "stop"))["ok"]


async def test_a_login_shell_that_hangs_does_not_hold_up_the_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = rig.workdir / "hanging-shell"
    hanging.write_text(f"#!/bin/sh\necho $$ > {rig.workdir}/asked; exec sleep 1000\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("SHELL", str(hanging))
    await rig.start()
    await until(lambda: (rig.workdir / "asked").exists() and (rig.workdir / "asked").read_text())
    asked = identify(int((rig.workdir / "asked").read_text()))
    agent = rig.holder("agent")
    assert asked is not None and agent is not None
    send(agent, signal.SIGTERM)
    await until(lambda: not alive(agent))
    assert alive(asked)
    send(asked, signal.SIGKILL)


async def test_a_lock_that_a_stranger_holds_makes_no_storm_of_agents(rig: Rig) -> None:
    handle = os.open(rig.runtime / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    launch.spawn_keeper(rig.workdir, rig.runtime)
    log = rig.runtime / "keeper.log"
    await until(lambda: log.exists() and "the next one starts in 0.8 s" in log.read_text())
    os.close(handle)
    await until(lambda: rig.holder("agent"))


def test_a_signal_reaches_only_the_process_it_is_meant_for() -> None:
    child = subprocess.Popen(["sleep", "100"])
    found = identify(child.pid)
    assert found is not None and alive(found)
    assert not send(Process(child.pid, found.start - 1), signal.SIGKILL) and child.poll() is None
    assert send(found, signal.SIGKILL)
    # Not waited for, it is a zombie: dead, though pid and start time are still there.
    deadline = time.monotonic() + 5
    while alive(found):
        assert time.monotonic() < deadline
    assert identify(child.pid) == found and not send(found, signal.SIGKILL)
    child.wait()
    assert len(container_id().split(":")) == 3
