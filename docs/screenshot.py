"""``python docs/screenshot.py --config CONFIG``: the picture of the README, taken of a run that is under way.

Needs rsvg-convert (Debian: librsvg2-bin) and a monospaced font with braille (DejaVu Sans Mono).
"""

from __future__ import annotations

import argparse
import asyncio
import html
import re
import subprocess
from pathlib import Path

from console.config import load
from console.tui.app import Deck
from console.watching import Host, open_link, session_on

CELL = 12.2
"""Width of a character in the SVG that Textual writes."""

WORD = re.compile(r"[\u2800-\u28ff\u2580-\u259f]|[^\s\xa0\u2800-\u28ff\u2580-\u259f]+")
"""A braille or block character by itself, or a word."""


async def take(config_path: Path, size: tuple[int, int], seconds: float) -> str:
    """Watch the run for ``seconds``, so that the plot has something to show; the screen as SVG."""
    config = load(config_path)
    session = session_on(config, lambda: open_link(config, Host(config_path)), read_only=False)
    app = Deck(session)
    async with app.run_test(size=size) as pilot:
        await pilot.pause(seconds)
        return on_cells(app.export_screenshot())


def on_cells(svg: str) -> str:
    """Put every word on its own cell: fonts differ in width, above all for braille and blocks."""

    def words(match: re.Match[str]) -> str:
        before, left, after, body = match[1], float(match[2]), re.sub(r'textLength="[^"]*"', "", match[3]), match[4]
        placed = []
        for word in re.finditer(
            r"[\u2800-\u28ff\u2580-\u259f]|[^\s\xa0\u2800-\u28ff\u2580-\u259f]+", html.unescape(body)
        ):
            x = left + CELL * word.start()
            placed.append(f'<text{before}x="{x:.1f}"{after}>{html.escape(word[0])}</text>')
        return "".join(placed)

    return re.sub(r'<text([^>]*?)x="([0-9.]+)"([^>]*)>([^<]*)</text>', words, svg).replace(
        "Fira Code", "DejaVu Sans Mono"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("overview.png"))
    parser.add_argument("--size", default="150x42")
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    columns, lines = (int(part) for part in arguments.size.split("x"))
    svg = arguments.out.with_suffix(".svg")
    svg.write_text(asyncio.run(take(arguments.config, (columns, lines), arguments.seconds)))
    subprocess.run(["rsvg-convert", "-w", "1500", str(svg), "-o", str(arguments.out)], check=True)
    svg.unlink()


if __name__ == "__main__":
    main()
