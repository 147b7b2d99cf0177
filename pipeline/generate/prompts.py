"""An index of the prompts: where each one stands and what identifies it.

The token ids stay on disk until they are sent.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pipeline import duplicates, outputs
from pipeline.generate.settings import Sampling, Settings, SettingsError
from pipeline.preps import RECORDS

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Line(msgspec.Struct):
    """A line of a prompts file as prep writes it; other keys are not read."""

    dataset: str
    row: str
    hash: str
    prompt_ids: msgspec.Raw
    partition: str = ""
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt to answer. ``ids_hash`` is of the token ids: another template gives other ids for the same row."""

    key: str  # dataset/row/hash
    dataset: str
    partition: str
    sampling: Sampling
    ids_hash: str
    file: Path
    offset: int


@dataclass(frozen=True)
class Prompts:
    """All prompts in file order, and what was found wrong on the way."""

    by_key: dict[str, Prompt]
    doubled: dict[str, int] = field(default_factory=dict)  # dataset to rows that were there already
    skipped: dict[str, int] = field(default_factory=dict)  # dataset to rows that dedup dropped
    missing: tuple[Path, ...] = ()  # folders without a records file
    undecided: Path | None = None  # the folder of a dedup that left nothing

    def counts(self) -> dict[str, int]:
        return dict(Counter(prompt.dataset for prompt in self.by_key.values()))


def ids_hash(raw: bytes) -> str:
    """The same as ``files.content_hash`` of the list, without reading the numbers."""
    return hashlib.sha256(raw.translate(None, b" \t\n\r")).hexdigest()[:16]


def index_prompts(settings: Settings) -> Prompts:
    """Read every prompts folder once.

    Raises SettingsError for a line that is no prompt or names no known partition, DuplicatesError where dedup has read
    other prompts than these.
    """
    known = duplicates.read(settings.dedup) if settings.dedup is not None else None
    skipped: Counter[str] = Counter()
    by_key: dict[str, Prompt] = {}
    doubled: Counter[str] = Counter()
    missing = []
    samplings: dict[tuple[str, int | None], tuple[str, Sampling]] = {}
    decoder = msgspec.json.Decoder(Line)
    for folder in settings.prompts:
        path = folder / RECORDS if folder.is_dir() or folder.suffix != ".jsonl" else folder
        if not path.is_file():
            missing.append(folder)
            continue
        if known is not None and (manifest := outputs.read_manifest(folder)) is not None:
            known.check(manifest["settings"]["dataset"], manifest["content"])
        with path.open("rb") as file:
            offset = 0
            for number, text in enumerate(file, 1):
                start, offset = offset, offset + len(text)
                if not text.strip():
                    continue
                try:
                    line = decoder.decode(text)
                except msgspec.MsgspecError as error:
                    raise SettingsError(f"{path}:{number} is not a prompt: {error}. Run prep for it again") from None
                if not FILE_NAME.fullmatch(line.dataset):
                    raise SettingsError(f"{path}:{number}: dataset {line.dataset!r} cannot name a file")
                wanted = (line.partition, line.max_new_tokens)
                if wanted not in samplings:
                    samplings[wanted] = _sampling(settings, line, f"{path}:{number}")
                name, sampling = samplings[wanted]
                key = f"{line.dataset}/{line.row}/{line.hash}"
                if known is not None and key in known.reasons:
                    skipped[line.dataset] += 1
                    continue
                if key in by_key:
                    doubled[line.dataset] += 1
                    continue
                by_key[key] = Prompt(key, line.dataset, name, sampling, ids_hash(bytes(line.prompt_ids)), path, start)
    undecided = settings.dedup if known is None else None
    return Prompts(by_key, dict(doubled), dict(skipped), tuple(missing), undecided)


def _sampling(settings: Settings, line: Line, place: str) -> tuple[str, Sampling]:
    partition = settings.partition(line.partition)
    if partition is None:
        known = ", ".join(one.name for one in settings.partitions)
        raise SettingsError(f"{place}: partition {line.partition!r} is not one of those given: {known}")
    return partition.name, settings.sampling(partition, line.max_new_tokens)


def read_ids(prompt: Prompt) -> list[int]:
    """The prompt's token ids, from its place on disk. Raises SettingsError where the file has changed since."""
    try:
        with prompt.file.open("rb") as file:
            file.seek(prompt.offset)
            text = file.readline()
        line = msgspec.json.decode(text, type=Line)
    except (OSError, msgspec.MsgspecError):
        line = None
    if line is None or ids_hash(bytes(line.prompt_ids)) != prompt.ids_hash:
        raise SettingsError(f"{prompt.file} was changed while it was read: start generate again")
    return msgspec.json.decode(bytes(line.prompt_ids), type=list[int])


def order(
    prompts: Iterable[Prompt], answered: Counter[str], pilot: int, seed: int
) -> tuple[list[Prompt], list[Prompt]]:
    """Split what is missing into the pilot (``pilot`` random ones of every dataset) and the rest, datasets mixed.

    ``answered`` by dataset counts against the pilot, so that a resumed run does not pilot again.
    """
    draw = random.Random(seed)  # noqa: S311 - reproducible, no secret
    shuffled = list(prompts)
    draw.shuffle(shuffled)
    taken = Counter(answered)
    first, rest = [], []
    for prompt in shuffled:
        if taken[prompt.dataset] < pilot:
            taken[prompt.dataset] += 1
            first.append(prompt)
        else:
            rest.append(prompt)
    return first, rest
