"""The finished output of preps, as the stages after them read it."""

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


class PrepError(Exception):
    """A prep's output that cannot be used, in one line with what to do."""


@dataclass(frozen=True)
class Prep:
    """The finished output of one prep."""

    folder: Path
    dataset: str
    kind: str
    records: int
    tokenizer: str  # fingerprint
    identity: dict[str, Any]  # for the manifest of what is made of it


def finished(folder: Path) -> bool:
    """Whether there is a prep's output; a waived prep has left none."""
    return outputs.read_manifest(folder) is not None


def read(folder: Path, kind: str) -> Prep:
    """A prep's output folder, checked to be whole. Raises PrepError."""
    manifest = outputs.read_manifest(folder)
    if manifest is None:
        raise PrepError(f"{folder} has no manifest: its prep has not finished; run it to its end first")
    if outputs.done(folder, manifest["content"]) is None:
        raise PrepError(f"{folder / RECORDS} is not the file its manifest speaks of; run its prep again")
    settings = manifest["settings"]
    if settings["kind"] != kind:
        raise PrepError(f"{folder} holds {settings['kind']}, but it was given as {kind}")
    return Prep(
        folder=folder,
        dataset=settings["dataset"],
        kind=kind,
        records=manifest["kept"],
        tokenizer=settings["tokenizer"],
        identity={"dataset": settings["dataset"], "kind": kind, "content": manifest["content"], **manifest["files"]},
    )


def records(prep: Prep, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
    """The records of a prep, in its order. Raises PrepError."""
    for number, line in enumerate(complete_lines(prep.folder / RECORDS), 1):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise PrepError(f"{prep.folder / RECORDS} line {number}: {error}; run its prep again") from error


def check_together(preps: list[Prep]) -> None:
    """Raises PrepError for preps that do not belong to one training set."""
    seen: dict[str, Prep] = {}
    for prep in preps:
        if prep.dataset in seen:
            raise PrepError(f"dataset {prep.dataset} is given twice: {seen[prep.dataset].folder} and {prep.folder}")
        seen[prep.dataset] = prep
        if prep.tokenizer != preps[0].tokenizer:
            raise PrepError(
                f"{prep.folder} was tokenized with another tokenizer or template than {preps[0].folder}; "
                "run the older one's prep again"
            )
