"""The command of the shim: ``python -I -S shim.py ATTEMPT_DIR``, or ``--spare WORKDIR`` to wait for an attempt.

What it does is in ``attempt``: a script is compiled anew at each start, a module is not, and restarts wait for it.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))

from pipeline.agent.attempts.attempt import main
from pipeline.agent.attempts.handover import SPARE, take

if __name__ == "__main__":
    folder = take() if sys.argv[1] == SPARE else sys.argv[1]
    code = main(folder) if folder is not None else 0
    os._exit(code)  # what the interpreter tears down at its end takes longer than all that came before it
