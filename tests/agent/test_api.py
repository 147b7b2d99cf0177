"""The agent's routes over its sockets: plans, streams, logs, figures, and what the read-only socket refuses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import socket
import sqlite3
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec

from pipeline.agent import paths
from pipeline.agent.figures import KEPT_OF_A_JOB, OURS
from pipeline.agent.store import EVENTS_KEPT, Store
from pipeline.protocol import (
    DiskPolicy,
    Event,
    History,
    JobDetail,
    JobState,
    LogHits,
    LogPage,
    Problem,
    Pruned,
    StreamLine,
)
from tests.agent.rig import Rig, shell, until

S = JobState


async def events(rig: Rig, since: int, upto: int) -> list[Event]:
    """Events after ``since`` up to number ``upto``, as a client of the stream gets them."""
    found: list[Event] = []
    async for line in rig.stream(since):
        if line.event is not None:
            found.append(line.event)
            if line.event.seq >= upto:
                return found
    raise AssertionError("the stream ended")


async def test_a_reader_that_comes_back_gets_each_event_once_and_in_order(agent: Rig) -> None:
    await agent.apply(*(shell(f"j{number}", "true") for number in range(4)))
    for number in range(4):
        await agent.reach(f"j{number}", S.DONE)
    last = (await agent.state()).seq
    whole = await asyncio.wait_for(events(agent, 0, last), 10)
    assert [event.seq for event in whole] == list(range(1, last + 1))
    for since in (1, 5, last - 1):
        assert await asyncio.wait_for(events(agent, since, last), 10) == whole[since:]
    ended = [event.status for event in whole if event.job == "j1" and event.status is not None]
    assert [status.state for status in ended][-1] is S.DONE
    # The journal gives the same after the memory of an agent has gone.
    old = agent.holder("agent")
    assert old is not None
    os.kill(old.pid, 9)
    await agent.replaced("agent", old)
    await until(lambda: (agent.runtime / "agent.sock").exists())
    await agent.reach("j0", S.DONE)
    assert (await asyncio.wait_for(events(agent, 0, last), 10)) == whole


async def test_who_asks_for_events_too_old_to_be_kept_is_told_which_are_missing(rig: Rig) -> None:
    store = Store(Path(paths.journal_path(rig.workdir)))
    with store.transaction():
        for number in range(1, 5001):
            store.add_event(Event(0, 1.0, "state", f"number {number}", "early" if number == 500 else ""))
    while store.prune(kept=3000):
        pass
    store.close()
    await rig.start()
    for since, missing in ((0, [(0, 500), (500, 2001)]), (600, [(600, 2001)]), (2000, [])):
        expected: list[Pruned | int] = [500] if since < 500 else []
        expected = [*expected, *range(max(since, 2000) + 1, 5001)]
        for after, before in missing:
            expected.insert(expected.index(before), Pruned(after, before))
        got: list[Pruned | int] = []
        async for line in rig.stream(since):
            if line.pruned is not None:
                got.append(line.pruned)
            elif line.event is not None:
                got.append(line.event.seq)
                if line.event.seq == 5000:
                    break
        assert got == expected


async def test_the_journal_of_a_run_that_goes_on_and_on_stays_within_bounds(rig: Rig) -> None:
    store = Store(Path(paths.journal_path(rig.workdir)))
    with store.transaction():
        for _ in range(EVENTS_KEPT + 500):
            store.add_event(Event(0, 1.0, "host", "again"))
    store.close()
    await rig.start()

    def kept() -> int:
        with contextlib.closing(sqlite3.connect(paths.journal_path(rig.workdir))) as journal:
            found: int = journal.execute("SELECT count(*) FROM events").fetchone()[0]
            return found

    await until(lambda: kept() <= EVENTS_KEPT + 10)


async def test_a_change_is_told_promptly_and_beats_come_every_two_seconds(agent: Rig) -> None:
    beats: list[float] = []
    heard: dict[str, float] = {}
    since = (await agent.state()).seq

    async def listen() -> None:
        async for line in agent.stream(since):
            if line.beat is not None:
                beats.append(time.monotonic())
            elif line.event is not None and line.event.kind == "action":
                heard[line.event.text] = time.monotonic()

    listening = asyncio.create_task(listen())
    await agent.apply(shell("a", "exec sleep 100"))
    await agent.reach("a", S.RUNNING)
    asked = time.monotonic()
    await agent.act("a", "stop")
    await until(lambda: heard)
    assert min(heard.values()) - asked < 0.5
    await until(lambda: len(beats) > 3 and beats[-1] - beats[0] > 4.2)
    listening.cancel()
    assert max(later - earlier for earlier, later in itertools.pairwise(beats)) < 3.0


async def test_a_reader_that_takes_nothing_harms_nobody(agent: Rig) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do echo $i; done"
    await agent.apply(*(shell(f"j{number}", script) for number in range(3)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(str(agent.runtime / "agent.sock"))
        deaf.sendall(b"GET /v1/events?since=0 HTTP/1.1\r\nHost: a\r\n\r\n")
        for turn in range(9):
            for number in range(3):
                await agent.reach(f"j{number}", S.DONE)
                await agent.act(f"j{number}", "restart")
            began = time.monotonic()
            await agent.state()
            assert time.monotonic() - began < 5, turn
        last = (await agent.state()).seq
        assert last > 100
        assert len(await asyncio.wait_for(events(agent, 0, last), 10)) == last


async def test_the_read_only_socket_has_no_route_that_changes_anything(agent: Rig) -> None:
    await agent.apply(shell("a", "exec sleep 100"))
    transport = httpx.AsyncHTTPTransport(uds=str(agent.runtime / "read.sock"))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as reader:
        assert (await reader.get("/v1/state")).status_code == 200
        assert (await reader.get("/v1/jobs/a")).status_code == 200
        body = b'{"by": "x", "request": "y"}'
        for path in ("/v1/jobs/a/stop", "/v1/restart-crashed", "/v1/shutdown", "/v1/upgrade?release=rel1"):
            answer = await reader.post(path, content=body)
            assert answer.status_code in (404, 405), path
            assert msgspec.json.decode(answer.content, type=Problem).error
        assert (await reader.put("/v1/plan", content=b"{}")).status_code in (404, 405)
    assert (await agent.reach("a", S.RUNNING)).attempt == 1
    for name in ("agent.sock", "read.sock"):
        assert (agent.runtime / name).stat().st_mode & 0o777 == 0o600


async def test_bad_requests_are_answered_with_what_is_wrong(agent: Rig) -> None:
    await agent.apply(shell("a", "true"))
    for method, path, content, status, words in (
        ("GET", "/v1/jobs/nobody", b"", 404, "no job 'nobody'"),
        ("POST", "/v1/jobs/a/explode", b"{}", 404, "no action 'explode'"),
        ("POST", "/v1/jobs/a/stop", b"{", 400, "not a ActionRequest"),
        ("POST", "/v1/jobs/a/stop", b'{"by": 5}', 400, "not a ActionRequest"),
        ("GET", "/v1/events?since=x", b"", 400, "since='x' is not a whole number"),
        ("GET", "/v1/events?since=999999", b"", 409, "read the state anew"),
        ("GET", "/v1/jobs/a/log?limit=-1", b"", 400, "limit=-1 is not between"),
        ("GET", "/v1/jobs/a/log/search", b"", 400, "text is missing"),
        ("POST", "/v1/upgrade?release=../x", b'{"by": "x", "request": "z"}', 400, "no release's name"),
        ("POST", "/v1/upgrade?release=gone", b'{"by": "x", "request": "z"}', 404, "not deployed"),
    ):
        answer = await agent.client.request(method, path, content=content)
        problem = msgspec.json.decode(answer.content, type=Problem)
        assert answer.status_code == status and words in problem.error, (path, answer.text)


async def test_logs_details_and_figures(agent: Rig) -> None:
    result = json.dumps({"result": {"at": 1.0, "records": 3, "message": "made three"}})
    progress = json.dumps({"progress": {"at": 1.0, "phase": "read", "done": 3, "total": 9, "figures": {"rows_s": 4}}})
    script = (
        "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done\n"
        f"echo '{progress}' >> $DRAFTDECK_PROGRESS; touch began; while [ ! -e go ]; do sleep 0.02; done\n"
        f"echo '{result}' >> $DRAFTDECK_PROGRESS"
    )
    agent.call("secret", "set", "HF_SECRET", text="hush-hush\n")
    await agent.apply(replace(shell("a", script), env={"PLAIN": "seen"}, secrets=("HF_SECRET",)))
    await until(lambda: (agent.workdir / "began").exists())

    async def sampled() -> bool:
        sample = (await agent.state()).beat.jobs.get("a")
        return sample is not None and sample.progress is not None and sample.last_line == "line 499"

    await until(sampled)

    async def kept() -> bool:
        answer = await agent.client.get("/v1/history", params={"job": "a", "figure": "rows_s"})
        return 4.0 in msgspec.json.decode(answer.content, type=History).values

    await until(kept)
    (agent.workdir / "go").touch()
    status = await agent.reach("a", S.DONE)
    assert status.result is not None and status.result.records == 3
    assert (await agent.state()).beat.jobs["a"].progress is not None

    page = await agent.client.get("/v1/jobs/a/log", params={"offset": 0, "limit": 14})
    assert msgspec.json.decode(page.content, type=LogPage).data == b"line 0\nline 1\n"
    assert base64.b64decode(page.json()["data"]) == b"line 0\nline 1\n"
    page = await agent.client.get("/v1/jobs/a/log", params={"offset": -9})
    assert msgspec.json.decode(page.content, type=LogPage).data == b"line 499\n"
    hits = await agent.client.get("/v1/jobs/a/log/search", params={"text": "line 49"})
    assert len(msgspec.json.decode(hits.content, type=LogHits).offsets) == 11

    detail = msgspec.json.decode((await agent.client.get("/v1/jobs/a")).content, type=JobDetail)
    assert detail.environment["HF_SECRET"] == "***" and detail.environment["PLAIN"] == "seen"
    assert [attempt.state for attempt in detail.attempts] == ["done"] and detail.folder == str(agent.folder("a"))
    kept_files = [path for path in agent.workdir.rglob("*") if path.is_file() and "releases" not in path.parts]
    assert not [path for path in kept_files if b"hush-hush" in path.read_bytes()]


async def test_figures_that_a_job_invents_are_bounded_and_it_is_said_once(agent: Rig) -> None:
    script = (
        "import json, os, sys, time\n"
        "with open(os.environ['DRAFTDECK_PROGRESS'], 'a') as file:\n"
        "    for step in range(10**6):\n"
        "        figures = {f'step {step} figure {number}': 1.0 for number in range(50)}\n"
        "        line = {'progress': {'at': time.time(), 'phase': 'x', 'done': step, 'figures': figures}}\n"
        "        print(json.dumps(line), file=file, flush=True)\n"
        "        time.sleep(0.5)\n"
    )
    await agent.apply(replace(shell("a", ""), argv=(sys.executable, "-c", script)))

    async def said() -> int:
        return sum("figures whose history is not kept" in event.text for event in (await agent.state()).events)

    await until(said, within=30)

    async def further() -> bool:
        answer = await agent.client.get("/v1/history", params={"job": "a", "figure": "done"})
        return len(msgspec.json.decode(answer.content, type=History).values) >= 2

    await until(further, within=40)
    assert await said() == 1
    with contextlib.closing(sqlite3.connect(paths.journal_path(agent.workdir))) as journal:
        (count,) = journal.execute("SELECT count(*) FROM series WHERE job = 'a'").fetchone()
    assert count <= KEPT_OF_A_JOB + len(OURS)


async def test_a_missing_secret_is_named(agent: Rig) -> None:
    await agent.apply(replace(shell("a", "true"), secrets=("DRAFTDECK_TEST_ABSENT",)))
    assert "DRAFTDECK_TEST_ABSENT" in (await agent.reach("a", S.FAILED)).reason


async def test_a_plan_is_applied_by_difference(agent: Rig) -> None:
    made = json.dumps({"result": {"at": 1.0, "records": 5, "message": "five"}})
    maker = replace(shell("maker", f"echo '{made}' >> $DRAFTDECK_PROGRESS"), content_hash="one")
    steady, changed = shell("steady", "exec sleep 100"), shell("changed", "exec sleep 100")
    gone = shell("gone", "exec sleep 100")
    reply = await agent.apply(maker, steady, changed, gone)
    assert reply.applied and {change.effect for change in reply.changes} == {"new"}
    await agent.reach("maker", S.DONE)
    before = await agent.reach("steady", S.RUNNING)
    await agent.reach("changed", S.RUNNING)
    await agent.reach("gone", S.RUNNING)

    new = (replace(maker, content_hash="two"), steady, replace(changed, env={"A": "1"}), shell("fresh", "true"))
    seq = (await agent.state()).seq
    dry = await agent.apply(*new, confirm=("maker",), dry_run=True)
    effects = {change.job: change.effect for change in dry.changes}
    assert not dry.applied and effects == {
        "maker": "discards", "steady": "nothing", "changed": "restarts", "fresh": "new", "gone": "removed",
    }  # fmt: skip
    refused = await agent.apply(*new)
    assert not refused.applied and "maker (5 records)" in refused.refused
    assert (await agent.state()).seq == seq

    assert (await agent.apply(*new, confirm=("maker",))).applied
    assert (await agent.attempted("maker", 2)).attempt == 2
    await agent.attempted("changed", 2)
    await agent.reach("fresh", S.DONE)

    async def left() -> bool:
        return "gone" not in (await agent.state()).jobs

    await until(left)
    after = await agent.status("steady")
    assert after == before
    assert list((await agent.state()).jobs) == ["maker", "steady", "changed", "fresh"]


async def test_what_takes_effect_for_the_agent_alone_is_said(agent: Rig) -> None:
    await agent.apply(shell("a", "exec sleep 100"))
    dry = await agent.apply(shell("a", "exec sleep 100"), disk=DiskPolicy(log=5), dry_run=True)
    assert (dry.applied, dry.settings) == (False, ("disk.log",))
    reply = await agent.apply(shell("a", "exec sleep 100"), disk=DiskPolicy(log=5))
    assert (reply.applied, reply.settings) == (True, ("disk.log",))
    assert [change.effect for change in reply.changes] == ["nothing"]
    state = await agent.state()
    assert state.plan is not None and state.plan.disk.log == 5
    assert [event.text for event in state.events if event.kind == "plan"][-1] == "plan of test applied: disk.log live"


async def test_a_plan_that_cannot_be_is_refused(agent: Rig) -> None:
    reply = await agent.apply(shell("a", "true"), shell("a", "true"))
    assert not reply.applied and "two jobs" in reply.refused
    assert (await agent.state()).plan is None
    assert (await agent.client.put("/v1/plan", content=b"{}")).status_code == 400


async def test_what_the_stream_sends_is_lines_of_the_protocol(agent: Rig) -> None:
    async with agent.client.stream("GET", "/v1/events", params={"since": 0}) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        async for line in answer.aiter_lines():
            found = msgspec.json.decode(line, type=StreamLine)
            assert (found.event is None) is not (found.beat is None)
            if found.beat is not None:
                assert found.beat.host is not None and found.beat.host.memory_limit > 0
                return


def test_the_socket_path_fits() -> None:
    path = paths.socket_path("/a/very/long" + "/folder" * 40)
    assert len(os.fsencode(path)) < paths.SOCKET_PATH_LIMIT
