"""An attempt given to a shim that was started ahead of it. Standard library only: the shim's end runs here too.

One line of JSON goes through a pipe to the shim's standard input: the attempt's folder, and the secrets, which stand
nowhere else. The pipe is held by the agent alone, so a shim that is given nothing ends with the agent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

SPARE = "--spare"


def give(handle: int, folder: str, secrets: Mapping[str, str]) -> bool:
    """Hand an attempt to the shim at the other end; False when it could not take all of it at once."""
    line = json.dumps({"folder": folder, "secrets": dict(secrets)}).encode() + b"\n"
    os.set_blocking(handle, False)
    try:
        return os.write(handle, line) == len(line)
    except OSError:  # it has ended, or does not read
        return False


def take() -> str | None:
    """Wait for an attempt; its folder, with its secrets in the environment. None when there will be none."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            return None  # a line that was cut off is nobody's errand
        line += part
    errand = json.loads(line)
    os.environ.update(errand["secrets"])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    folder: str = errand["folder"]
    os.chdir(folder)  # by this the shim of an attempt is found, where its command line does not tell
    return folder
