"""What asking a server comes to. Apart from the client itself, which takes a second to import."""

from __future__ import annotations

from dataclasses import dataclass


class RefusedError(Exception):
    """The server will never answer this prompt: 4xx, or an answer to something else than was asked."""


class TroubleError(Exception):
    """This attempt failed and another may do; ``gone`` where the server itself may be down."""

    def __init__(self, reason: str, *, gone: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone


@dataclass(frozen=True)
class Generated:
    output_ids: list[int]
    finish: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Load:
    """The server's own word on its speed."""

    running: int
    tok_s: float
