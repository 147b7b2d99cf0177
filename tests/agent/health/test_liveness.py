"""Whether a server lives: over successive checks, against the reference server, and against one whose engine hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.agent.health.liveness import Check, Pulse, after, must_be_asked
from pipeline.agent.health.server_probe import ServerProbe
from pipeline.protocol import Checks, JobSpec, JobState, Need, Readiness, RestartPolicy
from pipeline.serve.metrics import parse
from tests.agent.rig import NEVER, ROOT, Rig, exists, shell, until
from tests.tiny import reference_server
from tests.waiting import free_port

S = JobState
CHECKS = Checks(start_s=60.0, interval_s=30.0, timeout_s=30.0, threshold=3)
SGLANG = """
sglang:num_running_reqs{{model_name="m",tp_rank="0"}} {running}
sglang:num_queue_reqs{{model_name="m",tp_rank="0"}} {queued}
sglang:gen_throughput{{model_name="m",tp_rank="0"}} {tok_s}
sglang:num_aborted_requests_total{{model_name="m"}} {aborted}
sglang:generation_tokens_total{{model_name="m"}} {generated}
sglang:inter_token_latency_seconds_count{{model_name="m"}} {tokens}
"""


def check(at: float, token: str | None = None, *, batches: bool = False, **figures: float) -> Check:
    """A check of a server with 150 requests in it; a figure that is named differs."""
    shown = {"running": 150, "queued": 0, "tok_s": 830.5, "aborted": 0, "generated": 7e6, "tokens": 7.4e6, **figures}
    found = parse(SGLANG.format(**shown))
    return Check(at, found.work, (found.running or 0) + (found.queued or 0), batches, token)


def pulse_after(*checks: Check) -> Pulse:
    pulse = Pulse(0.0)
    for one in checks:
        pulse = after(pulse, one, CHECKS, ready_at=0.0)
    return pulse


def test_figures_that_stand_still_while_requests_run_are_a_dead_scheduler() -> None:
    """A gauge keeps its last value: 830 tok/s are shown for ever."""
    pulse = pulse_after(*(check(at) for at in (100, 130, 160)))
    assert pulse.failed(CHECKS) and (pulse.seen_at, pulse.trouble) == (0.0, "with 150 requests in it")
    # What the HTTP server counts by itself is no sign of life.
    assert pulse_after(check(100), check(130, aborted=3), check(160, queued=9)).failed(CHECKS)


def test_one_figure_that_moves_is_life() -> None:
    moved = (check(160, tokens=7.5e6), check(160, generated=7.1e6), check(160, tok_s=831.0), check(160, running=149))
    for one in moved:
        pulse = pulse_after(check(100), check(130), one)
        assert (pulse.misses, pulse.seen_at) == (0, 160)


def test_a_line_about_a_batch_is_life() -> None:
    """A prompt of 100,000 tokens is computed in pieces; each has its line, and no token comes for minutes."""
    assert pulse_after(check(100), check(130), check(160, batches=True), check(190)).misses == 1
    unseen = Check(130, work=None, busy=None, batches=True)
    assert not must_be_asked(pulse_after(check(100)), unseen)


def test_an_idle_server_is_asked_for_a_token() -> None:
    idle = check(130, running=0)
    pulse = pulse_after(check(100, running=0))
    assert must_be_asked(pulse, idle) and not must_be_asked(pulse, check(130))
    assert must_be_asked(pulse, Check(130))  # nothing at all can be read
    assert pulse_after(check(100, "", running=0), check(130, "", running=0), check(160, "", running=0)).misses == 0
    pulse = pulse_after(*(check(at, "/generate: ReadTimeout", running=0) for at in (100, 130, 160)))
    assert pulse.failed(CHECKS) and pulse.trouble == "not even one that was asked for (/generate: ReadTimeout)"


def test_nothing_counts_at_the_beginning() -> None:
    assert pulse_after(check(10), check(40), check(59), check(70), check(100)).misses == 2


# --- Real servers ----------------------------------------------------------------------------------------------------


async def test_probe_follows_a_server_from_start_to_death(tiny_target: Path, tmp_path: Path) -> None:
    with reference_server(tiny_target, tmp_path / "log", "--max-running-requests", "3") as running:
        probe = ServerProbe()
        readiness, checks = Readiness(running.url, str(tiny_target)), Checks(0.0, 0.0, 5.0, 2)
        sample, wrong, dead = await probe.look(readiness, checks)
        assert (sample.step, sample.ready, wrong, dead) == ("answers", True, "", "")
        assert (sample.running, sample.queued, sample.max_running) == (0, 0, 3)
        assert sample.generated_tokens is not None and probe.ready_at is not None
        assert (await probe.look(readiness, checks)).sample.ready

        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        found = await probe.look(readiness, checks)
        assert (found.sample.ready, found.wrong, found.dead) == (False, "", "")
        found = await probe.look(readiness, checks)
        assert found.dead.startswith("no token for 0 s, not even one that was asked for (/generate: ConnectError)")
        assert found.dead.endswith("/health gives ConnectError")
        await probe.close()


HANGING = """
import asyncio, os, sys, time
from starlette.responses import Response
from pipeline.demo import engine, server

held, deaf = sys.argv[1:3]
turn = engine.Engine._turn

def hangs(self):
    while os.path.exists(held):
        time.sleep(0.02)
    if os.path.exists(deaf):
        time.sleep(0.3)
    return turn(self)

async def health(self, request):
    while os.path.exists(deaf):
        await asyncio.sleep(0.02)
    return Response(status_code=200)

engine.Engine._turn, server.Server.health = hangs, health
sys.exit(server.main(sys.argv[3:]))
"""
"""The reference server; its engine stands still while one file exists, /health does not answer while another does."""


class Hanging:
    """The job of such a server, and requests to it."""

    def __init__(self, rig: Rig, target: Path) -> None:
        self.held, self.deaf = rig.workdir / "held", rig.workdir / "deaf"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.target = target
        self.client = httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=120)
        self.tasks: list[asyncio.Task[Any]] = []

    def spec(self, **changes: Any) -> JobSpec:
        argv = (
            sys.executable, "-c", HANGING, str(self.held), str(self.deaf), "--model-path", str(self.target), "--dtype",
            "float32", "--port", self.url.rpartition(":")[2], "--enable-metrics", "--decode-log-interval", "1000000",
        )  # fmt: skip
        ready = Readiness(self.url, str(self.target))
        spec = JobSpec(
            "serve:x", "serve", argv, restart=NEVER, service=True, stop_grace_s=2.0,
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            readiness=replace(ready, checks=replace(ready.checks, interval_s=0.2)),
            liveness=Checks(start_s=0.0, interval_s=0.3, timeout_s=1.0, threshold=4),
        )  # fmt: skip
        return replace(spec, **changes)

    def generate(self, tokens: int) -> None:
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
        self.tasks.append(asyncio.create_task(self.client.post("/generate", json=body)))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
                await task
        await self.client.aclose()


@pytest.fixture
async def hanging(agent: Rig, tiny_target: Path) -> AsyncIterator[Hanging]:
    made = Hanging(agent, tiny_target)
    yield made
    await made.close()


async def running(rig: Rig) -> int:
    sample = (await rig.state()).beat.jobs["serve:x"].server
    return (sample.running or 0) if sample is not None else 0


@pytest.mark.long
async def test_a_server_lives_while_tokens_flow_whatever_its_health_check_says(agent: Rig, hanging: Hanging) -> None:
    await agent.apply(hanging.spec(), shell("g", "true", needs=(Need("serve:x", "ready"),), autostart=False))
    before = await agent.reach("serve:x", S.READY, within=90)

    # /health times out, tokens flow.
    hanging.deaf.touch()
    hanging.generate(40)
    with pytest.raises(httpx.ReadTimeout):
        await hanging.client.get("/health", timeout=1.5)
    await asyncio.gather(*hanging.tasks)
    states = [event.status.state for event in (await agent.state()).events if event.status]
    assert S.STALLED not in states and states[-1] is S.READY

    # /health answers 200, the engine hangs.
    hanging.deaf.unlink()
    hanging.generate(200)
    await until(lambda: running(agent), what="a request that runs")
    hanging.held.touch()
    status = await agent.reach("serve:x", S.STALLED)
    assert "no token for" in status.reason and "with 1 request in it; /health answers 200" in status.reason
    assert (await hanging.client.get("/health")).status_code == 200
    await agent.act("g", "start")
    await agent.says("g", "waits for serve:x, which is stalled")

    # Tokens flow again.
    hanging.held.unlink()
    status = await agent.reach("serve:x", S.READY)
    assert (status.attempt, status.pid) == (1, before.pid)
    await agent.reach("g", S.DONE)

    # The engine hangs and nobody asks for anything.
    await asyncio.gather(*hanging.tasks)
    hanging.held.touch()
    status = await agent.reach("serve:x", S.STALLED)
    # Where it has taken the request that the agent made, that is one in it.
    asked = r"with 1 request in it|not even one that was asked for \(/generate: ReadTimeout\)"
    assert re.search(rf"no token for \d+ s, ({asked}); /health answers 200", status.reason), status.reason


@pytest.mark.long
async def test_policy_restart_ends_a_dead_server_and_starts_it_again_as_after_a_crash(
    agent: Rig, hanging: Hanging
) -> None:
    policy = RestartPolicy(when="always", limit=1)
    await agent.apply(hanging.spec(on_stall="restart", restart=policy))
    first = await agent.reach("serve:x", S.READY, within=90)
    assert first.pid is not None
    hanging.generate(200)
    await until(lambda: running(agent), what="a request that runs")
    hanging.held.touch()
    status = await agent.attempted("serve:x", 2)
    assert status.restarts == 1 and not exists(f"/proc/{first.pid}")
    assert status.diagnosis is not None and status.diagnosis.cause == "stalled"
    assert "no token for" in status.diagnosis.summary

    # An agent that was not there when the server became ready watches it all the same.
    hanging.held.unlink()
    await agent.reach("serve:x", S.READY, within=90)
    hanging.generate(200)
    await until(lambda: running(agent), what="a request that runs")
    old = agent.holder("agent")
    assert old is not None
    os.kill(old.pid, signal.SIGKILL)
    hanging.held.touch()
    await agent.replaced("agent", old, within=10)
    status = await agent.reach("serve:x", S.FAILED, within=60)
    assert status.reason.startswith("gave up after 1 restart within 10 min; last: no token for")
    assert status.attempt == 2


# --- Jobs that report progress ---------------------------------------------------------------------------------------


async def test_policy_restart_ends_a_batch_job_that_stalls(agent: Rig) -> None:
    policy = RestartPolicy(limit=1)
    await agent.apply(shell("a", "exec sleep 100", stall_s=0.5, on_stall="restart", restart=policy))
    status = await agent.attempted("a", 2)
    assert status.restarts == 1 and status.diagnosis is not None and status.diagnosis.cause == "stalled"
    status = await agent.reach("a", S.FAILED)
    assert "gave up after 1 restart" in status.reason and "no progress for" in status.reason


async def test_a_stalled_job_is_ended_once_its_policy_says_so(agent: Rig) -> None:
    """The key is live: it takes effect on the job that runs."""
    spec = shell("a", "exec sleep 100", stall_s=0.5)
    await agent.apply(spec)
    await agent.reach("a", S.STALLED)
    reply = await agent.apply(replace(spec, on_stall="restart"))
    assert [change.effect for change in reply.changes] == ["live"]
    status = await agent.reach("a", S.FAILED)
    assert "no progress for" in status.reason and status.attempt == 1
