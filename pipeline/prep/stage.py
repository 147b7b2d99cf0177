"""The stage: rows in, records out, every row counted."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pipeline import outputs, tokens
from pipeline.files import content_hash
from pipeline.prep.detect import Detected, UnknownShapeError, look
from pipeline.prep.recorder import BATCH_ROWS, Begun, Recorder, batch_of
from pipeline.prep.records import Conversation, conversation_of
from pipeline.prep.report import damage, failure, sampled, success, unread
from pipeline.prep.sample import Draw
from pipeline.prep.seen import Seen
from pipeline.prep.settings import Settings
from pipeline.prep.shapes import READERS, Reader
from pipeline.prep.sources import Row, Source, SourceError, open_source
from pipeline.prep.tally import NOT_SAMPLED, Tally, top_of
from pipeline.preps import RECORDS
from pipeline.progress import Reporter
from pipeline.protocol import DatasetCount
from pipeline.tokens import TokenizerError

PROGRESS_ROWS: Final = 32  # looked at between two looks at the clock


def run(settings: Settings) -> int:
    """Run the stage and report its result. The exit code: 0 done, 1 it could not run, 3 the set cannot be used."""
    reporter = Reporter()
    try:
        with outputs.exclusive(settings.out):
            return Prep(settings, reporter).run()
    except outputs.HeldError as error:
        reporter.finish(0, f"{settings.dataset}: {error}")
        return 1
    except (TokenizerError, SourceError) as error:
        reporter.finish(0, f"{settings.dataset}: {error}")
        return 3 if error.final else 1
    except UnknownShapeError as error:
        reporter.finish(0, f"{settings.dataset}: {error}")
        return 3


class Prep:
    """One run over one dataset."""

    def __init__(self, settings: Settings, reporter: Reporter) -> None:
        self._settings = settings
        self._reporter = reporter
        self._tally = Tally()
        self._rows_read = 0
        self._drawn = 0  # rows that wait to be tokenized
        self._began = time.monotonic()

    def run(self) -> int:
        """Do it all. Raises TokenizerError, SourceError, UnknownShapeError."""
        settings = self._settings
        held = outputs.read_manifest(settings.out)
        if held is not None and not settings.wrote(held.get("settings")):
            # Before anything is loaded: where that fails, no later stage may take the old records for this run's.
            self._moved(outputs.move_aside(settings.out, str(held.get("content", "unknown"))))
        self._reporter.update("loading the tokenizer", note=settings.target, force=True)
        tokenizer = tokens.load(
            settings.target,
            revision=settings.target_revision,
            trust_remote_code=settings.trust_remote_code,
            variables=settings.template_json,
            family=settings.target_family,
        )
        for note in tokenizer.unchecked:
            self._reporter.update("loading the tokenizer", note=f"not checked: {note}", force=True)
        source = open_source(
            settings.source,
            config=settings.config,
            split=settings.split,
            revision=settings.revision,
            files=settings.files,
            tell=self._tell,
        )
        self._reporter.update("reading the source's identity", note=settings.source, force=True)
        inputs = source.fingerprint()
        written = settings.content(tokenizer.fingerprint())
        content = content_hash([written, inputs])
        if (manifest := outputs.done(settings.out, content)) is not None:
            return self._already(manifest)
        self._moved(outputs.set_aside(settings.out, content))
        rows = source.rows()
        first, shape = look(rows, settings.shape)
        self._reporter.update("starting", note=f"shape {shape.words()}", force=True)
        recorder = Recorder(settings, tokenizer, self._tally)
        (settings.out / RECORDS).unlink(missing_ok=True)  # of a run that was killed before its manifest
        try:
            with outputs.replacing(settings.out / RECORDS) as file:
                conversations = self._conversations(itertools.chain(first, rows), READERS[shape.shape], source)
                for record in self._records(conversations, recorder, source):
                    file.line(record)
                self._judge(shape, recorder)
        except UnusableError as error:
            self._reporter.finish(0, str(error), datasets=self._counts())
            # The reporter has logged the first line.
            print(failure(settings, self._tally, shape).partition("\n")[2], file=sys.stderr, flush=True)
            return 3
        outputs.write_manifest(
            settings.out,
            {
                "stage": "prep",
                "content": content,
                "settings": written,
                "target": settings.target,
                "inputs": inputs,
                "unchecked": list(tokenizer.unchecked),
                "shape": {"name": shape.shape, "share": shape.sure, "rows": shape.rows, "known": shape.known},
                "files": {RECORDS: file.summary()},
                "heldout": recorder.heldout,
                "unmasked_turns": recorder.unmasked_turns,
                "cut_at_a_turn": recorder.cut,
                **sampled(self._tally),
            },
        )
        self._reporter.update(
            "done", done=self._tally.kept, total=self._tally.kept, datasets=self._counts(), force=True
        )
        self._reporter.finish(
            self._tally.kept,
            success(settings, self._tally, recorder.cut),
            manifest=str(settings.out / outputs.MANIFEST),
            datasets=self._counts(),
        )
        return 0

    def _moved(self, moved: Path | None) -> None:
        if moved is not None:
            note = f"{self._settings.out} holds records of other settings: moved to {moved.name}"
            self._reporter.update("starting", note=note, force=True)

    def _tell(self, note: str, *, force: bool = False) -> None:
        """What the source does between rows: it waits for the hub, or brings a file."""
        self._reporter.update(
            "fetching",
            done=self._rows_read,
            unit="rows",
            datasets=self._counts(waiting=self._drawn) if self._rows_read else None,
            note=note,
            force=force,
        )

    def _already(self, manifest: dict[str, Any]) -> int:
        """Report the output of an earlier run as this one's, if it is what this one may be."""
        count = DatasetCount(
            read=manifest["read"],
            kept=manifest["kept"],
            dropped=manifest["dropped"],
            tokens=manifest["tokens"],
            total=manifest["read"],
        )
        datasets = {self._settings.dataset: count}
        try:
            self._check_whole(manifest.get("cut_short", ()))
            self._check_floor(manifest["usable"], manifest["judged"], top_of(manifest["dropped"]))
        except UnusableError as error:
            # Or the stages after a prep that is waived would take the records for good ones.
            outputs.move_aside(self._settings.out, manifest["content"])
            self._reporter.finish(0, str(error), datasets=datasets)
            return 3
        self._reporter.finish(
            count.kept,
            f"already done: {count.kept:,} of {count.read:,} kept{unread(manifest.get('cut_short', ()))}",
            manifest=str(self._settings.out / outputs.MANIFEST),
            datasets=datasets,
        )
        return 0

    def _conversations(self, rows: Iterable[Row], reader: Reader, source: Source) -> Iterator[Conversation]:
        """Every usable row, or the drawn ones; the others are counted."""
        if self._settings.take is None:
            seen = Seen()
            for row in rows:
                self._rows_read += 1
                conversation = self._understand(row, reader)
                if conversation is None:
                    self._progress("tokenizing", source)  # rows that are all unusable never reach the tokenizer
                elif seen.add(conversation.hash):
                    yield conversation
                else:
                    self._tally.drop("duplicate", row.position, conversation.preview())
            return
        draw: Draw[Conversation] = Draw(self._settings.take, self._settings.seed)
        for row in rows:
            self._rows_read += 1
            if not row.ends and not draw.wants(row.position):
                self._tally.skip()
            elif (conversation := self._understand(row, reader)) is not None:
                if draw.holds(conversation.hash):
                    self._tally.drop("duplicate", row.position, conversation.preview())
                elif draw.offer(row.position, conversation.hash, conversation):
                    self._tally.drop(NOT_SAMPLED)
            self._drawn = len(draw)
            if self._rows_read % PROGRESS_ROWS == 0:
                self._progress("reading", source)
        for conversation in draw.drawn():
            self._drawn -= 1
            yield conversation

    def _understand(self, row: Row, reader: Reader) -> Conversation | None:
        """A row's conversation; None for one that is counted as dropped."""
        if row.ends:
            self._tally.cut_short.append(row.ends)
            self._tell(unread([row.ends]).removeprefix("; "), force=len(self._tally.cut_short) <= 3)
        settings = self._settings
        return conversation_of(row, reader, kind=settings.kind, group=settings.group, tally=self._tally)

    def _records(
        self, conversations: Iterator[Conversation], recorder: Recorder, source: Source
    ) -> Iterator[dict[str, Any]]:
        """Tokenize in batches, until there are as many records as the settings ask for."""
        take = self._settings.take
        begun: Begun | None = None
        while True:
            coming = len(begun.rendered) if begun is not None else 0
            wanted = BATCH_ROWS if take is None else min(BATCH_ROWS, take - self._tally.kept - coming)
            batch = batch_of(conversations, wanted)
            following = recorder.begin(batch) if batch else None
            if begun is not None:
                yield from recorder.records(begun)
                self._progress("tokenizing", source)
            elif following is None:
                break
            begun = following
        for _ in conversations:
            self._tally.drop(NOT_SAMPLED)

    def _judge(self, shape: Detected, recorder: Recorder) -> None:
        """Raises UnusableError where there is nothing, too little, a file that is damaged, or masks that are wrong."""
        tally = self._tally
        if recorder.mask_refused > tally.kept > 0:
            reason, count = tally.top_reason()
            raise UnusableError(
                f"the loss mask is wrong for {recorder.mask_refused:,} of "
                f"{recorder.mask_refused + tally.kept:,} samples, more than half: {reason} took {count:,}"
            )
        if not tally.kept:
            raise UnusableError(failure(self._settings, tally, shape).splitlines()[0])
        self._check_whole(tally.cut_short)
        self._check_floor(tally.usable, tally.judged, tally.top_reason())

    def _check_whole(self, cut_short: Sequence[str]) -> None:
        if cut_short and self._settings.damaged == "fail":
            raise UnusableError(damage(cut_short))

    def _check_floor(self, usable: int, judged: int, top: tuple[str, int]) -> None:
        """Raises UnusableError."""
        if usable < self._settings.min_kept_share * judged:
            raise UnusableError(
                f"{usable:,} of {judged:,} rows are usable, {usable / judged:.1%}, under the floor of "
                f"{self._settings.min_kept_share:.0%}: {top[0]} took {top[1]:,}"
            )

    def _counts(self, total: float | None = None, *, waiting: int = 0) -> dict[str, DatasetCount]:
        """The counts of the rows that are decided, and of ``waiting`` ones as if they were kept."""
        count = self._tally.count(
            waiting=waiting, take=self._settings.take, total=None if total is None else round(total)
        )
        return {self._settings.dataset: count}

    def _progress(self, phase: str, source: Source) -> None:
        if not self._reporter.due:
            return
        elapsed = time.monotonic() - self._began
        drawing = self._settings.take is not None and phase == "tokenizing"
        total = source.total()
        self._reporter.update(
            phase,
            done=self._tally.kept if drawing else self._rows_read,
            total=min(self._settings.take or 0, self._tally.kept + self._drawn) if drawing else total,
            unit="records" if drawing else "rows",
            # Once rows are refused one by one, those that wait must not hide that none is kept.
            datasets=self._counts(total, waiting=0 if drawing else self._drawn),
            figures={"rows_s": self._rows_read / elapsed if elapsed > 0 else 0.0},
        )


class UnusableError(Exception):
    """A set that was read to its end and must not be used; one line."""
