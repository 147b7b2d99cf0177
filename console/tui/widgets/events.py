"""What happened, newest first."""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Size

from console.tui.palette import TONES
from console.tui.widgets.pane import Pane, fit, line
from console.view import Gap, Snapshot
from console.view import format as fmt
from console.view.text import clean
from pipeline.protocol import Event

SHOWN = 200


def event_line(event: Event, width: int) -> Content:
    """One event on one line."""
    tone = f"${TONES[event.status.state]}" if event.status else ""
    text, job = clean(event.text, 300), clean(event.job, 60)
    named = f"{job} " if job and job not in text else ""
    by = f" ({clean(event.by, 40)})" if event.by else ""
    return fit(line((f"{fmt.clock(event.at)} ", "$faint"), (named, tone), (text, tone), (by, "$faint")), width)


def gap_line(gap: Gap, width: int) -> Content:
    """A time without the link on one line."""
    events = "1 event" if gap.events == 1 else f"{fmt.count(gap.events)} events"
    text = f"nothing heard for {fmt.duration(gap.seconds)}, {events} caught up with"
    if gap.pruned:
        text += f", {fmt.count(gap.pruned)} older ones are no longer kept by the agent"
    return fit(line((f"{fmt.clock(gap.at)} ", "$faint"), (text, "$warn")), width)


class EventsPane(Pane):
    """See the module."""

    TITLE = "Events"

    def draw(self, snapshot: Snapshot, room: Size) -> list[Content]:
        if not snapshot.events:
            return [line(("nothing has happened yet", "$faint"))]
        rows: list[Content] = []
        gaps = list(snapshot.gaps)
        for event in snapshot.events[:SHOWN]:
            while gaps and gaps[0].at >= event.at:
                rows.append(gap_line(gaps.pop(0), room.width))
            rows.append(event_line(event, room.width))
        return rows
