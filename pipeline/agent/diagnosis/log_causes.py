"""What the end of a log says about why a job ended: its tracebacks, and the errors in them that are known. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pipeline.agent.attempts.logs import plain
from pipeline.agent.diagnosis.known_errors import Cause, known

_HEADER: Final = "Traceback (most recent call last):"
_CHAINED: Final = ("The above exception was the direct cause", "During handling of the above exception")
_FRAME: Final = re.compile(r'^\s+File "')
_CONTINUED: Final = 12
"""Lines of an exception's message looked at beyond its first."""
_LAST: Final = 40
"""Lines at the end of a log in which an error without a traceback is looked for."""
_TRIED: Final = "thrown while requesting"
"""In huggingface_hub's words for an answer after which it tries again."""


@dataclass(frozen=True)
class Traceback:
    """A Python traceback: the line it begins in, and its exception, first line and whole message."""

    line: int
    error: str
    message: str
    place: str = ""  # 'File "…", line …, in …' of the innermost frame
    prefix: str = ""  # what stands before each of its lines: "[rank0]: "


@dataclass(frozen=True)
class LogEnd:
    """The end of a log as plain lines, none of them blank."""

    lines: tuple[str, ...]
    tracebacks: tuple[Traceback, ...]

    def find(self, pattern: str) -> tuple[int, str] | None:
        """The first line that matches, with its number."""
        compiled = re.compile(pattern)
        return next(((number, line) for number, line in enumerate(self.lines) if compiled.search(line)), None)

    @property
    def last(self) -> str:
        return self.lines[-1].strip() if self.lines else ""


def read_log_end(data: bytes) -> LogEnd:
    """Split and clean the tail of a log, blank lines left out. A progress bar's carriage returns end lines."""
    text = plain(data.decode(errors="replace"), keep="\r\n")
    lines = tuple(line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip())
    if "Exception Group Traceback" in text:  # its lines are drawn as a tree
        lines = tuple(re.sub(r"^ {2,}[|+] ", "", line) for line in lines)
    return LogEnd(lines, tuple(_tracebacks(lines)))


def cause_in(log: LogEnd, root: Traceback | None = None) -> Cause | None:
    """The known error of ``root``, else of the last traceback, else of the last lines.

    Where there is a traceback, other lines do not count: they may tell of troubles that were overcome. Of exceptions
    that were raised from one another the outermost that is known counts, but a library's "no connection" is believed
    only where none of the others knows better.
    """
    if root is None and log.tracebacks:
        root = log.tracebacks[-1]
    if root is None:
        return cause_above(log, len(log.lines))
    causes = [cause for message in _chain(log, root) if (cause := known(message))]
    better = next((cause for cause in causes if cause.key != "network"), None)
    if causes and better is None:  # a client that tried again says what the answers were, and then forgets it
        better = next((cause for line in reversed(log.lines) if _TRIED in line and (cause := known(line))), None)
    return better or next(iter(causes), None)


def cause_above(log: LogEnd, end: int) -> Cause | None:
    """The known error in the lines right before line ``end``."""
    return next((cause for line in log.lines[max(0, end - _LAST) : end] if (cause := known(line))), None)


def _chain(log: LogEnd, root: Traceback) -> list[str]:
    """The message of ``root``, then of what it was raised from, and so on to the first; some have no traceback."""
    lines = [line.removeprefix(root.prefix) for line in log.lines[: root.line]]
    found, at = [root.message], root.line
    while at and lines[at - 1].startswith(_CHAINED):
        begin = end = at - 1
        while begin and end - begin < _CONTINUED and not _ends_frames(lines[begin - 1]):
            begin -= 1
        found.append("\n".join(lines[begin:end]))
        at = begin
        while at and lines[at - 1][:1] in (" ", "\t"):
            at -= 1
        at -= bool(at and lines[at - 1].startswith(_HEADER))
    return found


def _ends_frames(line: str) -> bool:
    return line[:1] in (" ", "\t") or line.startswith(_CHAINED) or _HEADER in line


def _tracebacks(lines: tuple[str, ...]) -> list[Traceback]:
    found = []
    number = 0
    while number < len(lines):
        header = lines[number].find(_HEADER)
        if header < 0 and not _FRAME.match(lines[number]):
            number += 1
            continue
        began, prefix = number, lines[number][:header] if header > 0 else ""
        place = ""
        number += header >= 0
        # Launchers put "[rank0]: " before every line of a traceback, loggers their time before the first.
        while number < len(lines) and (line := lines[number].removeprefix(prefix))[:1] in (" ", "\t"):
            if _FRAME.match(line):
                place = line.strip()
            number += 1
        if number < len(lines):
            message = [line.removeprefix(prefix) for line in lines[number : number + _CONTINUED]]
            ends = (at for at, line in enumerate(message) if at and (_HEADER in line or line.startswith(_CHAINED)))
            end = next(ends, len(message))
            found.append(Traceback(began, message[0], "\n".join(message[:end]), place, prefix))
            number += 1
    return found
