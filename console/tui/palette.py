"""Colours and glyphs. A state is a glyph and a word first; its colour only repeats them."""

from __future__ import annotations

from typing import Final

from textual.theme import Theme

from console.view import Tone
from pipeline.protocol import JobState

GLYPHS: Final = {
    JobState.WAITING: "·",
    JobState.QUEUED: "▲",
    JobState.STARTING: "○",
    JobState.RUNNING: "●",
    JobState.READY: "◆",
    JobState.STALLED: "‖",
    JobState.STOPPING: "▽",
    JobState.BACKOFF: "↻",
    JobState.DONE: "✓",
    JobState.EMPTY: "∅",
    JobState.FAILED: "✗",
    JobState.STOPPED: "■",
    JobState.LOST: "?",
}

TONES: Final = {
    JobState.WAITING: Tone.IDLE,
    JobState.QUEUED: Tone.WARN,
    JobState.STARTING: Tone.BUSY,
    JobState.RUNNING: Tone.BUSY,
    JobState.READY: Tone.GOOD,
    JobState.STALLED: Tone.WARN,
    JobState.STOPPING: Tone.BUSY,
    JobState.BACKOFF: Tone.WARN,
    JobState.DONE: Tone.GOOD,
    JobState.EMPTY: Tone.BAD,
    JobState.FAILED: Tone.BAD,
    JobState.STOPPED: Tone.IDLE,
    JobState.LOST: Tone.BAD,
}

TONE_GLYPHS: Final = {Tone.GOOD: "✓", Tone.BUSY: "●", Tone.IDLE: "·", Tone.WARN: "▲", Tone.BAD: "✗"}

_DARK: Final = {
    "good": "#8fce8f",
    "busy": "#6cb6ff",
    "idle": "#7d8794",
    "warn": "#e8b45a",
    "bad": "#ff7b7f",
    "good-bar": "#1c3a28",
    "busy-bar": "#16324f",
    "idle-bar": "#1e242c",
    "warn-bar": "#4a3610",
    "bad-bar": "#5a1d24",
    "faint": "#687382",
    "label": "#97a1af",
    "edge": "#2a323d",
    "edge-focus": "#6cb6ff",
    "cursor": "#22303f",
    "curve": "#5fb3b3",
    "hit": "#4a3f12",
}
_LIGHT: Final = {
    "good": "#1a7f37",
    "busy": "#0b61c4",
    "idle": "#69737f",
    "warn": "#8f5b00",
    "bad": "#c21f30",
    "good-bar": "#d5f0dc",
    "busy-bar": "#d8e9fc",
    "idle-bar": "#e8ebef",
    "warn-bar": "#fdebc2",
    "bad-bar": "#fbd7da",
    "faint": "#7f8995",
    "label": "#56606c",
    "edge": "#cfd6de",
    "edge-focus": "#0b61c4",
    "cursor": "#dfe9f5",
    "curve": "#14808a",
    "hit": "#ffe9a3",
}

DARK: Final = Theme(
    name="draftdeck-dark",
    primary=_DARK["busy"],
    secondary=_DARK["curve"],
    warning=_DARK["warn"],
    error=_DARK["bad"],
    success=_DARK["good"],
    accent=_DARK["busy"],
    foreground="#d6dde6",
    background="#0e1217",
    surface="#0e1217",
    panel="#171d25",
    dark=True,
    variables=_DARK,
)
LIGHT: Final = Theme(
    name="draftdeck-light",
    primary=_LIGHT["busy"],
    secondary=_LIGHT["curve"],
    warning=_LIGHT["warn"],
    error=_LIGHT["bad"],
    success=_LIGHT["good"],
    accent=_LIGHT["busy"],
    foreground="#1d242c",
    background="#fbfcfd",
    surface="#fbfcfd",
    panel="#eef1f5",
    dark=False,
    variables=_LIGHT,
)


def colours(dark: bool) -> dict[str, str]:
    """The named colours of the dark or the light theme, for what is drawn outside the style sheet."""
    return _DARK if dark else _LIGHT
