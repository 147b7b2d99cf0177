"""A full disk: nothing ends because of it, nothing is truncated, nothing that was decided is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from pipeline.agent import space, store
from pipeline.agent.api import Api, Control
from pipeline.agent.attempts import attempt_files
from pipeline.agent.attempts.attempt_files import reserve, write_exit
from pipeline.agent.attempts.identity import send
from pipeline.agent.attempts.records import read_exit
from pipeline.agent.board import Board
from pipeline.agent.host.ballast import Ballast
from pipeline.agent.host.senses import Senses
from pipeline.agent.loop_thread import LoopThread
from pipeline.agent.store import Store
from pipeline.agent.supervisor import Supervisor
from pipeline.protocol import ActionRequest, Event, JobState, Problem
from tests.agent.mounts import MIB, ext4, fill, tmpfs
from tests.agent.rig import NEVER, Rig, exists, shell, touch, until

RECORD = {
    "exit_code": 7, "signal": None, "main_exited": [1.0, 2.0], "tree_empty": [3.0, 4.0],
    "left_over": [f"{number} " + "word " * 20 for number in range(10)],
}  # fmt: skip


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB."""
    if request.param == "tmpfs":
        with tmpfs(tmp_path / "disk", 32 * MIB) as found:
            yield found
    else:
        with ext4(tmp_path / "disk", tmp_path / "image", 32 * MIB) as found:
            yield found


# --- The exit record -------------------------------------------------------------------------------------------------


def test_an_exit_record_has_its_space_before_the_disk_is_full(disk: Path) -> None:
    folder = disk / "1"
    folder.mkdir()
    reserve(str(folder))
    fill(disk)
    write_exit(str(folder), RECORD)
    found = read_exit(folder)
    assert found is not None
    assert found.exit_code == 7
    assert len(found.left_over) == 10


def test_without_its_space_an_exit_record_waits_and_is_never_truncated(disk: Path) -> None:
    folder = disk / "1"
    folder.mkdir()
    filler = fill(disk)
    with pytest.raises(OSError, match="No space left"):
        write_exit(str(folder), RECORD)
    assert read_exit(folder) is None
    assert not (folder / "exit.json").exists()
    attempt_files.FULL_S = 0.01
    child = os.fork()
    if child == 0:
        attempt_files.keep_exit(str(folder), RECORD)
        os._exit(0)
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    filler.unlink()
    assert os.waitpid(child, 0)[1] == 0
    assert read_exit(folder) is not None


# --- The journal -----------------------------------------------------------------------------------------------------


def _journal(folder: Path) -> tuple[Board, Ballast]:
    ballast = Ballast(folder)
    board = Board(Store(folder / "journal.db"), "boot")
    space.give_up_when_full(board, ballast)
    return board, ballast


def _texts(board: Board) -> list[str]:
    return [event.text for event in board.store.events(0, 10_000)]


def _whole(folder: Path) -> bool:
    with sqlite3.connect(folder / "journal.db") as db:
        found: str = db.execute("PRAGMA integrity_check").fetchone()[0]
    db.close()
    return found == "ok"


def test_hundreds_of_changes_are_journaled_on_a_disk_that_is_full(disk: Path) -> None:
    board, _ = _journal(disk)
    fill(disk)
    assert os.statvfs(disk).f_bavail == 0
    for number in range(300):
        board.tell("host", f"event {number} " + "x" * 500)
    assert board.store.trouble == ""
    board.store.close()
    os.truncate(disk / "filler", 0)
    board, _ = _journal(disk)
    assert [text.split(" x")[0] for text in _texts(board)] == [f"event {number}" for number in range(300)]
    board.store.close()
    assert _whole(disk)


def test_the_ballast_is_given_up_when_the_journal_cannot_be_written(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SPACE", 0)
    board, ballast = _journal(disk)
    size = ballast.hold()
    assert size == os.statvfs(disk).f_blocks * os.statvfs(disk).f_frsize // 100
    assert ballast.hold() == 0  # there already
    filler = fill(disk)
    words = "x" * 5000
    with pytest.raises(sqlite3.OperationalError):
        for number in range(100):
            board.tell("host", f"event {number} {words}")
    assert ballast.held == 0
    assert board.store.trouble
    told = len(_texts(board))
    board.tell("host", "the next")
    assert board.store.trouble == ""
    said, after = _texts(board)[told:]
    assert said == "disk full: the journal could not be written, 0 MB kept for it were freed"
    assert after == "the next"
    assert ballast.hold() == 0  # there is no room for it yet
    filler.unlink()
    assert ballast.hold() == size
    board.store.close()
    assert _whole(disk)


async def test_what_cannot_be_journaled_comes_in_order_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SPACE", 0)
    with tmpfs(tmp_path / "disk", 32 * MIB) as disk:
        board, ballast = _journal(disk)
        filler = fill(disk)
        with pytest.raises(sqlite3.OperationalError):
            for _ in range(100):
                board.tell("host", "x" * 5000)
        before = len(_texts(board))
        board.note("agent", "noted 1")
        writes = [asyncio.create_task(board.surely(_teller(board, f"decided {number}"))) for number in range(5)]
        board.note("agent", "noted 2")
        senses = Senses(disk)
        keeping = asyncio.create_task(space.keep_room(board, senses, ballast))
        await until(lambda: "journal" in board.remarks)
        assert "database or disk is full" in board.remarks["journal"]
        assert len(_texts(board)) == before
        assert not any(write.done() for write in writes)
        filler.unlink()
        await asyncio.gather(*writes)
        await until(lambda: "journal" not in board.remarks)
        await until(lambda: any("is written again" in text for text in _texts(board)))
        await until(lambda: ballast.held)
        decided = [f"decided {number}" for number in range(5)]
        told = _texts(board)[before:]
        assert told[:2] == ["noted 1", "noted 2"]
        assert [text for text in told if text in decided] == decided
        keeping.cancel()
        senses.close()
        board.store.close()
        assert _whole(disk)


def _teller(board: Board, text: str) -> Callable[[], None]:
    return lambda: board.tell("host", text)


def test_a_journal_is_opened_although_the_disk_is_full(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 32 * MIB) as disk:
        board, ballast = _journal(disk)
        ballast.hold()
        board.tell("host", "before")
        board.store.close()
        fill(disk)
        opened = space.opened(disk / "journal.db", ballast)
        assert [event.text for event in opened.events(0, 10)] == ["before"]
        assert ballast.held == 0
        space.give_up_when_full(Board(opened, "boot"), ballast)
        assert [event.text for event in opened.events(1, 10)] == [
            "disk full: the journal could be opened only after the space kept for it was freed"
        ]
        opened.close()


async def test_what_is_asked_for_and_cannot_be_journaled_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SPACE", 0)
    with tmpfs(tmp_path / "disk", 32 * MIB) as disk:
        works = LoopThread("supervisor")

        async def made() -> Supervisor:
            return Supervisor(disk)

        supervisor = await works.call(made())

        async def tell_much() -> None:
            for _ in range(100):
                supervisor.board.tell("host", "x" * 5000)

        app = Api(supervisor, works, Control(lambda: None, lambda _: None)).app(read_only=False)  # type: ignore[arg-type,return-value]
        fill(disk)
        with pytest.raises(sqlite3.OperationalError):
            await works.call(tell_much())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as client:
            body = msgspec.json.encode(ActionRequest("tester", "1"))
            answer = await client.post("/v1/restart-crashed", content=body)
        assert answer.status_code == 507
        said = msgspec.json.decode(answer.content, type=Problem).error
        assert (
            said
            == "nothing was done, the journal cannot be written: database or disk is full; free space and try again"
        )
        await works.call(supervisor.close())


# --- The whole agent -------------------------------------------------------------------------------------------------


async def test_on_a_full_disk_ends_are_recorded_and_nothing_is_ended(small_disk: Rig, tmp_path: Path) -> None:
    rig = small_disk
    go, on = tmp_path / "go", tmp_path / "on"
    wait = "until [ -e {} ]; do sleep 0.05; done"
    await rig.apply(
        shell("ends", f"{wait.format(go)}; exit 7"), shell("dies", f"{wait.format(go)}; kill -9 $$"),
        shell("stays", f"{wait.format(on)}; exit 0"), shell("later", "true", autostart=False, restart=NEVER),
    )  # fmt: skip
    for name in ("ends", "dies", "stays"):
        await rig.reach(name, JobState.RUNNING)
    await until(lambda: exists(rig.workdir / "agent" / "ballast"))
    current = (rig.workdir / "agent" / "current").read_text()
    specs = {name: (rig.folder(name) / "spec.json").read_bytes() for name in ("ends", "dies", "stays")}
    filler = fill(rig.workdir)
    assert os.statvfs(rig.workdir).f_bavail == 0
    touch(go)
    ended, died = await rig.reach("ends", JobState.FAILED), await rig.reach("dies", JobState.FAILED)
    assert (ended.exit_code, died.signal) == (7, signal.SIGKILL)
    assert (await rig.recorded("ends")).exit_code == 7
    fill(rig.workdir)  # what the exit records did not need of their space

    # An agent that is killed now is followed by one that knows all of it.
    agent = rig.holder("agent")
    assert agent is not None
    send(agent, signal.SIGKILL)
    await rig.replaced("agent", agent, within=15)
    stays = await rig.reach("stays", JobState.RUNNING)
    assert stays.attempt == 1
    state = await rig.state()
    assert (state.jobs["ends"].exit_code, state.jobs["dies"].signal) == (7, signal.SIGKILL)
    seqs = [event.seq for event in state.events]
    assert seqs == sorted(set(seqs))
    await until(lambda: _event(rig, "the disk is short"))

    # What an operator asks for is journaled too, or refused in words.
    touch(on)
    assert (await rig.reach("stays", JobState.DONE)).exit_code == 0
    os.truncate(filler, 0)
    await rig.act("later", "start")
    await rig.reach("later", JobState.DONE)
    assert (rig.workdir / "agent" / "current").read_text() == current
    assert {name: (rig.folder(name) / "spec.json").read_bytes() for name in specs} == specs
    with sqlite3.connect(rig.workdir / "agent" / "journal.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    db.close()


async def _event(rig: Rig, words: str) -> Event | None:
    return next((event for event in (await rig.state()).events if words in event.text), None)
