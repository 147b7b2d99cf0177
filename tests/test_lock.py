"""requirements.lock holds for every machine."""

from __future__ import annotations

from pathlib import Path

LOCK = Path(__file__).parent.parent / "requirements.lock"


def test_every_requirement_is_a_pinned_release() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 50
    assert [line for line in lines if line.count("==") != 1 or "@" in line or "/" in line or "+" in line] == []
