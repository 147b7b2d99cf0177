"""The datasets: rows read, kept and dropped, and why; how many prompts are answered."""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Size

from console.tui.palette import GLYPHS, TONES
from console.tui.widgets.pane import Pane, line
from console.view import Snapshot
from console.view import format as fmt
from console.view.rows import DatasetRow
from console.view.text import cells, padded
from pipeline.protocol import JobState

WIDE = 46
WIDEST = 64  # room for the tokens too


class DatasetsPane(Pane):
    """See the module."""

    TITLE = "Datasets"

    def summary(self, snapshot: Snapshot) -> str:
        rows = snapshot.datasets
        kept = sum(row.kept for row in rows)
        empty = sum(row.state is JobState.EMPTY for row in rows)
        bad = f" {GLYPHS[JobState.EMPTY]} {empty}" if empty else ""
        return f"{fmt.count(kept)} of {fmt.count(sum(row.read for row in rows))} kept{bad}" if rows else ""

    def draw(self, snapshot: Snapshot, room: Size) -> list[Content]:
        rows = snapshot.datasets
        if not rows:
            return [line(("no datasets in the plan" if snapshot.plan else "no figures yet", "$faint"))]
        name = min(12, max(3, *(cells(row.name) for row in rows)))
        answers = any(row.to_answer for row in rows)
        head = f"  {'':<{name}}{'read':>7}{'kept':>7}{'drop':>6}" + ("  tokens" if room.width >= WIDEST else "")
        head += "  " + ("answered  " if answers else "")
        body = [line((head + ("why" if room.width >= WIDE else ""), "$faint"))]
        body += [_row(row, name, room.width, answers=answers) for row in rows]
        return body


def _row(row: DatasetRow, name: int, width: int, *, answers: bool) -> Content:
    tone = "$bad" if row.going_to_zero else f"${TONES[row.state]}"
    first = (f"{GLYPHS[row.state]} {padded(row.name, name)}", tone)
    if not row.reported:
        return line(first, (f"  {row.state}", "$faint"))
    answered = ""
    if answers:
        share = fmt.percent((row.answered or 0) / row.to_answer) if row.to_answer else fmt.NOTHING
        answered = f"{share:>8}  "
    why = row.reasons[0][0] if row.reasons and width >= WIDE else ""
    if row.of_answers and width >= WIDE:
        fault, count = row.of_answers[0]
        why = " · ".join(part for part in (why, f"answers: {fault} {fmt.short_count(count)}") if part)
    if row.before:
        why = "before the restart"
    elif row.state is JobState.RUNNING and width >= WIDE:
        pace = f"{fmt.short_count(row.rate)}/s" if row.rate else ""
        left = f"{fmt.short_eta(row.eta)} left" if row.eta else ""
        why = " · ".join(part for part in (fmt.percent(row.share), pace, left, why) if part and part != fmt.NOTHING)
    dropped = (f"{fmt.short_count(row.lost) if row.lost else '':>6}", "$warn")  # what was not sampled is no loss
    nothing = row.going_to_zero or (row.read and not row.kept and row.state is not JobState.RUNNING)
    kept = (f"{fmt.short_count(row.kept):>7}", "bold $bad" if nothing else "")
    tokens = (f"{fmt.short_count(row.tokens) if row.tokens else '':>8}" if width >= WIDEST else "", "")
    read = f"{fmt.short_count(row.read):>7}"
    drawn = line(first, read, kept, dropped, tokens, f"  {answered}", (why, "$bad" if nothing else "$label")).rstrip()
    return drawn.stylize("$faint") if row.before else drawn
