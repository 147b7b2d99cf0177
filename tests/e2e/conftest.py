"""The small target, unpacked once, and the installed command."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from console import demo

DRAFTDECK = Path(sys.executable).with_name("draftdeck")


@pytest.fixture(scope="session")
def model() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder, in the cache that the demo uses too; made once."""
    place = demo.folders(None).model
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, "-m", "pipeline.demo.target", "--out", str(place)], check=True, timeout=300)
    return place
