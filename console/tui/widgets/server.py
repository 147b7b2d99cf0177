"""The model servers: how far up the readiness ladder, and their own figures."""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Size

from console.tui.palette import GLYPHS, TONES
from console.tui.widgets.pane import Pane, Piece, flow, line
from console.view import Snapshot
from console.view import format as fmt
from console.view.rows import ServerRow
from pipeline.protocol import ServerSample


def figures(server: ServerSample) -> list[Piece]:
    """Running, queued, KV use, speed, accept length: what is known."""
    pieces: list[Piece] = []
    if server.running is not None:
        most = f" of {server.max_running}" if server.max_running else ""
        pieces.append(f"{server.running}{most} running")
    if server.queued is not None:
        pieces.append(f"{server.queued} queued")
    if server.kv_use is not None:
        pieces.append((f"KV {fmt.percent(server.kv_use)}", "$warn" if server.kv_use > 0.95 else ""))
    if server.tok_s is not None:
        pieces.append(f"{fmt.number(server.tok_s)} tok/s")
    if server.accept_length is not None:
        pieces.append((f"accept {fmt.number(server.accept_length)}", "$bad" if server.accept_length <= 1.0 else ""))
    return pieces


def _rows(row: ServerRow, width: int) -> list[Content]:
    tone = f"${TONES[row.state]}"
    up = f"  up {fmt.short_duration(row.up_s)}" if row.sample is not None else ""
    rows = [line((f"{GLYPHS[row.state]} {row.job} ", tone), (row.state, f"bold {tone}"), (up, "$label"))]
    if row.sample is None:
        return rows
    known = figures(row.sample)
    if not row.sample.ready or not known:
        rows.append(line("  ", row.step))
    rows += flow(known, width, "  ")
    if row.sample.kv_use is not None and width >= 20:
        label = "  KV cache "
        rows.append(line((label, "$label"), (fmt.bar(row.sample.kv_use, width - len(label)), "$curve")))
    return rows


class ServerPane(Pane):
    """See the module."""

    TITLE = "Server"

    def draw(self, snapshot: Snapshot, room: Size) -> list[Content]:
        if not snapshot.servers:
            return [line(("no server in the plan" if snapshot.plan else "no figures yet", "$faint"))]
        return [each for row in snapshot.servers for each in _rows(row, room.width)]
