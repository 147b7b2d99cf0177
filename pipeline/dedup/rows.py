"""What dedup looks at of a record: what was said to the target, and what it would be the same prompt as."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec


class Message(msgspec.Struct):
    """A turn."""

    role: str
    content: str
    tool_calls: msgspec.Raw = msgspec.Raw()


class Record(msgspec.Struct):
    """A record of a prep of either kind. Token ids stay text: they are counted, not read."""

    dataset: str
    row: str
    hash: str
    group: str
    heldout: bool
    messages: list[Message]
    tools: msgspec.Raw = msgspec.Raw()  # that the turns may call
    prompt_ids: msgspec.Raw = msgspec.Raw()
    input_ids: msgspec.Raw = msgspec.Raw()

    @property
    def key(self) -> str:
        """A sample's identity everywhere."""
        return f"{self.dataset}/{self.row}/{self.hash}"

    @property
    def tokens(self) -> int:
        """How many token ids it has."""
        ids = bytes(self.prompt_ids) or bytes(self.input_ids)
        return ids.count(b",") + 1 if ids.strip(b"[] ") else 0

    def said(self) -> str:
        """The user-side text: what users and tools wrote."""
        return "\n".join(message.content for message in self.messages if message.role in ("user", "tool"))


@dataclass(frozen=True, slots=True)
class Digests:
    """Names of a conversation: of the whole, and of the prompt before each of its assistant turns."""

    whole: bytes
    prompts: tuple[bytes, ...]


def digests(record: Record) -> Digests:
    """White space at the ends of a turn and its amount within do not count."""
    running = hashlib.blake2b(bytes(record.tools), digest_size=16)
    prompts = []
    for message in record.messages:
        if message.role == "assistant":
            prompts.append(running.digest())
        running.update(f"\0{message.role}\0{' '.join(message.content.split())}\0".encode() + bytes(message.tool_calls))
    return Digests(running.digest(), tuple(prompts))
