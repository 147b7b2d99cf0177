"""What asking a server comes to. Apart from the client itself, which takes a second to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]

UNREACHED: Final = "no connection"
CUT: Final = "connection cut"
LATE: Final = "no answer in time"
GARBLED: Final = "answer not understood"
HUGE: Final = "answer too large"
"""Kinds of failure that are no status of HTTP: what retries are counted by."""

IN_HAND: Final = frozenset({CUT, LATE})
"""With these the server may have been at work on the prompt."""


class RunError(Exception):
    """The run cannot go on; the text says why and what to do."""


class RefusedError(Exception):
    """The server will never answer this prompt: 4xx, or an answer to something else than was asked.

    ``kind`` is the reason without what differs from prompt to prompt, to be counted by.
    """

    def __init__(self, reason: str, *, kind: str = "") -> None:
        super().__init__(reason)
        self.kind = kind or reason


class TroubleError(Exception):
    """This attempt failed and another may do.

    ``kind`` is what it is counted by: one of the above, or "HTTP 500". ``gone`` where the server itself may be down.
    ``busy`` where it has no room at the moment, which is no fault of the prompt. ``wait_s``: it asks not to be asked
    again before.
    """

    def __init__(
        self, reason: str, *, kind: str = "", gone: bool = False, busy: bool = False, wait_s: float = 0.0
    ) -> None:
        super().__init__(reason)
        self.kind = kind or reason
        self.gone = gone
        self.busy = busy
        self.wait_s = wait_s


@dataclass(frozen=True)
class Generated:
    """An answer as it came; ``finish`` is "stop", "length" or "abort"."""

    output_ids: list[int]
    finish: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Load:
    """The server's own word on its speed."""

    running: int
    tok_s: float
    queued: int = 0
    kv_use: float | None = None  # 0 to 1
    retracted: int | None = None  # requests thrown out of the KV cache, as the server counts them
