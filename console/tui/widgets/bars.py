"""The one-line parts around the panes: attention, header, vitals, the selected job, keys and what was just done."""

from __future__ import annotations

from typing import Final

from textual.content import Content
from textual.events import Click
from textual.widgets import Static

from console.tui.keymap import Key, Situation, applying
from console.tui.palette import GLYPHS, TONE_GLYPHS, TONES
from console.tui.widgets.events import event_line
from console.tui.widgets.host import disk_pieces
from console.tui.widgets.inference import figures as inference_figures
from console.tui.widgets.pane import Piece, fit, flow, joined, line, lines
from console.tui.widgets.server import figures as server_figures
from console.view import Attention, Snapshot, Tone
from console.view import format as fmt
from console.view.jobs import JobRow
from console.view.plot import blocks, resample
from console.view.text import clean
from pipeline.protocol import JobState


class Bar(Static):
    """One or few lines that repaint only when what they say has changed."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id, markup=False)
        self._drawn: Content | None = None

    @property
    def room(self) -> int:
        """Cells of a line. What is drawn before the first layout is as wide as the screen, as all bars are."""
        return max(10, (self.size.width or self.app.size.width) - 2)

    def say(self, content: Content) -> None:
        """Show ``content``."""
        if self._drawn is None or not self._drawn.is_same(content):
            self._drawn = content
            self.update(content, layout=self.styles.is_auto_height)


class AttentionBar(Bar):
    """Whether a person is needed: a glyph, the worst thing first, the key that helps at the right."""

    def show(self, said: Attention) -> None:
        width = self.room
        keys = f"  {said.keys}" if said.keys else ""
        text = fit(line((f"{TONE_GLYPHS[said.tone]} {said.text}", f"${said.tone}")), width - len(keys))
        gap = max(0, width - text.cell_length - len(keys))
        for tone in Tone:
            self.set_class(tone is said.tone, f"-{tone}")
        self.say(line(text, " " * gap, (keys, f"bold ${said.tone}")))


class HeaderBar(Bar):
    """Run and host at the left; the age of the data, run time and ETA at the right."""

    def show(self, snapshot: Snapshot, now: float, *, read_only: bool) -> None:
        width = self.room
        age = snapshot.age(now)
        if age is None:
            state = snapshot.link.state
            live: Piece = ("live, no data yet" if state == "live" else state, "$idle")
        elif snapshot.link.state == "live" and not snapshot.stale(now):
            # Only whole beats are worth a repaint: a figure that moves every second reads as news.
            live = (f"live, {'<3' if age < 3 else f'{age:.0f}'} s old", "$good")
        else:
            word = "stale" if snapshot.link.state == "live" else snapshot.link.state
            live = (f"{word}, {fmt.age(age)} old", "bold $warn")
        name = line((clean(snapshot.run, 80) or "no run", "bold"), (" @ ", "$faint"), clean(snapshot.host_label, 80))
        if read_only:
            live = line(live, ("   read-only", "bold $busy"))
        run: list[Piece] = [f"run {fmt.duration(snapshot.run_time)}"] if snapshot.run_time is not None else []
        slow = snapshot.longest
        eta: list[Piece] = [line(("ETA ", "$label"), (fmt.eta(slow.eta), "bold"))] if slow is not None else []
        of: list[Piece] = [line(eta[0], (f" {slow.name}", "$label"))] if slow is not None else []
        # What there is no room for goes in this order: whose ETA it is, the run time, the host's name.
        for right in ([live, *run, *of], [live, *run, *eta], [live, *eta]):
            end = line(*joined(right, "   "))
            if name.cell_length + end.cell_length < width:
                break
        start = fit(name, width - end.cell_length - 1)
        self.say(line(start, " " * max(1, width - start.cell_length - end.cell_length), end))


class Vitals(Bar):
    """Host, server and inference on three lines, for a small terminal."""

    def show(self, snapshot: Snapshot) -> None:
        width = self.room
        rows = (self._host(snapshot), self._server(snapshot), self._inference(snapshot))
        self.say(lines(_whole(f"{name:<8}", pieces, width) for name, pieces in rows))

    def _host(self, snapshot: Snapshot) -> tuple[str, list[Piece]]:
        host = snapshot.host
        if host is None:
            return "host", [("no figures yet", "$faint")]
        share = host.memory_used / host.memory_limit if host.memory_limit else None
        pieces: list[Piece] = [
            line(f"{fmt.size_of(host.memory_used, host.memory_limit)} ", (fmt.bar(share, 6), "$curve")),
        ]
        if host.memory_some is not None and host.memory_some >= 5:
            pieces.append((f"some {host.memory_some:.0f} %", "$warn"))
        pieces.append(f"cpu {host.cpu_percent:.0f} %")
        pieces += disk_pieces(host)
        if host.gpus:
            mean = sum(gpu.utilisation for gpu in host.gpus) / len(host.gpus)
            fullest = max(host.gpus, key=lambda gpu: gpu.memory_used)
            pieces.append(f"GPU {mean:.0f} % {fmt.size_of(fullest.memory_used, fullest.memory_total)}")
        return "memory", pieces

    def _server(self, snapshot: Snapshot) -> tuple[str, list[Piece]]:
        row = next((each for each in snapshot.servers if each.sample is not None), None)
        row = row or next(iter(snapshot.servers), None)
        if row is None:
            return "server", [("none in the plan" if snapshot.plan else "no figures yet", "$faint")]
        words: list[Piece] = [(f"{GLYPHS[row.state]} {row.job} {row.state}", f"${TONES[row.state]}")]
        if row.sample is not None:
            words += figures if (figures := server_figures(row.sample)) and row.sample.ready else [row.step]
        return "server", words

    def _inference(self, snapshot: Snapshot) -> tuple[str, list[Piece]]:
        figure = snapshot.inference
        if figure is None:
            return "answers", [("no generation in the plan" if snapshot.plan else "no figures yet", "$faint")]
        if figure.done is None:
            state = (f"{GLYPHS[figure.state]} {figure.state}", f"${TONES[figure.state]}")
            return "answers", [line(state, (f"  {figure.why}", "$label"))]
        curve = blocks(resample(figure.history.at, figure.history.values, 16)) if len(figure.history.at) > 1 else ""
        pieces: list[Piece] = []
        if figure.tok_s is not None:
            pieces.append(line((f"{fmt.number(figure.tok_s)} tok/s ", "bold"), (curve, "$curve")))
        if figure.before:
            pieces.append(("before the restart", "$warn"))
        pieces.append(f"{fmt.short_count(figure.done)} of {fmt.short_count(figure.total)}")
        pieces += inference_figures(figure)
        return "answers", pieces


def _whole(label: str, pieces: list[Piece], width: int) -> Content:
    """As many of ``pieces`` as fit on one line whole; the first is cut where not even that does."""
    first = next(iter(flow(pieces, width - len(label))), line(""))
    return fit(line((label, "$label"), first), width)


class Selection(Bar):
    """The selected job in full: what its row had to cut."""

    def show(self, row: JobRow | None, snapshot: Snapshot) -> None:
        width = self.room
        untold = snapshot.link.detail if not snapshot.jobs else ""
        self.set_class(bool(untold), "-long")
        if row is None:
            # Without jobs there is room for what the first line had to cut.
            detail = line((clean(untold, 600), "$label"))
            return self.say(detail if untold else fit(detail, width))
        pieces: list[Piece] = [(f"{GLYPHS[row.state]} {row.name} {row.state}", f"bold ${TONES[row.state]}")]
        if row.why:
            pieces.append(row.why)
        if row.restarts:
            pieces.append((f"{row.restarts} restart{'s' if row.restarts > 1 else ''}", "$warn"))
        if row.waived:
            pieces.append((f"waived: {row.waived}", "$warn"))
        if row.eta is not None:
            pieces.append(f"ETA {fmt.eta(row.eta)}")
        if row.cpu_percent is not None:
            pieces.append(f"cpu {row.cpu_percent:.0f} %")
        if row.last_line and row.state is not JobState.DONE:
            pieces.append((row.last_line, "$faint"))
        return self.say(fit(line(*joined(pieces)), width))


class StatusBar(Bar):
    """What was just done and how it went; without that, the newest event."""

    def show(self, said: tuple[Tone, str] | None, snapshot: Snapshot) -> None:
        width = self.room
        if said is not None:
            tone, text = said
            self.say(fit(line((f"{TONE_GLYPHS[tone]} {clean(text, 400)}", f"bold ${tone}")), width))
        elif snapshot.events:
            self.say(event_line(snapshot.events[0], width))
        else:
            self.say(line(""))


ALWAYS: Final = ("help", "back_or_quit", "quit_console")
"""Keys that keep their place on the bottom line however narrow it is."""


def _wide(key: Key) -> int:
    return len(key.shown) + len(key.label) + 1


class KeyBar(Bar):
    """The keys that do something here, as many as fit; each can be clicked."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._places: list[tuple[range, str]] = []

    def show(self, now: Situation) -> None:
        width = self.room
        pieces: list[Content] = []
        self._places, used = [], 0
        labelled = [key for key in applying(now) if key.label]
        left = width - sum(_wide(key) + 2 for key in labelled if key.action in ALWAYS)
        for key in labelled:
            wide = _wide(key)
            if key.action not in ALWAYS:
                if wide + 2 > left:
                    continue
                left -= wide + 2
            self._places.append((range(used, used + wide), key.action))
            used += wide + 2
            pieces.append(line((key.shown, "bold $busy"), (f" {key.label}", "$label")))
        self.say(Content("  ").join(pieces))

    async def on_click(self, event: Click) -> None:
        for place, action in self._places:
            if event.x - 1 in place:
                await self.screen.run_action(action)
