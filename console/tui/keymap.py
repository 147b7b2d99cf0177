"""Every key of the console, as data: the bindings, the bottom line and the help are all made from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from textual.binding import Binding, BindingType

from console.view.jobs import JobRow
from pipeline.protocol import LIVE, JobState

Scope = Literal["overview", "job", "log", "help"]


@dataclass(frozen=True)
class Situation:
    """What decides which keys apply: the screen, the selected job and what there is to act on."""

    scope: Scope
    row: JobRow | None = None
    crashed: int = 0
    down: bool = False  # the link is refused or lost
    new_key: bool = False  # the host's key is seen for the first time
    read_only: bool = False
    filtered: bool = False
    searching: bool = False
    following: bool = False
    one_pane: bool = False  # too small a screen for more
    typing: bool = False  # a text is being entered: letters are letters


Applies = Callable[[Situation], bool]


@dataclass(frozen=True)
class Key:
    """One key. ``label`` is its word on the bottom line, "" keeps it off; ``applies`` says when it does something."""

    keys: str  # Textual's names, comma separated
    shown: str
    action: str
    label: str
    help: str
    scopes: tuple[Scope, ...]
    applies: Applies = lambda _: True
    changes: bool = False  # something on the host: not offered to those who only watch


STARTABLE: Final = frozenset(JobState) - LIVE - {JobState.QUEUED}
WAIVABLE: Final = frozenset({JobState.FAILED, JobState.EMPTY, JobState.LOST, JobState.STOPPED})


def _has_job(now: Situation) -> bool:
    return now.row is not None


def _restartable(now: Situation) -> bool:
    return now.row is not None and now.row.state not in (JobState.WAITING, JobState.QUEUED)


def _startable(now: Situation) -> bool:
    return now.row is not None and now.row.state in STARTABLE


def _stoppable(now: Situation) -> bool:
    return now.row is not None and (now.row.live or now.row.state in (JobState.BACKOFF, JobState.QUEUED))


def _killable(now: Situation) -> bool:
    return now.row is not None and now.row.live


def _waivable(now: Situation) -> bool:
    return now.row is not None and now.row.state in WAIVABLE and not now.row.waived


def _crashed(now: Situation) -> bool:
    return now.crashed > 0


def _has_earlier(now: Situation) -> bool:
    return now.row is not None and now.row.attempt > 1


OVERVIEW: Final[tuple[Scope, ...]] = ("overview",)
JOBS: Final[tuple[Scope, ...]] = ("overview", "job")
LOG: Final[tuple[Scope, ...]] = ("log",)
MOVING: Final[tuple[Scope, ...]] = ("overview", "job", "log", "help")

KEYMAP: Final[tuple[Key, ...]] = (
    Key(
        "a", "a", "accept", "accept its key", "look at the host's new key, and accept it", JOBS, lambda now: now.new_key
    ),
    Key("c", "c", "retry", "connect again", "connect to the host again", JOBS, lambda now: now.down),
    Key("r", "r", "restart", "restart", "restart the selected job; asks if it runs well", JOBS, _restartable, True),
    Key(
        "ctrl+r",
        "ctrl+r",
        "restart_with_dependents",
        "",
        "restart the selected job and every job behind it; asks",
        JOBS,
        _restartable,
        True,
    ),
    Key("R", "R", "restart_crashed", "all crashed", "restart every job that crashed", JOBS, _crashed, True),
    Key("s", "s", "start", "start", "start the selected job", JOBS, _startable, True),
    Key(
        "x",
        "x",
        "stop",
        "stop",
        "stop the selected job: TERM, then its grace time; asks if it runs well",
        JOBS,
        _stoppable,
        True,
    ),
    Key("X", "X", "kill", "", "kill the selected job at once; asks if it runs well", JOBS, _killable, True),
    Key(
        "W",
        "W",
        "waive",
        "waive",
        "let the jobs behind the selected one go on although it failed; asks why",
        JOBS,
        _waivable,
        True,
    ),
    Key("l", "l", "log", "log", "the log of the selected job", JOBS, _has_job),
    Key("enter,d", "⏎", "detail", "details", "everything about the selected job (also d)", OVERVIEW, _has_job),
    Key("n", "n", "next_problem", "", "go to the next job that is not well", OVERVIEW, _has_job),
    Key("slash", "/", "filter", "filter", "show only jobs whose name, state or reason holds a text", OVERVIEW),
    Key("f", "f", "follow", "follow", "stay at the end of the log as it grows", LOG),
    Key("slash", "/", "search", "search", "search the whole log, on the host", LOG),
    Key("n", "n", "next_hit", "next", "next hit", LOG, lambda now: now.searching),
    Key("N", "N", "previous_hit", "previous", "previous hit", LOG, lambda now: now.searching),
    Key("w", "w", "wrap", "wrap", "wrap long lines", LOG),
    Key("p", "p", "previous_attempt", "attempt before", "the log of the attempt before", LOG, _has_earlier),
    Key("P", "P", "next_attempt", "", "the log of the attempt after", LOG, _has_earlier),
    Key("j,down", "j ↓", "down", "", "down", MOVING),
    Key("k,up", "k ↑", "up", "", "up", MOVING),
    Key("g,home", "g", "top", "", "to the top", MOVING),
    Key("G,end", "G", "bottom", "", "to the end", MOVING),
    Key("ctrl+d,pagedown", "ctrl+d", "page_down", "", "a page down", MOVING),
    Key("ctrl+u,pageup", "ctrl+u", "page_up", "", "a page up", MOVING),
    Key("tab", "tab", "next_pane", "panes", "next pane", OVERVIEW),
    Key("shift+tab", "shift+tab", "previous_pane", "", "pane before", OVERVIEW),
    Key("z", "z", "zoom", "zoom", "the pane alone on the screen, and back", OVERVIEW, lambda now: not now.one_pane),
    Key("t", "t", "theme", "", "light or dark", JOBS),
    Key("question_mark,f1", "?", "help", "help", "the keys that do something here", ("overview", "job", "log")),
    Key("escape", "esc", "back", "", "close what is open: filter, zoom, screen", MOVING),
    Key("q", "q", "back_or_quit", "back", "back", ("job", "log", "help")),
    Key("q", "q", "quit_console", "quit (jobs go on)", "leave the console; jobs go on", OVERVIEW),
    Key("ctrl+c,ctrl+q", "ctrl+c", "quit_console", "", "leave the console from anywhere; jobs go on", MOVING),
)

TYPING: Final[tuple[Key, ...]] = (
    Key("enter", "⏎", "submit", "take it", "take the text", MOVING),
    Key("escape", "esc", "back", "leave it", "leave the text", MOVING),
)


def bindings(scope: Scope) -> list[BindingType]:
    """The bindings of a screen. They come before those of the focused widget, so that one key means one thing."""
    return [Binding(key.keys, key.action, key.help, show=False) for key in KEYMAP if scope in key.scopes]


def applying(now: Situation) -> tuple[Key, ...]:
    """The keys that do something in this situation, in the order of the map."""
    if now.typing:
        return TYPING
    return tuple(
        key for key in KEYMAP if now.scope in key.scopes and key.applies(now) and not (key.changes and now.read_only)
    )
