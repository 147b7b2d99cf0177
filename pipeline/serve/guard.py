"""What must hold before a server is started: mistakes that the server itself accepts in silence.

SGLang takes an EAGLE-3 draft with ``--speculative-algorithm EAGLE`` without a word: it captures no aux hidden states,
skips the draft's fc, replaces its head, and runs for days at accept length 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.draft.check import DraftError, DraftFacts, inspect_draft, read_config
from pipeline.serve.command import OWN_FLAGS, ServeOptions, Speculation

EAGLE_NAMES = frozenset({"EAGLE", "NEXTN"})
"""Algorithms that read a draft's last hidden state only; NEXTN is another name of EAGLE."""


def refusals(options: ServeOptions) -> list[str]:
    """Why this server must not be started, one sentence each; empty where nothing speaks against it."""
    found = list(_flag_refusals(options))
    speculation = options.speculation
    if speculation is None:
        if options.algorithm is not None:
            found.append(
                f"--algorithm {options.algorithm} without --draft: with EAGLE3, SGLang would load the target as "
                "its own draft and crash. Name the draft's folder, or leave the algorithm out"
            )
        return found
    found += _number_refusals(speculation)
    folder = Path(speculation.draft)
    if not options.check_draft or (not folder.exists() and _is_hub_id(speculation.draft)):
        return found
    if not folder.is_dir():
        return [*found, f"--draft {speculation.draft}: there is no such folder"]
    try:
        facts = inspect_draft(folder)
    except DraftError as error:
        return [*found, f"--draft {speculation.draft}: {error}"]
    found += _algorithm_refusals(speculation, facts)
    found += _shape_refusals(facts, _target_config(options.model))
    return found


def remarks(options: ServeOptions) -> list[str]:
    """What could not be checked, for the log."""
    speculation = options.speculation
    if speculation is None:
        return []
    if not options.check_draft:
        return [f"the draft {speculation.draft} is not checked: --served-draft-check off"]
    if not Path(speculation.draft).exists():
        return [f"the draft {speculation.draft} is not a local folder: only the flags are checked"]
    if _target_config(options.model) is None:
        return [f"{options.model}/config.json is not readable here: the draft's widths are not compared with it"]
    return []


def _flag_refusals(options: ServeOptions) -> Iterator[str]:
    seen: set[str] = set()
    for name, _ in options.flags:
        if name in OWN_FLAGS:
            yield f"--flag {name}: this flag has an option of its own and cannot be given twice"
        if name in seen:
            yield f"--flag {name} is given twice"
        seen.add(name)


def _number_refusals(speculation: Speculation) -> Iterator[str]:
    for label, value in (("steps", speculation.steps), ("topk", speculation.topk)):
        if value < 1:
            yield f"--{label} {value}: expected 1 or more"
    if speculation.topk == 1 and speculation.draft_tokens != speculation.steps + 1:
        yield (
            f"--draft-tokens {speculation.draft_tokens} with --topk 1 and --steps {speculation.steps}: a chain of "
            f"{speculation.steps} steps verifies {speculation.steps + 1}, set --draft-tokens {speculation.steps + 1}"
        )
    elif speculation.draft_tokens < 2:
        yield f"--draft-tokens {speculation.draft_tokens}: expected 2 or more"


def _algorithm_refusals(speculation: Speculation, facts: DraftFacts) -> Iterator[str]:
    kind = ", ".join(facts.architectures) or "no architecture named"
    if facts.is_eagle3 and speculation.algorithm != "EAGLE3":
        why = (
            "the server would take it without an error, feed the draft no aux hidden states, skip its fc and use the "
            "target's head: accept length 1, slower than no draft"
            if speculation.algorithm in EAGLE_NAMES
            else "that algorithm does not read an EAGLE-3 draft"
        )
        yield (
            f"--algorithm {speculation.algorithm} with the EAGLE-3 draft {facts.folder} ({kind}): {why}. "
            "Use --algorithm EAGLE3"
        )
    if not facts.is_eagle3 and speculation.algorithm == "EAGLE3":
        yield (
            f"--algorithm EAGLE3, but {facts.folder} is no EAGLE-3 draft ({kind}, no fc over three hidden states): "
            "name a draft whose architecture is LlamaForCausalLMEagle3 or another …Eagle3"
        )


def _shape_refusals(facts: DraftFacts, target: dict[str, Any] | None) -> Iterator[str]:
    if not facts.is_eagle3:
        return
    if not facts.has_draft_vocab_key:
        yield f"{facts.folder}/config.json has no draft_vocab_size: SGLang reads it without a default"
    if facts.head_shape is not None and facts.draft_vocab_size not in (None, facts.head_shape[0]):
        yield (
            f"{facts.folder}: lm_head.weight has {facts.head_shape[0]:,} rows, config.json says draft_vocab_size "
            f"{facts.draft_vocab_size:,}"
        )
    if target is None:
        return
    width, vocabulary = target.get("hidden_size"), target.get("vocab_size")
    count = len(facts.aux_layers) or 3
    if isinstance(width, int) and facts.fc_shape is not None and facts.fc_shape[-1] != width * count:
        yield (
            f"{facts.folder}: fc.weight takes {facts.fc_shape[-1]:,} inputs, this target gives {count} aux states of "
            f"{width:,}, {width * count:,} in all: the draft was made for another target"
        )
    if isinstance(vocabulary, int) and facts.vocab_size not in (None, vocabulary):
        yield (
            f"{facts.folder}: config.json says vocab_size {facts.vocab_size:,}, the target has {vocabulary:,}: "
            "the draft was made for another target"
        )
    if isinstance(vocabulary, int) and facts.draft_vocab_size is not None and facts.draft_vocab_size > vocabulary:
        yield f"{facts.folder}: draft_vocab_size {facts.draft_vocab_size:,} is more than the target's {vocabulary:,}"


def _target_config(model: str) -> dict[str, Any] | None:
    try:
        config = read_config(Path(model))
    except DraftError:
        return None
    # A multimodal target keeps its language model's widths one level down.
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))
