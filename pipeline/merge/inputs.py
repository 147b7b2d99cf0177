"""What merge reads: finished preps, and the answers to their prompts, found by key without holding them in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from pipeline import outputs
from pipeline.files import complete_lines

T = TypeVar("T")

RECORDS: Final = "records.jsonl"
ERRORS: Final = "errors.jsonl"


class MergeError(Exception):
    """Why there is no training set, in one line with what to do."""


class Prompt(msgspec.Struct):
    """A record of a prep of kind prompts, as far as merge needs it."""

    dataset: str
    row: str
    hash: str
    group: str
    heldout: bool
    prompt_ids: list[int]


class Sample(msgspec.Struct):
    """A record of a prep of kind answers."""

    dataset: str
    row: str
    hash: str
    group: str
    heldout: bool
    input_ids: list[int]
    loss_mask: list[int]


class Answer(msgspec.Struct):
    """A line of generate's output, as far as merge needs it."""

    key: str
    output_ids: list[int]
    finish: str
    prompt_hash: str = ""


class SetAside(msgspec.Struct):
    """A line of generate's errors: a prompt the server would refuse again, if ``permanent``."""

    key: str
    reason: str
    permanent: bool
    prompt_hash: str = ""


class _Key(msgspec.Struct):
    key: str


@dataclass(frozen=True)
class Prep:
    """The finished output of one prep."""

    folder: Path
    dataset: str
    kind: str
    records: int
    tokenizer: str  # fingerprint
    identity: dict[str, Any]  # for merge's own manifest


def key_of(record: Prompt | Sample) -> str:
    """A sample's identity everywhere."""
    return f"{record.dataset}/{record.row}/{record.hash}"


def read_prep(folder: Path, kind: str) -> Prep:
    """A prep's output folder, checked to be whole. Raises MergeError."""
    manifest = outputs.read_manifest(folder)
    if manifest is None:
        raise MergeError(f"{folder} has no manifest: its prep has not finished; run it to its end first")
    if outputs.done(folder, manifest["content"]) is None:
        raise MergeError(f"{folder / RECORDS} is not the file its manifest speaks of; run its prep again")
    settings = manifest["settings"]
    if settings["kind"] != kind:
        raise MergeError(f"{folder} holds {settings['kind']}, but it was given as {kind}")
    return Prep(
        folder=folder,
        dataset=settings["dataset"],
        kind=kind,
        records=manifest["kept"],
        tokenizer=settings["tokenizer"],
        identity={"dataset": settings["dataset"], "kind": kind, "content": manifest["content"], **manifest["files"]},
    )


def prompts(prep: Prep) -> Iterator[Prompt]:
    """The prompts of a prep, in its order. Raises MergeError."""
    return _records(prep, msgspec.json.Decoder(Prompt))


def samples(prep: Prep) -> Iterator[Sample]:
    """The samples of a prep, in its order. Raises MergeError."""
    return _records(prep, msgspec.json.Decoder(Sample))


def _records(prep: Prep, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
    for number, line in enumerate(complete_lines(prep.folder / RECORDS), 1):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise MergeError(f"{prep.folder / RECORDS} line {number}: {error}; run its prep again") from error


def set_aside(folder: Path) -> dict[str, SetAside]:
    """The prompts that generate gave up for good, by key; the last word on each counts."""
    decoder = msgspec.json.Decoder(SetAside)
    found: dict[str, SetAside] = {}
    for line in complete_lines(folder / ERRORS):
        try:
            one = decoder.decode(line)
        except msgspec.DecodeError:
            continue  # its prompt is missing then, and named as such
        if one.permanent:
            found[one.key] = one
    return found


class Answers:
    """The answers in one file, by key. Memory holds keys and places, not token ids."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._places: dict[str, tuple[int, int]] = {}
        self._decoder = msgspec.json.Decoder(Answer)
        self.doubled: list[str] = []
        self.unreadable = 0
        keys = msgspec.json.Decoder(_Key)
        place = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break  # torn by a kill; generate cuts it when it goes on
            try:
                key = keys.decode(line).key
            except msgspec.DecodeError:
                self.unreadable += 1
            else:
                if key in self._places:
                    self.doubled.append(key)
                self._places[key] = (place, len(line))
            place += len(line)

    def __len__(self) -> int:
        return len(self._places)

    def take(self, key: str) -> Answer | None:
        """The answer of a key, which is then no longer there; None without one. Raises MergeError."""
        place = self._places.pop(key, None)
        if place is None:
            return None
        self._file.seek(place[0])
        try:
            return self._decoder.decode(self._file.read(place[1]))
        except msgspec.DecodeError as error:
            raise MergeError(f"{self._file.name}: the answer of {key} is damaged: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()
