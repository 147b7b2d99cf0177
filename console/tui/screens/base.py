"""What every screen of the console shares: the newest snapshot, what was just done, and the actions on a job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, cast
from uuid import uuid4

from textual.screen import Screen
from textual.widgets import Input

from console.controls import ControlError, Controls, JobAction, UnknownOutcome
from console.tui.keymap import WAIVABLE, Scope, Situation
from console.tui.screens.ask import Ask
from console.tui.screens.confirm import Confirm
from console.tui.widgets.bars import AttentionBar, KeyBar, StatusBar
from console.view import Snapshot, Tone, attention
from console.view.attention import dependents
from console.view.jobs import JobRow
from console.view.text import clean
from pipeline.protocol import ActionReply, JobState

if TYPE_CHECKING:
    from console.tui.app import Deck

DOING = {
    "restart": "restarting",
    "restart-with-dependents": "restarting",
    "start": "starting",
    "stop": "stopping",
    "kill": "killing",
}
UNTOUCHED = (JobState.WAITING, JobState.QUEUED, JobState.STOPPED)
"""A job in one of these states is not restarted with the one it is behind."""


class DeckScreen(Screen[None]):
    """A screen that is given snapshots by the app. Subclasses implement ``paint`` and ``situation``."""

    SCOPE: ClassVar[Scope]

    def __init__(self) -> None:
        super().__init__()
        self._arrived = False

    def on_mount(self) -> None:
        self._arrived = True
        self.paint()

    def on_screen_resume(self) -> None:
        """Snapshots that came while another screen was in front are drawn by none of those behind it."""
        if self.ready:
            self.paint()

    @property
    def ready(self) -> bool:
        """Whether its widgets exist: they come after it, and on the way out they go before it."""
        return self._arrived and self.app.is_running and self.is_attached

    @property
    def deck(self) -> Deck:
        return cast("Deck", self.app)

    @property
    def controls(self) -> Controls:
        return self.deck.controls

    @property
    def snapshot(self) -> Snapshot:
        return self.deck.snapshot

    @property
    def selected(self) -> JobRow | None:
        """The job that actions are about."""
        raise NotImplementedError

    def situation(self) -> Situation:
        """What decides which keys apply."""
        snapshot = self.snapshot
        return Situation(
            scope=self.SCOPE,
            row=self.selected,
            crashed=sum(row.crashed for row in snapshot.jobs),
            down=snapshot.link.state in ("refused", "lost"),
            new_key=bool(snapshot.link.host_key),
            read_only=self.deck.read_only,
            typing=isinstance(self.focused, Input),
        )

    def on_descendant_focus(self) -> None:
        """Other keys apply while a text is entered."""
        for bar in self.query(KeyBar):
            bar.show(self.situation())

    async def action_submit(self) -> None:
        """Take the text that is being entered."""
        if isinstance(self.focused, Input):
            await self.focused.action_submit()

    def paint(self) -> None:
        """Draw the newest snapshot."""
        raise NotImplementedError

    def tick(self) -> None:
        """Draw what changes with time alone; called once a second. Here: the lines that every screen has."""
        snapshot, now = self.snapshot, self.deck.now()
        self.set_class(snapshot.stale(now) or snapshot.link.state in ("lost", "refused"), "-stale")
        self.query_one("#attention", AttentionBar).show(attention(snapshot, now))
        self.query_one("#status", StatusBar).show(self.deck.said(), snapshot)
        self.query_one("#keys", KeyBar).show(self.situation())

    def say(self, tone: Tone, text: str) -> None:
        """Show what was just done, or why it was not."""
        self.deck.say(tone, text)

    # --- Actions on a job ---

    def action_restart(self) -> None:
        self._ask("restart", lambda row: row.healthy)

    def action_restart_with_dependents(self) -> None:
        row = self.selected
        names = dependents(row.name, self.snapshot.jobs) if row else ()
        begun = [name for name in names if (each := self.snapshot.job(name)) and each.state not in UNTOUCHED]
        also = f"With it, for they are behind it: {', '.join(begun)}" if begun else "No job behind it has begun"
        self._ask("restart-with-dependents", lambda _: True, also)

    def action_start(self) -> None:
        self._ask("start", lambda _: False)

    def action_stop(self) -> None:
        self._ask("stop", lambda row: row.healthy)

    def action_kill(self) -> None:
        self._ask("kill", lambda row: row.healthy)

    def action_waive(self) -> None:
        """Ask for a reason, and let the jobs behind the selected one go on without it."""
        row = self.selected
        if self._only_watches():
            return
        if row is None or row.state not in WAIVABLE:
            said = f"{row.name} is {row.state}" if row else "no job is selected"
            self.say(Tone.IDLE, f"{said}: only a job that failed can be waived")
            return
        name = row.name

        def answered(reason: str | None) -> None:
            if reason:
                self._run(f"waiving {name}", lambda: self.controls.waive(name, reason))
            else:
                self.say(Tone.IDLE, f"{name} left alone")

        behind = ", ".join(dependents(name, self.snapshot.jobs)) or "no job"
        detail = f"It is {row.state}: {row.why}\nWithout it go on: {behind}"
        self.app.push_screen(Ask(f"go on without {name}?", detail, "why; it stands in events and report"), answered)

    def action_restart_crashed(self) -> None:
        if self._only_watches():
            return
        names = [row.name for row in self.snapshot.jobs if row.crashed]
        if not names:
            self.say(Tone.IDLE, "nothing crashed: nothing to restart")
            return
        self._run(f"restarting {', '.join(names)}", self.controls.restart_crashed)

    def action_retry(self) -> None:
        if self.snapshot.link.state == "live":
            self.say(Tone.IDLE, "the link is live")
            return
        self.say(Tone.BUSY, f"connecting to {self.snapshot.host_label} …")
        self.controls.retry()

    def action_accept(self) -> None:
        """Show the host's new key and take it once the operator says so."""
        link = self.snapshot.link
        if not link.host_key:
            self.say(Tone.IDLE, "there is no new host key to accept")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self.say(Tone.BUSY, f"connecting to {self.snapshot.host_label} …")
                self.controls.retry(link.host_key)
            else:
                self.say(Tone.IDLE, "the host key is not accepted")

        self.app.push_screen(Confirm("Accept this host key?", clean(link.detail, 600)), answered)

    def action_log(self) -> None:
        row = self.selected
        if row is not None:
            self.deck.open_log(row.name)

    def action_theme(self) -> None:
        self.deck.switch_theme()

    def action_help(self) -> None:
        self.deck.open_help(self.situation())

    def action_quit_console(self) -> None:
        self.deck.leave()

    def action_back_or_quit(self) -> None:
        self.action_back()

    def action_back(self) -> None:
        self.dismiss()

    def _only_watches(self) -> bool:
        """Whether this console may change nothing; said where it is so."""
        if self.deck.read_only:
            self.say(Tone.IDLE, "this console is read-only: open it without --read-only to change something")
        return self.deck.read_only

    def _ask(self, action: JobAction, destroys: Callable[[JobRow], bool], also: str = "") -> None:
        if self._only_watches():
            return
        row = self.selected
        if row is None:
            self.say(Tone.IDLE, f"no job is selected: nothing to {action.partition('-')[0]}")
            return
        if action in ("stop", "kill") and not row.live and row.state not in ("backoff", "queued"):
            self.say(Tone.IDLE, f"{row.name} is {row.state}: nothing to {action}")
            return
        name = row.name
        if not destroys(row):
            self._act(action, name)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._act(action, name)
            else:
                self.say(Tone.IDLE, f"{name} left alone")

        detail = f"It is {row.state}: {row.why or 'nothing is wrong'}"
        if also:
            self.app.push_screen(Confirm(f"restart {name} and all behind it?", f"{detail}\n{also}"), answered)
        else:
            self.app.push_screen(Confirm(f"{action} {name}?", detail), answered)

    def _act(self, action: JobAction, name: str) -> None:
        self._run(f"{DOING[action]} {name}", lambda: self.controls.act(action, name))

    def _run(self, doing: str, ask: Callable[[], Awaitable[ActionReply]]) -> None:
        """Say at once what is being done, do it beside the screen, and say how it went."""
        self.say(Tone.BUSY, f"{doing} …")

        async def work() -> None:
            try:
                reply = await ask()
            except UnknownOutcome as error:
                self.say(Tone.BAD, f"{doing}: {error}; told here when the link is back")
                reply = await error.outcome()
            except ControlError as error:
                self.say(Tone.BAD, f"{doing}: {error}")
                return
            said = f"{doing}: {reply.text}" if reply.text and reply.text != doing else doing
            self.say(Tone.GOOD if reply.done else Tone.BAD, said)

        # The app owns the work: it goes on when this screen is closed.
        self.app.run_worker(work(), name=f"{doing} {uuid4().hex[:6]}", group="actions", exit_on_error=True)
