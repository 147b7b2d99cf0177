"""The answers on disk: one append-only JSONL file a dataset, written by one process, each answer once and whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from pipeline.files import complete_lines, content_hash, cut_torn_line, sync_folder, write_atomically
from pipeline.generate.prompts import Prompt
from pipeline.generate.settings import Sampling
from pipeline.outputs import move_aside

FORMAT: Final = 1
SETTINGS: Final = "settings.json"
ERRORS: Final = "errors.jsonl"
MANIFEST: Final = "manifest.json"


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of an answers file. ``output_ids`` as the server gave them, the end id included."""

    key: str
    dataset: str
    prompt_hash: str
    output_ids: list[int]
    finish: str  # "stop", "length" or "abort"
    prompt_tokens: int
    completion_tokens: int
    latency_s: float
    sampling: Sampling
    faults: tuple[str, ...] = ()  # what is wrong with it, though it was kept


class Stored(msgspec.Struct, frozen=True):
    """An answer without its ids: all that a resume needs."""

    key: str
    dataset: str
    prompt_hash: str
    finish: str
    completion_tokens: int
    latency_s: float
    sampling: Sampling
    faults: tuple[str, ...] = ()


class SetAside(msgspec.Struct, frozen=True):
    """A line of errors.jsonl. ``permanent``: asking again gives the same, so a resume does not."""

    key: str
    dataset: str
    prompt_hash: str
    reason: str
    permanent: bool
    at: float
    kind: str = ""  # the reason without what differs from prompt to prompt


@dataclass
class Loaded:
    """What is there already."""

    answers: dict[str, Stored] = field(default_factory=dict)  # by key
    refused: dict[str, SetAside] = field(default_factory=dict)  # by key; permanent ones only
    stale: dict[str, int] = field(default_factory=dict)  # reason to answers put away
    stale_keys: tuple[str, ...] = ()  # a few of them, to be named
    torn: int = 0  # bytes cut
    moved_to: str = ""  # the whole output of another model, put away under this name


class Store:
    """The folder ``out``. Use inside ``outputs.exclusive``; ``append`` may run in a thread, one call at a time."""

    def __init__(self, out: Path, *, model: str | None) -> None:
        self.out = out
        self._content = {"format": FORMAT, "model": model}

    def load(self, prompts: Mapping[str, Prompt]) -> Loaded:
        """Make the folder ready and find what is answered. Answers that no longer fit their prompt are put away."""
        loaded = Loaded(moved_to=self._put_other_model_away())
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(self.out / SETTINGS, msgspec.json.format(msgspec.json.encode(self._content)))
        rows = {key.rsplit("/", 1)[0]: key for key in prompts}
        for path in sorted(self.out.glob("*.jsonl")):
            loaded.torn += cut_torn_line(path)
            if path.name == ERRORS:
                self._load_errors(path, prompts, loaded)
            else:
                self._load_answers(path, prompts, rows, loaded)
        return loaded

    def append(self, name: str, data: bytes) -> None:
        """Append whole lines to the file ``name`` and make them durable. On an OSError none of them is left behind."""
        path = self.out / name
        fresh = not path.exists()
        with path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), size)
                raise
        if fresh:
            sync_folder(self.out)

    def _put_other_model_away(self) -> str:
        path = self.out / SETTINGS
        if not path.exists():
            return ""
        try:
            before = msgspec.json.decode(path.read_bytes())
        except msgspec.MsgspecError:
            before = None
        if before == self._content:
            return ""
        return move_aside(self.out, content_hash(before)).name

    def _load_errors(self, path: Path, prompts: Mapping[str, Prompt], loaded: Loaded) -> None:
        decoder = msgspec.json.Decoder(SetAside)
        for line in complete_lines(path):
            try:
                one = decoder.decode(line)
            except msgspec.MsgspecError:
                continue
            prompt = prompts.get(one.key)
            if one.permanent and prompt is not None and prompt.ids_hash == one.prompt_hash:
                loaded.refused[one.key] = one

    def _load_answers(self, path: Path, prompts: Mapping[str, Prompt], rows: Mapping[str, str], loaded: Loaded) -> None:
        decoder = msgspec.json.Decoder(Stored)
        stale: set[int] = set()
        for number, line in enumerate(complete_lines(path)):
            try:
                one = decoder.decode(line)
            except msgspec.MsgspecError:
                reason, key = "not readable", ""
            else:
                reason, key = _stale(one, prompts, rows, loaded.answers), one.key
            if not reason:
                loaded.answers[key] = msgspec.structs.replace(one, sampling=prompts[key].sampling)
            elif reason != "not asked for":
                stale.add(number)
                loaded.stale[reason] = loaded.stale.get(reason, 0) + 1
                if len(loaded.stale_keys) < 5:
                    loaded.stale_keys += (key or path.name,)
        if stale:
            self._take_out(path, stale)

    def _take_out(self, path: Path, stale: set[int]) -> None:
        """Move lines, by number, to FILE.stale: safe there before they leave, so a kill doubles them there only."""
        aside = path.with_name(f"{path.name}.stale")
        cut_torn_line(aside)
        with aside.open("ab") as file:
            file.writelines(line + b"\n" for number, line in enumerate(complete_lines(path)) if number in stale)
            file.flush()
            os.fsync(file.fileno())
        fresh = path.with_name(f".{path.name}.tmp")
        with fresh.open("wb") as file:
            file.writelines(line + b"\n" for number, line in enumerate(complete_lines(path)) if number not in stale)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(self.out)


def _stale(one: Stored, prompts: Mapping[str, Prompt], rows: Mapping[str, str], answers: Mapping[str, Stored]) -> str:
    """Why a stored answer is not the answer to one of today's prompts; empty if it is."""
    prompt = prompts.get(one.key)
    if prompt is None:
        return "row has changed since" if one.key.rsplit("/", 1)[0] in rows else "not asked for"
    if prompt.ids_hash != one.prompt_hash:
        return "prompt ids have changed since"
    if prompt.sampling != one.sampling:
        return "sampling has changed since"
    return "answered twice" if one.key in answers else ""
