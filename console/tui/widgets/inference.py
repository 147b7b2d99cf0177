"""Inference: speed now and over the run, how much is answered, how long still."""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Size

from console.tui.palette import GLYPHS, TONES
from console.tui.widgets.pane import Pane, Piece, fit, flow, line
from console.view import Snapshot
from console.view import format as fmt
from console.view.plot import blocks, braille, resample
from console.view.rows import Inference


def _known(value: float | None, words: str) -> list[Piece]:
    return [] if value is None else [words]


def figures(figure: Inference) -> list[Piece]:
    """Requests, answer length, in flight, errors: what is known."""
    pieces: list[Piece] = []
    pieces += _known(figure.req_s, f"{fmt.number(figure.req_s)} req/s")
    pieces += _known(figure.mean_tokens, f"mean {fmt.number(figure.mean_tokens)} tok")
    pieces += _known(figure.in_flight, f"{fmt.count(figure.in_flight)} in flight")
    pieces += _known(figure.slots, f"{fmt.count(figure.slots)} slots")
    if figure.errors:
        pieces.append((f"{fmt.count(figure.errors)} errors", "$bad"))
    elif figure.errors is not None:
        pieces.append("no errors")
    if figure.retries:
        pieces.append((f"{fmt.count(figure.retries)} retries", "$warn"))
    return pieces


def plot_rows(figure: Inference, width: int, height: int) -> list[Content]:
    """The curve over the run, its highest value on the axis, and the time it spans."""
    history = figure.history
    if height < 1 or width < 16 or len(history.at) < 2:
        return []
    top = max(history.values, default=0.0)
    if height < 4:
        words = f" max {fmt.number(top)}"
        return [
            line((blocks(resample(history.at, history.values, width - len(words)), top), "$curve"), (words, "$faint"))
        ]
    axis = max(len(fmt.number(top)), len("0")) + 1
    curve = braille(resample(history.at, history.values, 2 * (width - axis)), width - axis, height - 1, top)
    labels = [fmt.number(top) if index == 0 else "0" if index == len(curve) - 1 else "" for index in range(len(curve))]
    rows = [
        line((f"{label:>{axis - 1}} ", "$faint"), (row, "$curve")) for label, row in zip(labels, curve, strict=True)
    ]
    span = f"{fmt.duration(history.at[-1] - history.at[0])} ago"
    return [*rows, line((f"{'':<{axis}}{span}{'now':>{max(4, width - axis - len(span))}}", "$faint"))]


class InferencePane(Pane):
    """See the module."""

    TITLE = "Inference"

    def summary(self, snapshot: Snapshot) -> str:
        figure = snapshot.inference
        return "" if figure is None else f"{GLYPHS[figure.state]} {figure.state}"

    def draw(self, snapshot: Snapshot, room: Size) -> list[Content]:
        figure = snapshot.inference
        if figure is None:
            return [line(("no generation in the plan" if snapshot.plan else "no figures yet", "$faint"))]
        if figure.done is None and not figure.history.at:
            return [line((figure.why or "has not started", "$faint"))]
        speed: list[Piece] = [(f"{fmt.number(figure.tok_s)} tok/s", "bold $curve")] if figure.tok_s is not None else []
        before: list[Piece] = [("before the restart", "$warn")] if figure.before else []
        parts = [[*speed, *figures(figure)]] if not before else [speed, [*before, *figures(figure)]]
        rows = [row for part in parts for row in flow(part, room.width)]
        for name, tok_s, in_flight, losses in figure.servers:
            lost: list[Piece] = [(f"lost {fmt.count(losses)}×", "$warn")] if losses else []
            words: list[Piece] = [f"{fmt.number(tok_s)} tok/s", f"{fmt.count(in_flight)} in flight", *lost]
            rows += flow([(name, "$label"), *words], room.width)
        done = f" {fmt.count(figure.done)} of {fmt.count(figure.total)}  {fmt.percent(figure.share)}"
        tone = "$faint" if figure.before else f"${TONES[figure.state]}"
        rows.append(line((fmt.bar(figure.share, max(4, room.width - len(done))), tone), done))
        if figure.eta is not None:
            basis = f"  from {figure.eta.basis}" if figure.eta.basis else ""
            rows.append(fit(line(("ETA ", "$label"), (fmt.eta(figure.eta), "bold"), (basis, "$label")), room.width))
        return [*rows, *plot_rows(figure, room.width, room.height - len(rows))]
