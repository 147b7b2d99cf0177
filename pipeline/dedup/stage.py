"""The stage: the records of all preps in, the keys of those that are not used out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from pipeline import outputs, preps
from pipeline.dedup import minhash
from pipeline.dedup.decide import Double, Rows, doubles
from pipeline.dedup.rows import Record, digests
from pipeline.duplicates import DROPPED, Dropped
from pipeline.files import content_hash
from pipeline.preps import Prep, PrepError
from pipeline.progress import Reporter
from pipeline.protocol import DatasetCount

FORMAT: Final = 2
EXAMPLES: Final = 3  # rows a reason is shown with


@dataclass(frozen=True)
class Settings:
    """The command line, checked."""

    samples: tuple[Path, ...]
    prompts: tuple[Path, ...]
    out: Path
    threshold: float = 0.8
    shingle: int = 5


@dataclass
class Count:
    """What became of one dataset's rows."""

    read: int
    kept: int = 0
    heldout: int = 0  # of the kept
    tokens: int = 0  # of the kept
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def drop(self, reason: str, key: str, of: str) -> None:
        """Count a row that goes."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append({"key": key, "of": of})

    def public(self) -> DatasetCount:
        """For a progress line."""
        return DatasetCount(
            read=self.kept + sum(self.dropped.values()),
            kept=self.kept,
            dropped=dict(self.dropped),
            tokens=self.tokens,
            total=self.read,
        )


class NothingLeftError(Exception):
    """A set of which no row would be used; the first line names it, the others show rows."""


def run(settings: Settings) -> int:
    """Run the stage and report its result. 0: decided; 1: it could not run; 3: the sets cannot be used so."""
    reporter = Reporter()
    dedup = Dedup(settings, reporter)
    try:
        with outputs.exclusive(settings.out):
            dedup.run()
    except outputs.HeldError as error:
        reporter.finish(0, str(error))
        return 1
    except (PrepError, NothingLeftError) as error:
        first, _, others = str(error).partition("\n")
        reporter.finish(0, first, datasets=dedup.counts())
        if others:
            print(others, file=sys.stderr, flush=True)
        return 3
    return 0


class Dedup:
    """One run."""

    def __init__(self, settings: Settings, reporter: Reporter) -> None:
        self._settings = settings
        self._reporter = reporter
        self._counts: dict[str, Count] = {}

    def counts(self) -> dict[str, DatasetCount]:
        """Rows by dataset, for a progress line."""
        return {name: count.public() for name, count in self._counts.items()}

    def run(self) -> None:
        """Do it all. Raises PrepError, NothingLeftError."""
        settings = self._settings
        given = self._preps()
        rule = {"format": FORMAT, "threshold": settings.threshold, "shingle": settings.shingle}
        made_of = [prep.identity for prep in given]
        content = content_hash([rule, made_of])
        if (manifest := outputs.done(settings.out, content)) is not None:
            self._finish(manifest, "already done: ")
            return
        if (moved := outputs.set_aside(settings.out, content)) is not None:
            note = f"{settings.out} was made from other records: moved to {moved.name}"
            self._reporter.update("reading", note=note, force=True)
        rows, tokens = self._read(given)
        self._reporter.update("comparing", done=len(rows.keys), total=len(rows.keys), unit="rows", force=True)
        found = sorted(doubles(rows, settings.threshold), key=lambda double: double.row)
        self._count(given, rows, tokens, found)
        with outputs.replacing(settings.out / DROPPED) as file:
            for double in found:
                key, of = rows.keys[double.row], rows.keys[double.of]
                file.line(Dropped(key, key.partition("/")[0], double.reason, of, round(double.similarity, 3)))
        manifest = {
            "stage": "dedup",
            "content": content,
            "settings": rule,
            "inputs": made_of,
            "files": {DROPPED: file.summary()},
            "read": len(rows.keys),
            "kept": len(rows.keys) - len(found),
            "dropped": dict(sorted(Counter(double.reason for double in found).items())),
            "datasets": {name: msgspec.to_builtins(count) for name, count in self._counts.items()},
        }
        outputs.write_manifest(settings.out, manifest)
        self._finish(manifest, "")

    def _preps(self) -> list[Prep]:
        """Those that have finished, samples first. Raises PrepError."""
        given = [(folder, "answers") for folder in self._settings.samples]
        given += [(folder, "prompts") for folder in self._settings.prompts]
        absent = [str(folder) for folder, _ in given if not preps.finished(folder)]
        if len(absent) == len(given):
            raise PrepError(f"nothing to compare: no prep has finished, there is nothing in {', '.join(absent)}")
        note = f"nothing in {', '.join(absent)}: left out" if absent else ""
        self._reporter.update("reading", note=note, force=True)
        found = [preps.read(folder, kind) for folder, kind in given if str(folder) not in absent]
        preps.check_together(found)
        return found

    def _read(self, given: Sequence[Prep]) -> tuple[Rows, list[int]]:
        """All rows, and the tokens of each. One record is in memory at a time. Raises PrepError."""
        total = sum(prep.records for prep in given)
        rows = Rows(np.zeros((total, minhash.PLACES), np.uint32))
        tokens: list[int] = []
        sides: dict[str, tuple[bool, str]] = {}  # group to whether it is held out, and in which dataset that was seen
        decoder = msgspec.json.Decoder(Record)
        for prep in given:
            for record in preps.records(prep, decoder):
                side, seen = sides.setdefault(record.group, (record.heldout, record.dataset))
                if side != record.heldout:
                    raise PrepError(
                        f"{record.key}: group {record.group} is on the other side of the split in {seen}; "
                        "prepare all with the same heldout_share"
                    )
                place = len(rows.keys)
                if place == total:
                    raise PrepError(f"{prep.folder} holds more records than its manifest says; run its prep again")
                rows.signatures[place] = minhash.signature(minhash.shingles(record.said(), self._settings.shingle))
                rows.keys.append(record.key)
                rows.heldout.append(record.heldout)
                rows.samples.append(prep.kind == "answers")
                rows.digests.append(digests(record))
                tokens.append(record.tokens)
                self._reporter.update("reading", done=len(tokens), total=total, unit="rows")
        if len(tokens) < total:
            raise PrepError(f"{len(tokens):,} records where the preps' manifests say {total:,}; run the preps again")
        return rows, tokens

    def _count(self, given: Sequence[Prep], rows: Rows, tokens: Sequence[int], found: Sequence[Double]) -> None:
        """Count by dataset. Raises NothingLeftError."""
        self._counts = {prep.dataset: Count(prep.records) for prep in given}
        gone = {double.row: double for double in found}
        for place, key in enumerate(rows.keys):
            count = self._counts[key.partition("/")[0]]
            if (double := gone.get(place)) is not None:
                count.drop(double.reason, key, rows.keys[double.of])
            else:
                count.kept += 1
                count.heldout += rows.heldout[place]
                count.tokens += tokens[place]
        empty = [name for name, count in self._counts.items() if not count.kept]
        if empty:
            raise NothingLeftError("\n".join(_nothing_left(name, self._counts[name]) for name in empty))

    def _finish(self, manifest: dict[str, Any], before: str) -> None:
        self._counts = {name: Count(**count) for name, count in manifest["datasets"].items()}
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in manifest["dropped"].items())
        self._reporter.finish(
            manifest["kept"],
            f"{before}{manifest['kept']:,} of {manifest['read']:,} kept{f'; dropped: {reasons}' if reasons else ''}",
            manifest=str(self._settings.out / outputs.MANIFEST),
            datasets=self.counts(),
        )


def _nothing_left(name: str, count: Count) -> str:
    """``B3: 0 of 30 rows left: near duplicate took 30``, and rows to look at."""
    reason = max(count.dropped, key=lambda each: count.dropped[each], default="")
    if not reason:
        return f"{name}: no rows"
    lines = [f"{name}: 0 of {count.read:,} rows left: {reason} took {count.dropped[reason]:,}"]
    lines += [f"  {example['key']} doubles {example['of']}" for example in count.examples[reason]]
    return "\n".join(lines)
