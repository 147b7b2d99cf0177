"""The stage: samples and answered prompts in, one training set out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from pipeline import outputs, tokens
from pipeline.duplicates import Duplicates, DuplicatesError
from pipeline.files import content_hash, file_hash
from pipeline.merge import counts as counting
from pipeline.merge import inputs, rules
from pipeline.merge.counts import Count
from pipeline.merge.inputs import Answers, MergeError, SetAside, key_of
from pipeline.merge.vocabulary import VocabularyCount
from pipeline.preps import Prep, PrepError
from pipeline.progress import Reporter
from pipeline.protocol import DatasetCount
from pipeline.tokens import TokenizerError

FORMAT: Final = 3
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
    dedup: Path | None = None
    drop: tuple[str, ...] = rules.DROPPED
    target_revision: str | None = None
    trust_remote_code: bool = False
    max_lost_share: float = 0.02
    draft_vocab: int = 32000


def run(settings: Settings) -> int:
    """Run the stage and report its result. The exit code: 0 done, 1 it could not run, 3 the set is unusable."""
    reporter = Reporter()
    merge = Merge(settings, reporter)
    try:
        with outputs.exclusive(settings.out):
            merge.run()
    except outputs.HeldError as error:
        reporter.finish(0, str(error))
        return 1
    except TokenizerError as error:
        reporter.finish(0, str(error))
        return 3 if error.final else 1
    except (MergeError, PrepError, DuplicatesError) as error:
        reporter.finish(0, str(error), datasets=merge.counts())
        if merge.tally:
            print("\n".join(counting.table(merge.tally)), file=sys.stderr, flush=True)
        return 3
    return 0


class Merge:
    """One run."""

    def __init__(self, settings: Settings, reporter: Reporter) -> None:
        self._settings = settings
        self._reporter = reporter
        self.tally: dict[str, Count] = {}
        self._vocabulary = VocabularyCount()
        self._target_size = 0
        self._special: frozenset[int] = frozenset()
        self._set_aside: dict[str, SetAside] = {}
        self._duplicates: Duplicates | None = None
        self._sides: dict[str, bool] = {}  # group to whether it is held out

    def counts(self) -> dict[str, DatasetCount]:
        """Rows by dataset, for a progress line."""
        return {name: count.public() for name, count in self.tally.items()}

    def run(self) -> None:
        """Do it all. Raises TokenizerError, MergeError, PrepError, DuplicatesError."""
        settings = self._settings
        given, self._duplicates, notes = inputs.given(settings.samples, settings.prompts, settings.dedup)
        if notes:
            self._reporter.update("reading", note="; ".join(notes), force=True)
        self._reporter.update("loading the tokenizer", note=settings.target, force=True)
        tokenizer = tokens.load(
            settings.target, revision=settings.target_revision, trust_remote_code=settings.trust_remote_code
        )
        self._target_size = tokens.target_vocabulary(tokenizer, settings.target_revision)
        self._special = frozenset(ids[0] for ids in tokenizer.encode(tokenizer.special_tokens()) if len(ids) == 1)
        self._reporter.update("reading the answers' identity", force=True)
        made_of = [prep.identity for prep in given]
        dedup = self._duplicates.identity if self._duplicates is not None else None
        answered = {
            prep.dataset: {"bytes": path.stat().st_size, "sha256": file_hash(path)}
            for prep in given
            if prep.kind == "prompts" and (path := self._responses(prep)).is_file()
        }
        if settings.responses is not None and (errors := settings.responses / inputs.ERRORS).is_file():
            answered[inputs.ERRORS] = {"bytes": errors.stat().st_size, "sha256": file_hash(errors)}
            self._set_aside = inputs.set_aside(settings.responses)
        rule = {
            "format": FORMAT,
            "drop": sorted(settings.drop),
            "draft_vocab": settings.draft_vocab,
            "target_size": self._target_size,
        }
        content = content_hash([rule, made_of, dedup, answered])
        if (manifest := outputs.done(settings.out, content)) is not None and self._affordable(manifest["lost_share"]):
            self._finish(manifest, "already done: ")
            return
        if (moved := outputs.set_aside(settings.out, content)) is not None:
            note = f"{settings.out} holds a set made of other inputs: moved to {moved.name}"
            self._reporter.update("merging", note=note, force=True)
        self.tally = {prep.dataset: Count(prep.records) for prep in given}
        with (
            outputs.replacing(settings.out / TRAIN) as train,
            outputs.replacing(settings.out / HELDOUT) as heldout,
        ):
            for prep in given:
                for row, aside in self._samples(prep) if prep.kind == "answers" else self._answers(prep):
                    (heldout if aside else train).line(row)
                    if not aside:
                        self._vocabulary.add(row["input_ids"], row["loss_mask"])
            self._judge()
        vocabulary = self._vocabulary.chosen(settings.draft_vocab, self._target_size)
        with outputs.replacing(settings.out / VOCABULARY) as file:
            file.line(vocabulary)
        manifest = {
            "stage": "merge",
            "content": content,
            "settings": rule,
            "inputs": {"preps": made_of, "dedup": dedup, "responses": answered},
            "files": {
                TRAIN: train.summary(),
                HELDOUT: heldout.summary(),
                VOCABULARY: file.summary(),
            },
            "datasets": {name: msgspec.to_builtins(count) for name, count in self.tally.items()},
            "train": sum(count.kept - count.heldout for count in self.tally.values()),
            "heldout": sum(count.heldout for count in self.tally.values()),
            "loss_tokens": sum(count.loss_tokens for count in self.tally.values()),
            "lost_share": counting.lost_share(self.tally),
            "vocabulary": {name: value for name, value in vocabulary.items() if name != "ids"},
        }
        outputs.write_manifest(settings.out, manifest)
        self._finish(manifest, "")

    def _finish(self, manifest: dict[str, Any], before: str) -> None:
        self.tally = {name: Count(**count) for name, count in manifest["datasets"].items()}
        vocabulary = manifest["vocabulary"]
        self._reporter.finish(
            manifest["train"] + manifest["heldout"],
            f"{before}{manifest['train']:,} to train on, {manifest['heldout']:,} held out, "
            f"{manifest['loss_tokens']:,} tokens with loss{counting.left_out(self.tally)}; "
            f"{counting.lost(self.tally)}; "
            f"the draft's {vocabulary['size']:,} tokens cover {vocabulary['coverage']:.2%}",
            manifest=str(self._settings.out / outputs.MANIFEST),
            datasets=self.counts(),
        )
        print("\n".join(counting.table(self.tally)), file=sys.stderr, flush=True)

    def _doubled(self, record: inputs.Prompt | inputs.Sample) -> bool:
        """Whether dedup has dropped the record; it is counted then."""
        reason = self._duplicates.reasons.get(key_of(record), "") if self._duplicates is not None else ""
        if reason:
            self.tally[record.dataset].drop(reason, 0)
            self._progress()
        return bool(reason)

    def _samples(self, prep: Prep) -> Iterator[tuple[dict[str, Any], bool]]:
        for record in inputs.samples(prep):
            if self._doubled(record):
                continue
            if len(record.input_ids) != len(record.loss_mask):
                raise MergeError(
                    f"{key_of(record)}: as many ids as mask entries are needed; run prep {prep.dataset} again"
                )
            yield self._kept(record, record.input_ids, record.loss_mask, "sample"), record.heldout

    def _answers(self, prep: Prep) -> Iterator[tuple[dict[str, Any], bool]]:
        path = self._responses(prep)
        if not path.is_file():
            raise MergeError(f"{prep.dataset}: none of {prep.records:,} prompts is answered: there is no {path}")
        count = self.tally[prep.dataset]
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
                if self._doubled(record):
                    continue
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
                reason = rules.refusal(answer.output_ids, answer.finish, self._special, self._settings.drop)
                if reason:
                    count.drop(reason, len(answer.output_ids))
                    self._progress()
                    continue
                count.truncated += answer.finish != "stop"
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
        count = self.tally[record.dataset]
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
        kept = sum(count.kept - count.heldout for count in self.tally.values())
        if not kept:
            raise MergeError(f"nothing to train on: {counting.lost(self.tally)}{counting.left_out(self.tally)}")
        if not self._affordable(counting.lost_share(self.tally)):
            raise MergeError(
                f"{counting.lost(self.tally)}, more than the {self._settings.max_lost_share:.1%} that may be lost: "
                "look at these datasets' answers, or raise max_lost_share"
            )

    def _affordable(self, share: float) -> bool:
        return share <= self._settings.max_lost_share

    def _responses(self, prep: Prep) -> Path:
        assert self._settings.responses is not None
        return self._settings.responses / f"{prep.dataset}.jsonl"

    def _progress(self) -> None:
        if not self._reporter.due:
            return
        counts = self.tally.values()
        done = sum(count.kept + sum(count.dropped.values()) for count in counts)
        total = sum(count.total for count in counts)
        self._reporter.update("merging", done=done, total=total, datasets=self.counts())


def _named(keys: list[str]) -> str:
    return ", ".join(keys[:NAMED]) + (", …" if len(keys) > NAMED else "")
