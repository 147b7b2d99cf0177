"""The host: memory against its limit, pressure, CPU, GPUs, disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual.content import Content
from textual.geometry import Size

from console.tui.widgets.pane import Pane, Piece, flow, joined, line
from console.view import Snapshot
from console.view import format as fmt
from console.view.attention import MEMORY_PRESSURE, MEMORY_SHARE, disk_words
from console.view.text import clean
from pipeline.protocol import GpuSample, HostSample

LABEL: Final = 8


def _label(text: str) -> tuple[str, str]:
    return (f"{text:<{LABEL}}", "$label")


def _fill(share: float | None, width: int, warn: float) -> list[Piece]:
    """A bar in the colour of how full it is."""
    tone = "$bad" if share is not None and share > warn else "$warn" if share is not None and share > 0.85 else "$curve"
    drawn = fmt.bar(share, width)
    filled = drawn.rstrip("░")
    return [(filled, tone), (drawn[len(filled) :], "$edge")]


def memory_line(host: HostSample, width: int) -> Content:
    """ "memory 812 / 960 GB" and a bar that takes what is left of ``width``."""
    share = host.memory_used / host.memory_limit if host.memory_limit else None
    words = f"{fmt.size_of(host.memory_used, host.memory_limit)} "
    return line(_label("memory"), words, *_fill(share, max(4, width - LABEL - len(words)), MEMORY_SHARE))


def pressure_pieces(host: HostSample) -> list[Piece]:
    """Pressure and OOM kills, each in the colour of how bad it is."""
    pieces: list[Piece] = []
    if host.memory_some is not None:
        pieces.append((f"some {host.memory_some:.0f} %", "$bad" if host.memory_some > MEMORY_PRESSURE else ""))
    if host.oom_kills is not None:
        pieces.append((f"OOM kills {host.oom_kills}", "$warn" if host.oom_kills else ""))
    return pieces


def disk_pieces(host: HostSample) -> list[Piece]:
    """Free space, and when it is gone at the present rate."""
    return [(disk_words(host), "$bad" if host.disk_short else "")]


def gpu_rows(gpus: Sequence[GpuSample], width: int, room: int) -> list[Content]:
    """A line a GPU where there is room, else one line with what all of them do."""
    if not gpus:
        return []
    if len(gpus) > room:
        first, *rest = flow(gpu_summary(gpus), width - LABEL)
        label = _label(f"GPU {gpus[0].index}–{gpus[-1].index}")
        return [line(label, first), *(line(_label(""), row) for row in rest)]
    rows = []
    for gpu in gpus:
        warm = f" {gpu.temperature:.0f} °C" if gpu.temperature is not None else ""
        power = f" {gpu.power:.0f} W" if gpu.power is not None else ""
        words = f" {gpu.utilisation:3.0f} % {fmt.size_of(gpu.memory_used, gpu.memory_total)}{warm}{power}"
        share = gpu.memory_used / gpu.memory_total if gpu.memory_total else None
        rows.append(
            line(_label(f"GPU {gpu.index}"), (fmt.bar(share, max(2, width - LABEL - len(words))), "$curve"), words)
        )
    return rows


def gpu_summary(gpus: Sequence[GpuSample]) -> list[Piece]:
    """What all GPUs do: the mean utilisation, the fullest, the hottest, power together."""
    mean = sum(gpu.utilisation for gpu in gpus) / len(gpus)
    fullest = max(gpus, key=lambda gpu: gpu.memory_used)
    pieces: list[Piece] = [f"{mean:.0f} %", fmt.size_of(fullest.memory_used, fullest.memory_total)]
    warm = [gpu.temperature for gpu in gpus if gpu.temperature is not None]
    power = [gpu.power for gpu in gpus if gpu.power is not None]
    if warm:
        pieces.append(f"{max(warm):.0f} °C")
    if power:
        pieces.append(f"{sum(power) / 1000:.1f} kW" if sum(power) >= 1000 else f"{sum(power):.0f} W")
    return pieces


class HostPane(Pane):
    """See the module."""

    TITLE = "Host"

    def draw(self, snapshot: Snapshot, room: Size) -> list[Content]:
        host = snapshot.host
        if host is None:
            return [line(("no figures yet", "$faint"))]
        rows = [memory_line(host, room.width)]
        pressure = pressure_pieces(host)
        if pressure:
            rows.append(line(_label(""), *joined(pressure)))
        cpu = f"{host.cpu_percent:3.0f} % of {host.cpus} cores "
        rows.append(
            line(_label("cpu"), cpu, *_fill(host.cpu_percent / 100, max(4, room.width - LABEL - len(cpu)), 1.01))
        )
        rows.append(line(_label("disk"), *disk_pieces(host)))
        rows += gpu_rows(host.gpus, room.width, room.height - len(rows))
        rows += [line(_label("note"), (clean(remark, 200), "$warn")) for remark in host.remarks]
        return rows
