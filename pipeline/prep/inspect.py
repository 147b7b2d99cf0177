"""``--inspect``: what a prep would make of a dataset, told from its first rows in seconds; nothing is written."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Literal, TextIO

from pipeline import tokens
from pipeline.prep.detect import Detected, UnknownShapeError, decoded, look, turns_as
from pipeline.prep.recorder import Recorder
from pipeline.prep.records import Conversation, conversation_of
from pipeline.prep.roles import printable, role_of, seen
from pipeline.prep.settings import Settings
from pipeline.prep.shapes import READERS
from pipeline.prep.sources import Row, SourceError, open_source
from pipeline.prep.tally import Tally
from pipeline.tokens import Tokenizer, TokenizerError

ROWS: Final = 1000  # looked at
SECONDS: Final = 8.0  # no row is begun after that, but for the first ones
SAMPLES: Final = 10
SHOWN: Final = 700  # characters of a part of a row; its middle is left out

LOSS, REST, NOTE, PLAIN = "\x1b[1;32m", "\x1b[2m", "\x1b[33m", "\x1b[0m"


def inspect(settings: Settings, output: TextIO | None = None) -> int:
    """Print it. The exit code: 0 some rows are usable, 1 it cannot be read, 3 none is usable.

    Settings may lack what only a full run needs: a ``target`` of "" shows turns as the rows have them, a ``kind`` of
    "" takes what the first rows look like.
    """
    page = _Page(output or sys.stdout)
    try:
        return _inspect(settings, page)
    except BrokenPipeError:  # the reader has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - the process ends with it
        return 0
    except UnknownShapeError as error:
        page.line(f"{settings.source}: {error}", "error")
        return 3
    except (TokenizerError, SourceError) as error:  # they name the place
        page.line(str(error), "error")
        return 1


def _inspect(settings: Settings, page: _Page) -> int:
    began = time.monotonic()
    source = open_source(
        settings.source,
        config=settings.config,
        split=settings.split,
        revision=settings.revision,
        files=settings.files,
        tell=lambda note: page.line(note, "source"),
    )
    rows = source.rows()
    first, shape = look(rows, settings.shape)
    if not first:
        page.line(f"0 rows: {settings.source} is empty", "error")
        return 3
    page.line(shape.words(), "shape")
    page.line(shape.columns, "columns")
    settings = settings if settings.kind else replace(settings, kind=_kind(shape, first))
    page.line("the target's own answers" if settings.kind == "answers" else "prompts", "kind")
    tally = Tally()
    conversations = list(_conversations(itertools.chain(first, rows), shape, settings, tally, began))
    page.line(seen(tally.labels) or "none", "roles")
    if unknown := sorted({label for label in tally.labels if role_of(label) is None}):
        page.line(f"unknown: {', '.join(unknown[:10])}", " ")
    tokenizer = _tokenizer(settings, page)
    if tokenizer is None:
        shown = _turns(conversations, tally)
    else:
        shown = _records(conversations, Recorder(settings, tokenizer, tally), settings, began)
    for text, loss, title in itertools.islice(shown, SAMPLES):
        page.sample(text, loss, title)
    for _ in shown:
        pass  # counted as they go by
    page.line()
    page.line(f"{tally.kept:,} of the {tally.read:,} rows looked at" + _length(tally), "kept")
    for reason, count in tally.dropped.most_common():
        page.line(f"{reason}: {count:,}", "dropped")
        for example in tally.examples.get(reason, []):
            page.line(f"row {example['position']}: {example['row']}", " ")
    return 0 if tally.kept else 3


def _kind(shape: Detected, first: list[Row]) -> Literal["answers", "prompts"]:
    """Answers where any of the first rows has one."""
    labels = (turn.label for data in decoded(first) for turn in turns_as(shape.shape, data))
    return "answers" if any(role_of(label) == "assistant" for label in labels) else "prompts"


def _conversations(
    rows: Iterator[Row], shape: Detected, settings: Settings, tally: Tally, began: float
) -> Iterator[Conversation]:
    found: set[str] = set()
    for number, row in enumerate(itertools.islice(rows, ROWS)):
        if number >= SAMPLES and time.monotonic() - began > SECONDS:
            return
        conversation = conversation_of(row, READERS[shape.shape], kind=settings.kind, group=settings.group, tally=tally)
        if conversation is None:
            continue
        if conversation.hash in found:
            tally.drop("duplicate", row.position, row.load())
            continue
        found.add(conversation.hash)
        yield conversation


def _tokenizer(settings: Settings, page: _Page) -> Tokenizer | None:
    if not settings.target:
        page.line("none: turns are shown as the rows have them; --target shows what the model would see", "target")
        return None
    tokenizer = tokens.load(
        settings.target,
        revision=settings.target_revision,
        trust_remote_code=settings.trust_remote_code,
        variables=settings.template_json,
        family=settings.target_family,
    )
    page.line(f"{settings.target}: its special tokens, probes and reference texts agree", "target")
    for note in tokenizer.unchecked:
        page.line(f"not checked: {note}", " ")
    return tokenizer


_Sample = tuple[list[str], list[int], str]
"""The parts of a text, whether each carries loss, and a title."""


def _turns(conversations: list[Conversation], tally: Tally) -> Iterator[_Sample]:
    for conversation in conversations:
        tally.keep(0)
        texts = [f"{message.role}: {message.content}\n" for message in conversation.messages]
        loss = [int(message.role == "assistant") for message in conversation.messages]
        yield texts, loss, f"row {conversation.row}, {len(texts)} turns"


def _records(
    conversations: list[Conversation], recorder: Recorder, settings: Settings, began: float
) -> Iterator[_Sample]:
    for number, conversation in enumerate(conversations):
        if number >= SAMPLES and time.monotonic() - began > 2 * SECONDS:
            return
        for record in recorder.records(recorder.begin([conversation])):
            ids = record["prompt_ids"] if settings.kind == "prompts" else record["input_ids"]
            mask = record.get("loss_mask", [0] * len(ids))
            runs = [list(run) for _, run in itertools.groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1])]
            texts = [recorder.decode([token for token, _ in run]) for run in runs]
            title = f"row {record['row']}, {len(ids):,} tokens, {sum(mask):,} with loss"
            yield texts, [run[0][1] for run in runs], title


def _length(tally: Tally) -> str:
    return f", {tally.tokens / tally.kept:,.0f} tokens each on average" if tally.kept and tally.tokens else ""


class _Page:
    """Lines for a terminal, in colour where it shows colours; what rows hold is data, never a control sequence."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._colour = output.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._width = shutil.get_terminal_size().columns if output.isatty() else 100

    def line(self, text: str = "", label: str = "") -> None:
        print(f"{label:<9}{printable(text, 2000)}".rstrip(), file=self._output)

    def sample(self, texts: list[str], loss: list[int], title: str) -> None:
        """A row: what carries loss is green, or between ⟦ and ⟧ where there are no colours."""
        rule = f"── {title} "
        print(f"\n{self._in(NOTE, rule + '─' * max(0, self._width - len(rule)))}", file=self._output)
        for text, on in zip(texts, loss, strict=True):
            shown = _escaped(_middle_out(text))
            if self._colour:
                print(self._in(LOSS if on else REST, shown), end="", file=self._output)
            else:
                print(f"⟦{shown}⟧" if on else shown, end="", file=self._output)
        print(file=self._output)

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{PLAIN}" if self._colour else text


def _middle_out(text: str) -> str:
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN * 2 // 3]} … {len(text) - SHOWN:,} characters … {text[-SHOWN // 3 :]}"


def _escaped(text: str) -> str:
    """Text of others with its line breaks, and what is no sign of its own made visible."""
    plain = (one == "\n" or (one.isprintable() and one not in "⟦⟧") for one in text)
    return "".join(
        one if shown else one.encode("unicode_escape").decode() for one, shown in zip(text, plain, strict=True)
    )
