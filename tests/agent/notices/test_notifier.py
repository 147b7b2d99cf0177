"""Messages and heartbeats reach a real HTTP server: through its failures, through kills of the agent, each once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.agent import paths
from pipeline.agent.attempts import secret_files
from pipeline.agent.board import Board
from pipeline.agent.notices import posting
from pipeline.agent.notices.heartbeat import beat
from pipeline.agent.notices.notifier import MARK, REFUSALS, Notifier, Pace, Told, begin
from pipeline.agent.notices.outside import Outside
from pipeline.agent.store import Store
from pipeline.agent.supervisor import Supervisor
from pipeline.protocol import (
    ActionReply,
    ApplyReply,
    ApplyRequest,
    JobSpec,
    JobState,
    Notify,
    NotifyTest,
    Plan,
    RestartPolicy,
)
from tests.agent.receiver import OK, Receiver, Reply, receiver
from tests.agent.rig import RELEASE, Rig, shell, until

S = JobState
QUICK = Pace(join_s=0.02, gap_s=0.05, retry_s=0.05, retry_max_s=0.2, broken_s=30.0, recheck_s=0.05)
FAILS: Reply = (500, {}, b"out of order")


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    async with receiver() as made:
        yield made


# --- The notifier alone, at a quick pace ------------------------------------------------------------------------------


class Small:
    """A board in a folder, its notifier, and the secret that holds the URL."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.runtime = paths.runtime_dir(folder)
        self.store_url(url)
        self.board = Board(Store(folder / "journal.db"), "boot")
        self.name("HOOK")
        self._task: asyncio.Task[None] | None = None

    def store_url(self, url: str) -> None:
        secret_files.write_secret(self.runtime, "HOOK", url)

    def name(self, webhook: str, heartbeat: str = "") -> None:
        """Apply a plan that names these secrets."""
        wanted = Notify(webhook, heartbeat)
        with self.board.transaction():
            begin(self.board, wanted)
            self.board.plan = Plan("kimi", RELEASE, (), notify=wanted)

    def start(self, pace: Pace = QUICK) -> None:
        self._task = asyncio.create_task(Notifier(self.board, Outside(self.folder), pace).run())

    async def end(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def told(self) -> Told | None:
        return self.board.store.mark(MARK, Told)

    def happens(self, text: str) -> None:
        self.board.tell("host", text)

    def remark(self) -> str:
        return self.board.remarks.get("webhook", "")


@pytest.fixture
async def small(tmp_path: Path, there: Receiver, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Small]:
    monkeypatch.setattr("pipeline.agent.notices.outside.base_environment", lambda _: {})
    made = Small(tmp_path, there.url())
    made.start()
    yield made
    await made.end()
    made.board.store.close()
    shutil.rmtree(made.runtime)


async def test_what_comes_together_is_one_message_and_what_was_before_is_none(
    there: Receiver, tmp_path: Path, small: Small
) -> None:
    small.happens("one")
    small.happens("two")
    await until(lambda: there.asked)
    (asked,) = there.asked
    assert asked.method == "POST" and asked.target == "/hook-4711"
    assert asked.headers["content-type"] == "application/json"
    assert asked.text.count("\n") == 1 and "one" in asked.text and asked.text.endswith("two")
    await until(lambda: small.told() == Told(small.board.store.seq))
    small.name("")
    small.happens("three")
    small.name("HOOK")
    small.happens("four")
    await until(lambda: len(there.asked) == 2)
    assert "four" in there.asked[1].text and "three" not in there.asked[1].text


async def test_what_is_too_old_to_be_kept_is_said_not_to_be_told(there: Receiver, small: Small) -> None:
    await until(lambda: small.told() == Told(0))
    await small.end()
    with small.board.transaction():
        for number in range(1, 31):
            small.happens(f"event {number}.")
    assert small.board.store.prune(kept=20) == 10
    small.board.shown = replace(small.board.shown, events=())  # as where there were too many for the memory
    small.start()
    await until(lambda: there.asked)
    assert "events up to number 10 were too old to be kept" in there.asked[0].text
    assert "event 11." in there.asked[0].text and there.asked[0].text.endswith("event 30.")
    await until(lambda: small.told() == Told(30))


async def test_messages_keep_their_distance(there: Receiver, small: Small) -> None:
    await small.end()
    small.start(Pace(join_s=0.02, gap_s=0.5))
    for number in range(40):
        small.happens(f"event {number}.")
        await asyncio.sleep(0.02)
    await until(lambda: sum(asked.text.count("event") for asked in there.asked) == 40)
    gaps = [later.at - sooner.at for sooner, later in zip(there.asked, there.asked[1:], strict=False)]
    assert gaps and min(gaps) >= 0.5


async def test_what_fails_is_tried_again_and_arrives_once(there: Receiver, small: Small) -> None:
    there.answer = lambda _: FAILS if len(there.asked) < 4 else OK
    small.happens("one")
    await until(lambda: len(there.asked) == 2)
    assert small.remark().startswith("webhook: 500 since ") and small.remark().endswith("UTC; 1 event to tell")
    await until(lambda: len(there.asked) == 4 and not small.remark())
    assert all("one" in asked.text and "sent before" not in asked.text for asked in there.asked)
    await until(lambda: small.told() == Told(small.board.store.seq))
    await asyncio.sleep(0.3)
    assert len(there.asked) == 4


async def test_a_server_that_asks_for_time_gets_it(there: Receiver, small: Small) -> None:
    there.answer = lambda _: (429, {"Retry-After": "1.2"}, b"slow down") if len(there.asked) == 1 else OK
    small.happens("one")
    await until(lambda: len(there.asked) == 2)
    assert there.asked[1].at - there.asked[0].at >= 1.2


async def test_a_message_that_may_have_arrived_says_so(
    there: Receiver, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "ANSWER_S", 0.3)
    there.answer = lambda _: None if len(there.asked) == 1 else FAILS if len(there.asked) == 2 else OK
    small.happens("one")
    await until(lambda: len(there.asked) == 3)
    assert [("may have been sent before" in asked.text) for asked in there.asked] == [False, True, True]


async def test_where_it_is_in_vain_it_waits_until_somebody_changes_something(there: Receiver, small: Small) -> None:
    there.answer = lambda asked: (404, {}, b"no_service") if asked.target == "/hook-4711" else OK
    small.happens("one")
    await until(lambda: small.remark().startswith("webhook: 404 since "))
    small.happens("two")
    await asyncio.sleep(0.5)
    assert len(there.asked) == 1
    small.store_url(there.url("/another"))
    await until(lambda: len(there.asked) == 2)
    assert there.asked[1].target == "/another" and there.asked[1].text.count("\n") == 1
    await until(lambda: not small.remark())


async def test_a_message_that_is_refused_does_not_hold_up_others(there: Receiver, small: Small) -> None:
    there.answer = lambda asked: (400, {}, b"invalid_payload") if "poison" in asked.text else OK
    small.happens("poison")
    await until(lambda: len(there.asked) == REFUSALS)
    await until(lambda: (found := small.told()) is not None and found.lost == 1)
    assert small.remark().startswith("webhook: 400 since ")
    small.happens("sound")
    await until(lambda: len(there.asked) == REFUSALS + 1)
    assert there.asked[-1].text.startswith("(1 earlier ones left out)\n")
    await until(lambda: not small.remark())
    assert small.told() == Told(small.board.store.seq)


async def test_of_too_many_the_newest_are_kept_and_the_rest_is_counted(there: Receiver, small: Small) -> None:
    there.answer = lambda _: FAILS
    for number in range(200):
        small.happens(f"event {number}.")
    await until(lambda: len(there.asked) == 2)
    there.answer = lambda _: OK
    count = len(there.asked)
    await until(lambda: len(there.asked) > count)
    text = there.asked[-1].text
    assert "event 199." in text and "event 149." not in text
    assert text.startswith(f"({200 - text.count('event ')} earlier ones left out)")


async def test_a_secret_that_is_not_there_or_holds_no_url_is_said_so(there: Receiver, small: Small) -> None:
    (Path(small.runtime) / "secrets" / "HOOK").unlink()
    small.happens("one")
    await until(lambda: "secret HOOK is not set here: draftdeck secret set HOOK" in small.remark())
    small.store_url("not a url 4711")
    await until(lambda: "holds no http" in small.remark())
    assert "4711" not in small.remark()
    small.store_url(there.url())
    await until(lambda: there.asked)
    await until(lambda: not small.remark())


async def test_a_host_that_is_not_there_is_tried_again(small: Small, unused_tcp_port: int) -> None:
    small.store_url(f"http://127.0.0.1:{unused_tcp_port}/hook-4711")
    small.happens("one")
    await until(lambda: small.remark().startswith("webhook: not reached since "))
    async with receiver(unused_tcp_port) as there:
        await until(lambda: there.asked)
        assert "sent before" not in there.asked[0].text


async def test_a_journal_that_cannot_be_written_does_not_keep_a_message_back(
    there: Receiver, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.happens("the disk is full")
    small.board.store._db.execute("PRAGMA query_only=ON")
    await until(lambda: there.asked)
    await asyncio.sleep(0.3)
    assert len(there.asked) == 1
    small.board.store._db.execute("PRAGMA query_only=OFF")


# --- The way there ----------------------------------------------------------------------------------------------------


async def test_a_proxy_of_the_container_is_used_unless_the_host_is_excepted(there: Receiver) -> None:
    named = {"HTTP_PROXY": f"127.0.0.1:{there.port}"}
    answer = await posting.send("GET", "http://hook.invalid/4711", named)
    assert answer.fate == "delivered" and there.asked[0].target == "http://hook.invalid/4711"
    for excepted in ("hook.invalid", ".invalid", "a.org, *", "HOOK.invalid:80"):
        answer = await posting.send("GET", "http://hook.invalid/4711", {**named, "no_proxy": excepted})
        assert answer.brief == "not reached" and len(there.asked) == 1
    for unusable in ("gopher://x:1", "http://[::1", "http://a:b:c/"):
        answer = await posting.send("GET", there.url(), {"http_proxy": unusable})
        assert answer.fate == "broken" and "4711" not in answer.text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder / "cert.pem"  # type: ignore[return-value]


async def test_a_certificate_is_verified(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    made = Receiver()
    server = await asyncio.start_server(made.serve, "localhost", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        answer = await posting.send("GET", f"https://localhost:{port}/hook-4711", {})
        assert answer.fate == "later" and "CERTIFICATE_VERIFY_FAILED" in answer.text and not made.asked
        answer = await posting.send("GET", f"https://localhost:{port}/x", {"SSL_CERT_FILE": str(certificate)})
        assert answer.fate == "delivered"
        answer = await posting.send("GET", f"https://localhost:{port}/x", {"SSL_CERT_FILE": "/no/such.pem"})
        assert answer.fate == "broken"
    finally:
        server.close()


async def test_a_url_may_hold_user_and_password(there: Receiver) -> None:
    url = f"http://ana:pa55word@127.0.0.1:{there.port}/hook-4711"
    there.answer = lambda asked: (403, {}, asked.headers["authorization"].encode())
    answer = await posting.send("POST", url, {}, b"{}")
    assert there.asked[0].headers["authorization"] == "Basic YW5hOnBhNTV3b3Jk"
    assert answer.text == "403 Forbidden: Basic ***"  # a server may repeat what it was sent


async def test_a_redirect_is_not_followed_and_an_endless_answer_is_cut(there: Receiver) -> None:
    there.answer = lambda _: (302, {"Location": there.url("/elsewhere")}, b"")
    assert (await posting.send("POST", there.url(), {}, b"{}")).fate == "broken"
    assert len(there.asked) == 1
    there.answer = lambda _: (404, {}, b"x" * (8 << 20))
    assert len((await posting.send("POST", there.url(), {}, b"{}")).text) < 300


# --- The heartbeat ----------------------------------------------------------------------------------------------------


async def test_the_heart_beats_only_while_the_agent_looks(there: Receiver, small: Small) -> None:
    small.name("", heartbeat="HOOK")
    looks = True
    task = asyncio.create_task(beat(small.board, Outside(small.folder), lambda: looks, 0.1))
    await until(lambda: len(there.asked) >= 3)
    assert {(asked.method, asked.body) for asked in there.asked} == {("GET", b"")}
    gaps = [later.at - sooner.at for sooner, later in zip(there.asked, there.asked[1:], strict=False)]
    assert min(gaps) >= 0.09
    looks = False
    await asyncio.sleep(0.2)
    count = len(there.asked)
    await asyncio.sleep(0.5)
    assert len(there.asked) == count
    looks = True
    there.answer = lambda _: FAILS
    await until(lambda: small.board.remarks.get("heartbeat", "").startswith("heartbeat: 500 since "))
    there.answer = lambda _: OK
    await until(lambda: "heartbeat" not in small.board.remarks)
    task.cancel()


async def test_an_agent_that_does_not_look_or_cannot_follow_its_plan_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(tmp_path)
    assert not supervisor.looking()  # it has not begun
    supervisor.board.looked_at = time.monotonic()
    assert supervisor.looking()
    now = time.monotonic()
    supervisor.board.store.close()
    supervisor.board.plan = Plan("kimi", RELEASE, ())
    monkeypatch.setattr(supervisor, "reconcile", lambda: supervisor.board.store.events(0, 1))
    supervisor.wake()
    await asyncio.sleep(0)
    assert supervisor.looking()  # once is no trouble yet
    monkeypatch.setattr(time, "monotonic", lambda: now + 20)
    supervisor.board.looked_at = now + 20
    assert not supervisor.looking()
    supervisor.board.looked_at = now
    assert not supervisor.looking()
    await supervisor.close()


async def test_a_heartbeat_that_fails_is_logged_once(
    there: Receiver, small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    small.name("", heartbeat="HOOK")
    there.answer = lambda _: FAILS
    task = asyncio.create_task(beat(small.board, Outside(small.folder), lambda: True, 0.05))
    await until(lambda: len(there.asked) >= 5)
    task.cancel()
    said = [record.getMessage() for record in caplog.records if record.name.startswith("pipeline.agent")]
    assert said == ["heartbeat: 500 Internal Server Error: out of order"]


# --- A real agent -----------------------------------------------------------------------------------------------------


async def apply(rig: Rig, *jobs: JobSpec, **notify: Any) -> None:
    request = ApplyRequest(Plan("kimi", RELEASE, jobs, notify=Notify(**notify)), "tester")
    answer = await rig.client.put("/v1/plan", content=msgspec.json.encode(request))
    assert answer.status_code == 200, answer.text


async def killed(rig: Rig) -> None:
    """SIGKILL the agent and wait until another one answers."""
    old = rig.holder("agent")
    assert old is not None
    os.kill(old.pid, signal.SIGKILL)
    await rig.replaced("agent", old, within=20)

    async def answers() -> bool:
        with contextlib.suppress(Exception):
            return (await rig.state()).agent.pid != old.pid
        return False

    await until(answers)


def settled(rig: Rig) -> bool:
    """Whether the journal says that all is told and nothing is under way."""
    with contextlib.closing(sqlite3.connect(f"file:{rig.workdir}/agent/journal.db?mode=ro", uri=True)) as journal:
        row = journal.execute("SELECT body FROM marks WHERE name = ?", (MARK,)).fetchone()
        told = msgspec.json.decode(row[0], type=Told)
        ends = journal.execute("SELECT max(seq) FROM events WHERE cast(body AS TEXT) LIKE '%failed%'").fetchone()[0]
    return told.seq >= ends and not told.trying


async def test_a_failure_is_told_once_whoever_is_killed(agent: Rig, there: Receiver) -> None:
    agent.call("secret", "set", "HOOK", text=there.url())
    there.answer = lambda _: FAILS
    failing = shell("prep:B4", "echo boom; exit 7", stage="prep")
    await apply(agent, failing, webhook="HOOK")
    await agent.reach("prep:B4", S.FAILED)
    await until(lambda: there.asked)

    async def remarked() -> str:
        host = (await agent.state()).beat.host
        return next((remark for remark in host.remarks if remark.startswith("webhook: 500")), "") if host else ""

    assert "4711" not in await until(remarked)
    await killed(agent)
    there.answer = lambda _: OK
    count = len(there.asked)
    await until(lambda: len(there.asked) > count)
    asked = there.asked[-1]
    assert "prep:B4 failed: " in asked.text and "sent before" not in asked.text
    assert asked.json["title"].startswith("kimi on ")
    await until(lambda: settled(agent))
    # Told is told: a new agent is silent about it, and the next message is about the next thing.
    count = len(there.asked)
    await killed(agent)
    await apply(agent, failing, shell("prep:B5", "exit 8", stage="prep"), webhook="HOOK")
    await until(lambda: len(there.asked) > count, within=40)
    assert "prep:B5 failed" in there.asked[-1].text and "prep:B4" not in there.asked[-1].text
    assert len(there.asked) == count + 1
    for kept in (agent.log(), agent.runtime.joinpath("keeper.log").read_text()):
        assert "4711" not in kept
    assert b"4711" not in (agent.workdir / "agent" / "journal.db").read_bytes()


async def test_a_message_under_way_when_the_agent_is_killed_is_sent_again_and_says_so(
    agent: Rig, there: Receiver
) -> None:
    agent.call("secret", "set", "HOOK", text=there.url())
    there.answer = lambda _: None
    await apply(agent, shell("prep:B4", "exit 7", stage="prep"), webhook="HOOK")
    await until(lambda: there.asked)
    await killed(agent)
    there.answer = lambda _: OK
    await until(lambda: len(there.asked) == 2)
    assert "may have been sent before" in there.asked[1].text and "prep:B4 failed" in there.asked[1].text


async def test_a_crash_loop_is_no_flood(agent: Rig, there: Receiver) -> None:
    agent.call("secret", "set", "HOOK", text=there.url())
    policy = RestartPolicy(limit=12, window_s=600, backoff_s=0.05, backoff_max_s=0.2)
    await apply(agent, shell("prep:B4", "exit 7", stage="prep", restart=policy), webhook="HOOK")
    await agent.reach("prep:B4", S.FAILED, within=60)
    await until(lambda: any("gave up" in asked.text for asked in there.asked), within=40)
    assert len(there.asked) <= 3
    assert sum(asked.text.count("\n") + 1 for asked in there.asked) <= 4


async def test_the_end_of_a_run_is_told(agent: Rig, there: Receiver) -> None:
    agent.call("secret", "set", "HOOK", text=there.url())
    await apply(agent, shell("prep:B4", "sleep 0.2"), shell("prep:B5", "sleep 0.2"), webhook="HOOK")
    await until(lambda: there.asked)
    assert "the run is done: 2 jobs" in there.asked[-1].text


async def test_a_real_agent_beats_and_a_stopped_one_does_not(agent: Rig, there: Receiver) -> None:
    agent.call("secret", "set", "BEAT", text=there.url("/beat"))
    await apply(agent, heartbeat="BEAT")
    await until(lambda: there.asked)
    assert (there.asked[0].method, there.asked[0].target) == ("GET", "/beat")


async def test_a_test_message_says_what_the_servers_answer(agent: Rig, there: Receiver) -> None:
    agent.call("secret", "set", "HOOK", text=there.url("/hook-4711"))
    agent.call("secret", "set", "BEAT", text=there.url("/beat-4712"))

    async def tried(**notify: Any) -> ActionReply:
        body = msgspec.json.encode(NotifyTest(Notify(**notify), "kimi", "ana@home"))
        answer = await agent.client.post("/v1/notify/test", content=body)
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=ActionReply)

    assert await tried(webhook="HOOK", heartbeat="BEAT", format="ntfy") == ActionReply(
        True, "webhook (ntfy): 200 OK; heartbeat: 200 OK"
    )
    assert there.asked[0].json["topic"] == "hook-4711" and "ana@home asked for a test" in there.asked[0].text
    there.answer = lambda asked: (404, {}, f"no hook at {asked.target}".encode())
    assert await tried(webhook="HOOK") == ActionReply(False, "webhook (json): 404 Not Found: no hook at /***")
    assert not (await tried()).done
    assert "draftdeck secret set NONE" in (await tried(webhook="NONE")).text


async def test_a_plan_that_names_no_secret_is_refused(agent: Rig) -> None:
    body = msgspec.json.encode(ApplyRequest(Plan("kimi", RELEASE, (), notify=Notify("https://x.org/4711")), "t"))
    answer = await agent.client.put("/v1/plan", content=body)
    reply = msgspec.json.decode(answer.content, type=ApplyReply)
    assert not reply.applied and "no secret's name" in reply.refused


def test_an_agent_that_tells_nobody_loads_no_http_client() -> None:
    code = (
        "import sys, pipeline.agent.daemon;"
        "print('pipeline.agent.notices.notifier' in sys.modules, 'httpx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
