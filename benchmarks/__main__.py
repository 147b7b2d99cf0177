"""``python -m benchmarks [NAME …]``: run the benchmarks, print their tables, keep the figures in ``results/``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).with_name("results")
MODULES: Final = {
    "supervision": "benchmarks.supervision.run",
    "link": "benchmarks.link",
    "prep": "benchmarks.prep.run",
    "reading": "benchmarks.prep.reading",
    "generate": "benchmarks.generate.run",
    "eta": "benchmarks.eta.run",
    "gpu": "benchmarks.gpu",
    "sglang": "benchmarks.sglang.run",
}
NAMED_ONLY: Final = frozenset({"gpu", "sglang"})  # needs what most machines lack


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*MODULES, []], help=f"of {', '.join(MODULES)}; default: all that run everywhere"
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, and the figures are only printed")
    options = parser.parse_args()
    for name in options.names or [name for name in MODULES if name not in NAMED_ONLY]:
        # Imported when it is its turn: where one runs, what another needs may be missing.
        figures: dict[str, Any] = {**circumstances(), **import_module(MODULES[name]).measure(options.quick)}
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
            "kernel": platform.release().partition("-")[0],
            "python": platform.python_version(),
        },
        "load_before": round(os.getloadavg()[0], 2),
    }


if __name__ == "__main__":
    main()
