"""Everything about one job: what ended it and what to do, attempts, command line, environment, resources, log."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from console.controls import ControlError
from console.tui.keymap import Scope, bindings
from console.tui.palette import GLYPHS, TONES
from console.tui.screens.base import DeckScreen
from console.tui.screens.moving import Moving
from console.tui.widgets.bars import AttentionBar, KeyBar, StatusBar
from console.tui.widgets.pane import Piece, hanging, joined, line, lines
from console.view import Tone
from console.view import format as fmt
from console.view.jobs import JobRow
from console.view.plot import blocks, resample
from console.view.text import clean, shown_line
from pipeline.protocol import Attempt, History, JobDetail

TAIL_BYTES: Final = 8192
TAIL_LINES: Final = 12
FIGURES: Final = (("memory", "memory"), ("cpu_percent", "cpu"))
REFRESH_S: Final = 2.0
LABEL: Final = 12


class JobScreen(Moving, DeckScreen):
    """See the module."""

    SCOPE: ClassVar[Scope] = "job"
    BINDINGS: ClassVar[list[BindingType]] = bindings("job")

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job
        self._detail: JobDetail | None = None
        self._trouble = ""
        self._tail: tuple[str, ...] = ()
        self._tail_of = (-1, -1)
        self._detail_of: object = None
        self._history: dict[str, History] = {}
        self._drawn: Content | None = None

    def compose(self) -> ComposeResult:
        yield AttentionBar(id="attention")
        with VerticalScroll(id="job"):
            yield Static(markup=False, id="job-body")
        yield StatusBar(id="status")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.scroller.focus()
        self.set_interval(REFRESH_S, self._refresh)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        if self.ready:
            self.paint()
            self._refresh()

    @property
    def scroller(self) -> VerticalScroll:
        return self.query_one("#job", VerticalScroll)

    @property
    def selected(self) -> JobRow | None:
        return self.snapshot.job(self._job)

    def paint(self) -> None:
        width = max(20, (self.scroller.scrollable_content_region.width or self.app.size.width) - 2)
        drawn = lines(self._body(width))
        if self._drawn is None or not self._drawn.is_same(drawn):
            self._drawn = drawn
            self.query_one("#job-body", Static).update(drawn)
        self.tick()

    def on_resize(self) -> None:
        if self.ready:
            self.call_after_refresh(self.paint)

    # --- Fetching ---

    def _refresh(self) -> None:
        """Fetch what has changed: the detail with the status, the last lines with the length of the log."""
        row = self.selected
        if self.app.screen is not self or row is None:
            return
        if (row.state, row.attempt, row.restarts) != self._detail_of:
            self._detail_of = (row.state, row.attempt, row.restarts)
            self.run_worker(self._fetch_detail(), group="detail", exclusive=True, exit_on_error=True)
        if row.attempt and (row.attempt, row.log_bytes) != self._tail_of:
            self._tail_of = (row.attempt, row.log_bytes)
            self.run_worker(self._fetch_tail(row.attempt), group="tail", exclusive=True, exit_on_error=True)

    async def _fetch_detail(self) -> None:
        try:
            self._detail, self._trouble = await self.controls.detail(self._job), ""
            for figure, _ in FIGURES:
                self._history[figure] = await self.controls.history(self._job, figure, 240)
        except ControlError as error:
            self._trouble, self._detail_of = str(error), None
        if self.ready:
            self.paint()

    async def _fetch_tail(self, attempt: int) -> None:
        try:
            page = await self.controls.log(self._job, attempt, -TAIL_BYTES, TAIL_BYTES)
        except ControlError:
            self._tail_of = (-1, -1)
            return
        data = page.data.removesuffix(b"\n").split(b"\n")
        self._tail = tuple(shown_line(each, 400) for each in data[-TAIL_LINES:])
        if self.ready:
            self.paint()

    # --- Drawing ---

    def _body(self, width: int) -> Iterable[Content]:
        row = self.selected
        if row is None:
            yield line((f"{self._job} is no longer in the plan", "$warn"))
            return
        yield from _head(row, width)
        if self._trouble:
            yield from _field("details", [(f"not fetched: {clean(self._trouble, 400)}", "$bad")], width)
        yield from _diagnosis(row, width)
        if self._detail is not None:
            yield from _attempts(self._detail.attempts, row)
        yield from self._resources(width)
        if any(self._tail):
            yield from _section("Last lines of the log", "l opens it")
            yield from (line(("  ", ""), each) for each in self._tail)
        if self._detail is not None:
            yield from _command(self._detail, width)

    def _resources(self, width: int) -> Iterable[Content]:
        shown = [(name, self._history[figure]) for figure, name in FIGURES if figure in self._history]
        shown = [(name, history) for name, history in shown if len(history.at) > 1]
        if not shown:
            return
        yield from _section("Resources over the run")
        for name, history in shown:
            top = max(history.values)
            words = fmt.size(top) if name == "memory" else f"{top:,.0f} %"
            curve = blocks(resample(history.at, history.values, max(8, min(80, width - LABEL - 24))))
            yield from _field(name, [(curve, "$curve"), f"  peak {words}"], width)


def _field(name: str, pieces: list[Piece], width: int) -> list[Content]:
    return hanging(line((f"  {name:<{LABEL}}", "$label")), line(*pieces), width)


def _section(title: str, hint: str = "") -> Iterable[Content]:
    yield line("")
    yield line((title, "bold"), (f"  {hint}" if hint else "", "$faint"))


def _head(row: JobRow, width: int) -> Iterable[Content]:
    tone = f"${TONES[row.state]}"
    head = line((f"{GLYPHS[row.state]} {row.name}", f"bold {tone}"), ("  ", ""), (row.state, tone), "  ")
    yield from hanging(head, line(row.why), width)
    facts: list[Piece] = []
    if row.attempt:
        facts.append(f"attempt {row.attempt}, {row.restarts} restart{'' if row.restarts == 1 else 's'}")
    if row.up_s is not None:
        facts.append(f"{'up' if row.live else 'ran'} {fmt.duration(row.up_s)}")
    if row.pid is not None and row.live:
        facts.append(f"pid {row.pid}, {row.processes} process{'' if row.processes == 1 else 'es'}")
    if row.memory is not None:
        facts.append(fmt.size(row.memory))
    if row.cpu_percent is not None:
        facts.append(f"cpu {row.cpu_percent:,.0f} %")
    if row.exit_code is not None:
        facts.append(f"exit code {row.exit_code}")
    if row.signal is not None:
        facts.append(f"signal {row.signal}")
    if facts:
        yield from _field("now" if row.live else "ended", joined(facts), width)
    if row.waived:
        yield from _field("waived", [(row.waived, "$warn")], width)
    if row.progress is not None:
        total = f" of {fmt.count(row.total)}" if row.total else ""
        share = f" ({fmt.percent(row.share)})" if row.share is not None else ""
        rate = f", {fmt.number(row.rate)}/s" if row.rate else ""
        phase = clean(row.progress.phase, 80)
        words = f"{phase}: {fmt.count(row.done)}{total} {row.unit}{share}{rate}"
        yield from _field("before" if row.before else "progress", [(words, "$faint" if row.before else "")], width)
    if row.eta is not None:
        basis = f"  from {clean(row.eta.basis, 200)}" if row.eta.basis else ""
        yield from _field("ETA", [(fmt.eta(row.eta), "bold"), (basis, "$label")], width)
    if row.needs:
        yield from _field("needs", [", ".join(row.needs)], width)
    if row.result is not None and not row.live:
        message = clean(row.result.message, 400)
        said = "" if message == row.why else f" · {message}"
        yield from _field("result", [f"{fmt.count(row.result.records)} records{said}"], width)
        if row.result.manifest:
            yield from _field("manifest", [clean(row.result.manifest, 400)], width)


def _diagnosis(row: JobRow, width: int) -> Iterable[Content]:
    found = row.diagnosis
    if found is None:
        return
    yield from _section("What happened to the attempt before" if row.live else "What happened")
    tone = f"${Tone.BAD if row.crashed else Tone.WARN}"
    yield from hanging(line("  "), line((clean(found.summary, 600), tone)), width)
    for each in found.evidence:
        yield from hanging(line(("  evidence  ", "$label")), line(clean(each, 600)), width)
    if found.advice:
        yield from hanging(line(("  to do     ", "$label")), line((clean(found.advice, 600), "bold")), width)


def _attempts(attempts: tuple[Attempt, ...], row: JobRow) -> Iterable[Content]:
    """Earlier attempts as the journal has them; of one that runs it knows the begin only, ``row`` the rest."""
    if not attempts:
        return
    yield from _section("Attempts")
    yield line((f"  {'':>3}  {'began':<9}{'ran':>12}  {'ended':<12}{'peak':>8}{'log':>8}  reason", "$faint"))
    for each in sorted(attempts, key=lambda one: -one.number)[:20]:
        began = fmt.clock(each.started_at) if each.started_at is not None else fmt.NOTHING
        ran = each.ended_at - each.started_at if each.ended_at is not None and each.started_at is not None else None
        end = f"signal {each.signal}" if each.signal is not None else ""
        end = end or (f"exit {each.exit_code}" if each.exit_code is not None else clean(each.state, 11))
        log_bytes = each.log_bytes
        if each.ended_at is None and each.number == row.attempt and row.live:
            ran, end, log_bytes = row.up_s, str(row.state), row.log_bytes
        yield line(
            (f"  {each.number:>3}  ", "bold"),
            f"{began:<9}{fmt.duration(ran):>12}  {end:<12}",
            f"{fmt.size(each.peak_memory):>8}{fmt.size(log_bytes):>8}  ",
            (clean(each.reason, 300), "$label"),
        )


def _command(detail: JobDetail, width: int) -> Iterable[Content]:
    yield from _section("Command line")
    yield from hanging(line("  "), line(clean(shlex.join(detail.spec.argv), 8000)), width)
    yield from _field("folder", [clean(detail.folder, 400)], width)
    yield from _field("release", [clean(detail.status.release, 80)], width)
    if detail.environment:
        yield from _section("Environment", "secrets masked")
        for name, value in sorted(detail.environment.items()):
            yield from hanging(line("  "), line((clean(name, 100), "$label"), "=", clean(value, 1000)), width)
