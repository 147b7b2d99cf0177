"""What a prep says at its end, in words and for the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pipeline.prep.detect import Detected, wanted
from pipeline.prep.roles import expected, printable, role_of, seen
from pipeline.prep.settings import Settings
from pipeline.prep.tally import NOT_SAMPLED, Tally

QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)
NAMED: Final = 100  # files in the manifest that could not be read to their end


def success(settings: Settings, tally: Tally, cut: int = 0) -> str:
    """One line: ``2,800 of 2,809 kept, 1,203,440 tokens; dropped: duplicate 9``.

    Of a draw: ``24 of 50,500 kept (24 drawn, 50,472 not needed), 1,203 tokens; dropped: no prompt column with text 4``.
    """
    line = f"{tally.kept:,} of {tally.read:,} kept"
    if spare := tally.dropped[NOT_SAMPLED]:
        line += f" ({tally.kept:,} drawn, {spare:,} not needed)"
    line += f", {tally.tokens:,} tokens"
    if cut:
        line += f", {cut:,} of them cut at a turn to fit the context"
    if settings.take is not None and tally.kept < settings.take:
        line += f"; {settings.take:,} were asked for"
    return line + _dropped(tally) + unread(tally.cut_short)


def failure(settings: Settings, tally: Tally, shape: Detected | None = None) -> str:
    """Why nothing was kept; the first line says it all, the others show rows."""
    if not tally.read:
        return f"0 rows: {settings.source} is empty"
    top, count = tally.top_reason()
    known = {role_of(label) for label in tally.labels}
    missing = next((role for role in _needed(settings) if role not in known), None)
    why = f"no {missing} turn" if missing and tally.labels else f"{top}, {count:,} rows"
    first = f"0 of {tally.read:,} kept: {why}"
    if shape is not None and shape.rows and not shape.sure:
        first += f"; columns seen: {shape.columns}; expected {wanted(shape.shape)}"
    if tally.labels:
        first += f"; roles seen: {seen(tally.labels)}"
    if missing and tally.labels:
        first += f"; expected one of {expected(missing)}; {top} took {count:,}"
    lines = [first + unread(tally.cut_short)]
    if shape is not None:
        lines.append(f"shape: {shape.words()}")
    for reason, rows in tally.dropped.most_common(5):
        lines.append(f"{reason}: {rows:,} rows")
        lines += [f"  row {example['position']}: {example['row']}" for example in tally.examples.get(reason, [])]
    return "\n".join(lines)


def unread(files: Sequence[str]) -> str:
    """Which files could not be read to their end; "" for none."""
    if not files:
        return ""
    more = f" and of {len(files) - 1:,} more files" if len(files) > 1 else ""
    return f"; the rest of {printable(files[0], 60)}{more} could not be read"


def damage(files: Sequence[str]) -> str:
    """Why a set with such files fails, and what to do."""
    return f'{unread(files).removeprefix("; ")}: bring it anew, or set damaged = "keep" to go on without it'


def sampled(tally: Tally) -> dict[str, Any]:
    """The manifest's counts; the same for the same rows."""
    count = tally.count()
    return {
        "read": count.read,
        "kept": count.kept,
        "usable": tally.usable,
        "judged": tally.judged,
        "dropped": count.dropped,
        "tokens": count.tokens,
        "cut_short": tally.cut_short[:NAMED],
        "examples": {reason: tally.examples.get(reason, []) for reason in count.dropped if reason != NOT_SAMPLED},
        "roles": dict(sorted(tally.labels.items(), key=lambda item: (-item[1], item[0]))[:100]),
        "length": {f"p{round(share * 100)}": _quantile(tally, share) for share in QUANTILES},
    }


def _quantile(tally: Tally, share: float) -> int:
    """The length that ``share`` of the records do not reach; of all of them, the longest."""
    wanted = min(tally.kept - 1, int(share * tally.kept))
    for length, count in sorted(tally.lengths.items()):
        wanted -= count
        if wanted < 0:
            return length
    return 0


def _needed(settings: Settings) -> tuple[Any, ...]:
    return ("user", "assistant") if settings.kind == "answers" else ("user",)


def _dropped(tally: Tally) -> str:
    reasons = [each for each in tally.dropped.most_common() if each[0] != NOT_SAMPLED and each[1]]
    parts = [f"{reason} {count:,}" for reason, count in reasons[:4]]
    return f"; dropped: {', '.join(parts)}" if parts else ""
