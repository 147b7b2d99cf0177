"""The console on a real agent through OpenSSH and a relay that is cut: stale in time, and no event lost or doubled."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot

from console.client import AgentClient
from console.link.channel import bridge_argv
from console.link.deploy import deploy, ensure_agent
from console.link.reconnect import Link
from console.session import Session
from console.tui.app import Deck
from pipeline.agent import paths
from pipeline.protocol import BEAT_S, ApplyRequest, Event, JobSpec, Plan, RestartPolicy, StreamLine
from tests.link.conftest import Server, through
from tests.link.relay import Relay
from tests.tui.screen import shown, until

PYTHON = sys.executable
STALE_WITHIN_S = 7.0
SLACK = 2.0
"""What a busy machine may add, as a factor."""


@dataclass
class Wire:
    """Every event as it came over the wire, before anything else looked at it."""

    events: list[Event] = field(default_factory=list)
    streams: int = 0


class Recorded(AgentClient):
    """A client that keeps what the stream brought."""

    def __init__(self, link: Link, bridge: Sequence[str], wire: Wire) -> None:
        super().__init__(link, bridge)
        self._wire = wire

    async def stream(self, since: int, journal: str = "") -> AsyncGenerator[StreamLine, None]:
        self._wire.streams += 1
        async with contextlib.aclosing(super().stream(since, journal)) as lines:
            async for line in lines:
                if line.event is not None:
                    self._wire.events.append(line.event)
                yield line


def crashing(number: int) -> JobSpec:
    """A job that writes a log and crashes, again and again."""
    script = "i=0; while [ $i -lt 400 ]; do echo line $i of a log that grows; i=$((i+1)); done; exit 1"
    often = RestartPolicy("always", limit=1_000_000, backoff_s=0.4, backoff_max_s=0.4)
    return JobSpec(f"load:{number}", "demo", ("/bin/sh", "-c", script), restart=often)


def journaled(workdir: Path) -> list[Event]:
    """The agent's own list of events, by way of the disk."""
    with contextlib.closing(sqlite3.connect(f"file:{paths.journal_path(workdir)}?mode=ro", uri=True)) as journal:
        rows = journal.execute("SELECT body FROM events ORDER BY seq").fetchall()
    return [msgspec.json.decode(row[0], type=Event) for row in rows]


@contextlib.asynccontextmanager
async def loaded(server: Server, workdir: Path) -> AsyncIterator[str]:
    """An agent whose jobs crash all the time, reached without the relay. Gives its release."""
    async with Link(server.endpoint) as direct:
        await direct.connected(20)
        release = await deploy(direct, str(workdir), PYTHON)
        await ensure_agent(direct, str(workdir), PYTHON, release, by="test")
        async with AgentClient(direct, bridge_argv(str(workdir), PYTHON, release)) as agent:
            plan = Plan("cut", release, tuple(crashing(number) for number in range(5)))
            assert (await agent.apply(ApplyRequest(plan, by="test"))).applied
            yield release
            # Ending the jobs here, the fixture's own way of ending them needs no patience.
            plan = Plan("cut", release, ())
            assert (await agent.apply(ApplyRequest(plan, by="test"))).applied


def every_pane_is_marked(app: Deck) -> bool:
    panes = app.screen.query_one("#panes")
    return app.screen.has_class("-stale") and panes.styles.opacity < 1 and "old" in shown(app)[1]


async def cut_and_back(server: Server, workdir: Path, cut_s: float) -> float:
    """Cut the wire of a console for ``cut_s``; seconds until every pane was marked stale."""
    assert server.endpoint.port is not None
    wire = Wire()
    async with (
        loaded(server, workdir) as release,
        Relay(server.endpoint.port, one_way_s=0.025) as relay,
        Link(through(relay, server)) as link,
    ):

        async def client(live: Link) -> AgentClient:
            return Recorded(live, bridge_argv(str(workdir), PYTHON, release), wire)

        session = Session(lambda: contextlib.nullcontext(link), client, run="cut", host_label="test", by="test")
        app = Deck(session)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: len(wire.events) > 20, 60.0)
            assert not every_pane_is_marked(app)
            relay.cut()
            began = time.monotonic()
            await until(pilot, lambda: every_pane_is_marked(app), STALE_WITHIN_S * SLACK)
            stale_after = time.monotonic() - began
            await pause(pilot, cut_s - stale_after)
            assert every_pane_is_marked(app)
            seen, before = len(wire.events), session.snapshot.seq
            relay.mend()
            await relay.break_off()  # a cable that is plugged in again finds the old connections gone
            link.retry()
            missed = journaled(workdir)[-1].seq
            await until(pilot, lambda: session.snapshot.seq >= missed, 60.0)
            await until(pilot, lambda: not every_pane_is_marked(app) and "live" in shown(app)[1])
            await until(pilot, lambda: bool(session.snapshot.gaps))
            gap = session.snapshot.gaps[0]
            assert gap.seconds > cut_s - 2 * BEAT_S
            assert gap.events >= missed - before
            assert wire.streams > 1
            assert len(wire.events) - seen > cut_s  # it was under load
            check_events(session, wire, journaled(workdir))
    return stale_after


async def pause(pilot: Pilot[int], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await pilot.pause(0.1)


def check_events(session: Session, wire: Wire, journal: list[Event]) -> None:
    """Every event of the journal since the console came, once and in order: on the wire, and in the panes."""
    first, last = wire.events[0].seq, wire.events[-1].seq
    assert wire.events == [event for event in journal if first <= event.seq <= last]
    kept = [event for event in reversed(session.snapshot.events) if event.seq >= first]
    newest = [event for event in wire.events if event.kind != "reason" and event.seq <= session.snapshot.seq]
    assert kept == newest[-len(kept) :]
    assert len(kept) >= min(len(newest), 400)


async def test_a_short_cut_under_load_is_shown_and_loses_no_event(one_server: Server, workdir: Path) -> None:
    assert await cut_and_back(one_server, workdir, 8.0) < STALE_WITHIN_S * SLACK


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_minute_without_a_wire_under_load_loses_no_event(one_server: Server, workdir: Path) -> None:
    took = await cut_and_back(one_server, workdir, 60.0)
    assert took < STALE_WITHIN_S * SLACK
