"""What dedup decided, as the stages after it read it: the rows that are not used, and of which preps it knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from pipeline import outputs
from pipeline.files import complete_lines

DROPPED: Final = "dropped.jsonl"


class DuplicatesError(Exception):
    """Dedup's output that cannot be used, in one line with what to do."""


class Dropped(msgspec.Struct, frozen=True):
    """A row that is not used. ``of`` is the key of the row it doubles, ``similarity`` an estimate from 0 to 1."""

    key: str
    dataset: str
    reason: str
    of: str
    similarity: float


@dataclass(frozen=True)
class Duplicates:
    """The output of one run of dedup."""

    folder: Path
    reasons: Mapping[str, str]  # key to why it is not used
    preps: Mapping[str, str]  # dataset to the content of the prep that was read
    identity: dict[str, Any]  # for the manifest of what is made of it

    def check(self, dataset: str, content: str) -> None:
        """Raises DuplicatesError where dedup has read another output of this dataset's prep, or none."""
        if dataset not in self.preps:
            raise DuplicatesError(f"{self.folder} was made without {dataset}; run dedup again")
        if self.preps[dataset] != content:
            raise DuplicatesError(f"{self.folder} was made from other records of {dataset}; run dedup again")


def read(folder: Path) -> Duplicates | None:
    """What dedup left in a folder; None where it has not finished, or was waived. Raises DuplicatesError."""
    manifest = outputs.read_manifest(folder)
    if manifest is None:
        return None
    if outputs.done(folder, manifest["content"]) is None:
        raise DuplicatesError(f"{folder / DROPPED} is not the file its manifest speaks of; run dedup again")
    decoder = msgspec.json.Decoder(Dropped)
    try:
        rows = [decoder.decode(line) for line in complete_lines(folder / DROPPED)]
    except msgspec.DecodeError as error:
        raise DuplicatesError(f"{folder / DROPPED}: {error}; run dedup again") from error
    return Duplicates(
        folder=folder,
        reasons={row.key: row.reason for row in rows},
        preps={prep["dataset"]: prep["content"] for prep in manifest["inputs"]},
        identity={"content": manifest["content"], **manifest["files"]},
    )
