"""What merge reads: finished preps, and the answers to their prompts, found by key without holding them in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from pipeline import duplicates, preps
from pipeline.duplicates import Duplicates
from pipeline.files import complete_lines
from pipeline.preps import Prep

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


def key_of(record: Prompt | Sample) -> str:
    """A sample's identity everywhere."""
    return f"{record.dataset}/{record.row}/{record.hash}"


def given(
    samples: Sequence[Path], prompts: Sequence[Path], dedup: Path | None
) -> tuple[list[Prep], Duplicates | None, list[str]]:
    """The finished preps, answers first, what dedup decided of them, and remarks. Raises MergeError and the like.

    Dedup has waited for all preps, so one that has left nothing by then was waived.
    """
    folders = [(folder, "answers") for folder in samples] + [(folder, "prompts") for folder in prompts]
    notes = []
    known = None
    if dedup is not None:
        known = duplicates.read(dedup)
        if known is None:
            notes.append(f"dedup has left nothing in {dedup}: duplicates are kept")
        absent = [folder for folder, _ in folders if not preps.finished(folder)]
        notes += [f"nothing in {folder}: left out" for folder in absent]
        folders = [(folder, kind) for folder, kind in folders if folder not in absent]
        if not folders:
            raise MergeError("nothing to merge: no prep has finished")
    found = [preps.read(folder, kind) for folder, kind in folders]
    preps.check_together(found)
    if known is not None:
        for prep in found:
            known.check(prep.dataset, prep.identity["content"])
        if missing := known.preps.keys() - {prep.dataset for prep in found}:
            raise MergeError(f"{dedup} was made with {', '.join(sorted(missing))}, which is gone; run dedup again")
    return found, known, notes


def prompts(prep: Prep) -> Iterator[Prompt]:
    """The prompts of a prep, in its order. Raises PrepError."""
    return preps.records(prep, msgspec.json.Decoder(Prompt))


def samples(prep: Prep) -> Iterator[Sample]:
    """The samples of a prep, in its order. Raises PrepError."""
    return preps.records(prep, msgspec.json.Decoder(Sample))


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
