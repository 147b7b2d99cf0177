"""The command of the shim: ``python -I -S shim.py ATTEMPT_DIR``.

What it does is in ``attempt``: a script is compiled anew at each start, a module is not, and restarts wait for it.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from pipeline.agent.attempt import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
