"""The stage: samples and answered prompts in, one training set out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from pipeline import outputs, tokens
from pipeline.files import content_hash, file_hash, write_atomically
from pipeline.merge import inputs, rules
from pipeline.merge.inputs import Answers, MergeError, Prep, SetAside, key_of
from pipeline.merge.vocabulary import VocabularyCount
from pipeline.progress import Reporter
from pipeline.protocol import DatasetCount
from pipeline.tokens import TokenizerError

FORMAT: Final = 1
TRAIN: Final = "train.jsonl"
HELDOUT: Final = "heldout.jsonl"
VOCABULARY: Final = "draft_vocab.json"
NAMED: Final = 3  # keys an error names


@dataclass(frozen=True)
class Settings:
    """The command line, checked."""

    samples: tuple[Path, ...]
    prompts: tuple[Path, ...]
    responses: Path | None
    target: str
    out: Path
    target_revision: str | None = None
    trust_remote_code: bool = False
    max_lost_share: float = 0.02
    draft_vocab: int = 32000


@dataclass
class Count:
    """What became of one dataset's rows and of the tokens of its answers."""

    total: int
    kept: int = 0
    heldout: int = 0
    truncated: int = 0  # kept, though cut by the budget
    tokens: int = 0  # of kept rows, prompts included
    loss_tokens: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)  # reason to answer tokens
    answered: int = 0  # answer tokens, kept or lost

    def drop(self, reason: str, tokens: int) -> None:
        """Count a row that is left out, and the answer tokens that go with it."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        if tokens:
            self.lost[reason] = self.lost.get(reason, 0) + tokens

    def public(self) -> DatasetCount:
        """For a progress line."""
        read = self.kept + sum(self.dropped.values())
        return DatasetCount(read=read, kept=self.kept, dropped=dict(self.dropped), tokens=self.tokens, total=self.total)


def run(settings: Settings) -> int:
    """Run the stage and report its result. The exit code: 0 done, 1 it could not run, 3 the set is unusable."""
    reporter = Reporter()
    merge = Merge(settings, reporter)
    try:
        merge.run()
    except TokenizerError as error:
        reporter.finish(0, str(error))
        return 1
    except MergeError as error:
        reporter.finish(0, str(error), datasets=merge.counts())
        print(f"merge: {error}", file=sys.stderr, flush=True)
        return 3
    return 0


class Merge:
    """One run."""

    def __init__(self, settings: Settings, reporter: Reporter) -> None:
        self._settings = settings
        self._reporter = reporter
        self._counts: dict[str, Count] = {}
        self._vocabulary = VocabularyCount()
        self._target_size = 0
        self._special: frozenset[int] = frozenset()
        self._set_aside: dict[str, SetAside] = {}
        self._sides: dict[str, bool] = {}  # group to whether it is held out

    def counts(self) -> dict[str, DatasetCount]:
        """Rows by dataset, for a progress line."""
        return {name: count.public() for name, count in self._counts.items()}

    def run(self) -> None:
        """Do it all. Raises TokenizerError, MergeError."""
        settings = self._settings
        preps = [inputs.read_prep(folder, "answers") for folder in settings.samples]
        preps += [inputs.read_prep(folder, "prompts") for folder in settings.prompts]
        _check_together(preps)
        self._reporter.update("loading the tokenizer", note=settings.target, force=True)
        tokenizer = tokens.load(
            settings.target, revision=settings.target_revision, trust_remote_code=settings.trust_remote_code
        )
        self._target_size = tokens.target_vocabulary(tokenizer, settings.target_revision)
        self._special = frozenset(ids[0] for ids in tokenizer.encode(tokenizer.special_tokens()) if len(ids) == 1)
        self._reporter.update("reading the answers' identity", force=True)
        made_of = [prep.identity for prep in preps]
        answered = {
            prep.dataset: {"bytes": path.stat().st_size, "sha256": file_hash(path)}
            for prep in preps
            if prep.kind == "prompts" and (path := self._responses(prep)).is_file()
        }
        if settings.responses is not None and (errors := settings.responses / inputs.ERRORS).is_file():
            answered[inputs.ERRORS] = {"bytes": errors.stat().st_size, "sha256": file_hash(errors)}
            self._set_aside = inputs.set_aside(settings.responses)
        rule = {"format": FORMAT, "draft_vocab": settings.draft_vocab, "target_size": self._target_size}
        content = content_hash([rule, made_of, answered])
        if (manifest := outputs.done(settings.out, content)) is not None and self._affordable(manifest["lost_share"]):
            self._finish(manifest, "already done: ")
            return
        if (moved := outputs.set_aside(settings.out, content)) is not None:
            note = f"{settings.out} holds a set made of other inputs: moved to {moved.name}"
            self._reporter.update("merging", note=note, force=True)
        self._counts = {prep.dataset: Count(prep.records) for prep in preps}
        with (
            outputs.replacing(settings.out / TRAIN) as train,
            outputs.replacing(settings.out / HELDOUT) as heldout,
        ):
            for prep in preps:
                for row, aside in self._samples(prep) if prep.kind == "answers" else self._answers(prep):
                    (heldout if aside else train).line(row)
                    if not aside:
                        self._vocabulary.add(row["input_ids"], row["loss_mask"])
            self._judge()
        vocabulary = self._vocabulary.chosen(settings.draft_vocab, self._target_size)
        path = settings.out / VOCABULARY
        write_atomically(path, msgspec.json.encode(vocabulary) + b"\n")
        manifest = {
            "stage": "merge",
            "content": content,
            "settings": rule,
            "inputs": {"preps": made_of, "responses": answered},
            "files": {
                TRAIN: train.summary(),
                HELDOUT: heldout.summary(),
                VOCABULARY: {"bytes": path.stat().st_size, "sha256": file_hash(path)},
            },
            "datasets": {name: msgspec.to_builtins(count) for name, count in self._counts.items()},
            "train": sum(count.kept - count.heldout for count in self._counts.values()),
            "heldout": sum(count.heldout for count in self._counts.values()),
            "loss_tokens": sum(count.loss_tokens for count in self._counts.values()),
            "lost_share": self._lost_share(),
            "vocabulary": {name: value for name, value in vocabulary.items() if name != "ids"},
        }
        outputs.write_manifest(settings.out, manifest)
        self._finish(manifest, "")

    def _finish(self, manifest: dict[str, Any], before: str) -> None:
        self._counts = {name: Count(**count) for name, count in manifest["datasets"].items()}
        vocabulary = manifest["vocabulary"]
        self._reporter.finish(
            manifest["train"] + manifest["heldout"],
            f"{before}{manifest['train']:,} to train on, {manifest['heldout']:,} held out, "
            f"{manifest['loss_tokens']:,} tokens with loss{_left_out(self._counts)}; "
            f"{_lost(self._counts, manifest['lost_share'])}; "
            f"the draft's {vocabulary['size']:,} tokens cover {vocabulary['coverage']:.2%}",
            manifest=str(self._settings.out / outputs.MANIFEST),
            datasets=self.counts(),
        )

    def _samples(self, prep: Prep) -> Iterator[tuple[dict[str, Any], bool]]:
        for record in inputs.samples(prep):
            if len(record.input_ids) != len(record.loss_mask):
                raise MergeError(
                    f"{key_of(record)}: as many ids as mask entries are needed; run prep {prep.dataset} again"
                )
            yield self._kept(record, record.input_ids, record.loss_mask, "sample"), record.heldout

    def _answers(self, prep: Prep) -> Iterator[tuple[dict[str, Any], bool]]:
        path = self._responses(prep)
        if not path.is_file():
            raise MergeError(f"{prep.dataset}: none of {prep.records:,} prompts is answered: there is no {path}")
        count = self._counts[prep.dataset]
        missing: list[str] = []
        with contextlib.closing(Answers(path)) as answers:
            if answers.doubled:
                raise MergeError(
                    f"{prep.dataset}: {len(answers.doubled):,} prompts are answered twice in {path}: "
                    f"{_named(answers.doubled)}"
                )
            for record in inputs.prompts(prep):
                key = key_of(record)
                answer = answers.take(key)
                prompt_hash = content_hash(record.prompt_ids)
                if answer is None:
                    refused = self._set_aside.get(key)
                    if refused is None or refused.prompt_hash not in ("", prompt_hash):
                        missing.append(key)
                    else:
                        count.drop(f"set aside by generate: {refused.reason[:80]}", 0)
                        self._progress()
                    continue
                if answer.prompt_hash not in ("", prompt_hash):
                    raise MergeError(f"{key}: its answer in {path} is to another prompt; run generate again")
                count.answered += len(answer.output_ids)
                reason = rules.refusal(answer.output_ids, answer.finish, self._special)
                if reason:
                    count.drop(reason, len(answer.output_ids))
                    self._progress()
                    continue
                count.truncated += answer.finish == "length"
                mask = rules.loss_mask(len(record.prompt_ids), len(answer.output_ids), answer.finish)
                yield self._kept(record, record.prompt_ids + answer.output_ids, mask, answer.finish), record.heldout
            if missing:
                unread = f", {answers.unreadable:,} lines of it are unreadable" if answers.unreadable else ""
                raise MergeError(
                    f"{prep.dataset}: {len(missing):,} of {prep.records:,} prompts have no answer in {path}{unread}: "
                    f"{_named(missing)}; run generate to its end"
                )
            if len(answers):
                note = f"{prep.dataset}: {len(answers):,} answers belong to no prompt and are left out"
                self._reporter.update("merging", note=note, force=True)

    def _kept(
        self, record: inputs.Prompt | inputs.Sample, input_ids: list[int], loss_mask: list[int], finish: str
    ) -> dict[str, Any]:
        if self._sides.setdefault(record.group, record.heldout) != record.heldout:
            raise MergeError(
                f"{key_of(record)}: group {record.group} is held out in one dataset and trained on in another; "
                "prepare all with the same heldout_share"
            )
        highest = max(input_ids)
        if highest >= self._target_size or min(input_ids) < 0:
            raise MergeError(
                f"{key_of(record)}: token id {highest} is not in the target's vocabulary of {self._target_size:,}"
            )
        count = self._counts[record.dataset]
        count.kept += 1
        count.heldout += record.heldout
        count.tokens += len(input_ids)
        count.loss_tokens += sum(loss_mask)
        self._progress()
        return {
            "key": key_of(record),
            "dataset": record.dataset,
            "group": record.group,
            "input_ids": input_ids,
            "loss_mask": loss_mask,
            "finish": finish,
        }

    def _judge(self) -> None:
        """Raises MergeError where there is nothing to train on, or too much was lost."""
        kept = sum(count.kept - count.heldout for count in self._counts.values())
        share = self._lost_share()
        if not kept:
            raise MergeError(f"nothing to train on: {_lost(self._counts, share)}")
        if not self._affordable(share):
            raise MergeError(
                f"{_lost(self._counts, share)}, more than the {self._settings.max_lost_share:.1%} that may be lost: "
                "look at these datasets' answers, or raise max_lost_share"
            )

    def _affordable(self, share: float) -> bool:
        return share <= self._settings.max_lost_share

    def _lost_share(self) -> float:
        answered = sum(count.answered for count in self._counts.values())
        return sum(sum(count.lost.values()) for count in self._counts.values()) / answered if answered else 0.0

    def _responses(self, prep: Prep) -> Path:
        assert self._settings.responses is not None
        return self._settings.responses / f"{prep.dataset}.jsonl"

    def _progress(self) -> None:
        counts = self._counts.values()
        done = sum(count.kept + sum(count.dropped.values()) for count in counts)
        total = sum(count.total for count in counts)
        self._reporter.update("merging", done=done, total=total, datasets=self.counts())


def _check_together(preps: list[Prep]) -> None:
    """Raises MergeError for preps that do not belong to one training set."""
    seen: dict[str, Prep] = {}
    for prep in preps:
        if prep.dataset in seen:
            raise MergeError(f"dataset {prep.dataset} is given twice: {seen[prep.dataset].folder} and {prep.folder}")
        seen[prep.dataset] = prep
        if prep.tokenizer != preps[0].tokenizer:
            raise MergeError(
                f"{prep.folder} was tokenized with another tokenizer or template than {preps[0].folder}; "
                "run the older one's prep again"
            )


def _lost(counts: dict[str, Count], share: float) -> str:
    """The share of answer tokens lost, and by what: ``1.2% of the answer tokens lost (B3 repetitive 812)``."""
    parts = sorted(
        ((lost, f"{name} {reason} {lost:,}") for name, count in counts.items() for reason, lost in count.lost.items()),
        key=lambda part: (-part[0], part[1]),
    )
    text = f"{share:.1%} of the answer tokens lost"
    return text + (f" ({', '.join(part for _, part in parts[:4])})" if parts else "")


def _left_out(counts: dict[str, Count]) -> str:
    """Rows that are in neither part, by the reasons that took most: ``; 5 left out (B3 empty 4, B1 repetitive 1)``."""
    parts = sorted(
        (
            (rows, f"{name} {reason} {rows:,}")
            for name, count in counts.items()
            for reason, rows in count.dropped.items()
        ),
        key=lambda part: (-part[0], part[1]),
    )
    if not parts:
        return ""
    return f"; {sum(rows for rows, _ in parts):,} left out ({', '.join(part for _, part in parts[:4])})"


def _named(keys: list[str]) -> str:
    return ", ".join(keys[:NAMED]) + (", …" if len(keys) > NAMED else "")
