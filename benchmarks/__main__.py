"""``python -m benchmarks [NAME …]``: run the benchmarks, print their tables, keep the figures in ``results/``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks import supervision

RESULTS: Final = Path(__file__).with_name("results")
BENCHMARKS: Final[Mapping[str, Callable[[], dict[str, Any]]]] = {"supervision": supervision.measure}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help=f"of {', '.join(BENCHMARKS)}; default: all")
    names = parser.parse_args().names or list(BENCHMARKS)
    RESULTS.mkdir(exist_ok=True)
    for name in names:
        figures = {
            "measured_at": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            "load_before": round(os.getloadavg()[0], 2),
            **BENCHMARKS[name](),
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
