"""A line of what doctor says, and how the lines are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

import msgspec

from console.view.text import clean

State = Literal["ok", "warning", "wrong"]
MARKS: Final = {"ok": "✓", "warning": "!", "wrong": "✗"}
TOPIC: Final = 19
SSH: Final = "ssh"
"""The topic of the connection itself."""


@dataclass(frozen=True)
class Finding:
    """``warning``: it works, but not all of it or not for ever. ``wrong``: something of the run cannot work."""

    state: State
    topic: str
    text: str
    advice: str = ""


def well(findings: Iterable[Finding]) -> bool:
    return all(finding.state != "wrong" for finding in findings)


def reached(findings: Iterable[Finding]) -> bool:
    """Whether there was a connection to the host, to the end."""
    return not any(finding.topic == SSH and finding.state == "wrong" for finding in findings)


def as_text(findings: Sequence[Finding]) -> str:
    """A line each, the advice below it, and a last line that counts."""
    lines = []
    for finding in findings:
        lines.append(f"{MARKS[finding.state]} {finding.state:<8}{finding.topic:<{TOPIC}}{clean(finding.text, 400)}")
        lines += [" " * (10 + TOPIC) + f"→ {clean(part, 400)}" for part in finding.advice.splitlines()]
    counts = {state: sum(finding.state == state for finding in findings) for state in MARKS}
    lines.append(f"{counts['ok']} ok, {counts['warning']} to know of, {counts['wrong']} wrong")
    return "\n".join(lines)


def as_json(findings: Sequence[Finding]) -> str:
    found = {"ok": well(findings), "findings": [asdict(finding) for finding in findings]}
    return msgspec.json.format(msgspec.json.encode(found)).decode()
