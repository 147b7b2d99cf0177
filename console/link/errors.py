"""What can go wrong between the console and the container, and how outside text becomes one safe line."""

from __future__ import annotations

import re
import unicodedata

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


class LinkError(Exception):
    """Base of everything this room raises; its text is one line for the operator."""


class LinkDown(LinkError):  # noqa: N818 - states what is, on the screen too
    """The wire failed, or nobody answers at its other end. The link goes on trying by itself."""


class SessionRefused(LinkDown):
    """The server opened no session; nothing has been sent."""


class OutcomeUnknown(LinkDown):
    """The wire failed while a change was on its way. ``AgentClient.withdraw`` tells later what became of it."""


class LinkRefused(LinkError):  # noqa: N818
    """The host said no, or is not the host that is known. Not tried again until the operator asks.

    ``fingerprint`` is set where the only trouble is a host key seen for the first time; it is what may be accepted.
    """

    def __init__(self, text: str, fingerprint: str = "") -> None:
        super().__init__(text)
        self.fingerprint = fingerprint


class AgentError(LinkError):
    """The agent answered, and said no; its text is one line for the operator."""


class DeployError(LinkError):
    """The container lacks something that deploying or starting the agent needs."""


def one_line(text: str | bytes, limit: int = 400) -> str:
    """``text`` of others as one line: no escape sequences, no control characters, at most ``limit`` characters."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    text = _ESCAPES.sub("", text)
    text = "".join(" " if unicodedata.category(character).startswith("C") else character for character in text)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def last_line(output: bytes) -> str:
    """The last line of a program's error output that says anything, made safe; empty if there is none."""
    for line in reversed(output.splitlines()):
        if text := one_line(line):
            return text
    return ""
