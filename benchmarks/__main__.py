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

from benchmarks import link
from benchmarks.supervision import run as supervision

RESULTS: Final = Path(__file__).with_name("results")
BENCHMARKS: Final[Mapping[str, Callable[[bool], dict[str, Any]]]] = {
    "supervision": supervision.measure,
    "link": link.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="less of everything, and the figures are only printed")
    options = parser.parse_args()
    for name in options.names or list(BENCHMARKS):
        figures = {**circumstances(), **BENCHMARKS[name](options.quick)}
        if not options.quick:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")


def circumstances() -> dict[str, object]:
    """When and on what the figures were taken."""
    return {
        "measured_at": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {
            "cores": os.cpu_count(),
            "architecture": platform.machine(),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "load_before": round(os.getloadavg()[0], 2),
    }


if __name__ == "__main__":
    main()
