"""What a real SGLang 0.5.16 said on one H200, idle and with 150 requests in it; trimmed, paths replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).with_name("sglang")
MODEL = "/models/smollm2-135m-instruct"


def metrics(name: str) -> str:
    """The /metrics body ``busy``, ``busier`` (four seconds later) or ``idle``."""
    return (FOLDER / f"metrics_{name}.txt").read_text()


def document(name: str) -> Any:
    """The JSON of /server_info or /model_info."""
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes())
