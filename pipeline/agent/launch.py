"""Starting the keeper, by the agent, by ``start``, and by the start script that a container's entrypoint may call."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from pipeline.agent import paths

IMPORT_S: Final = 60.0


def spawn_keeper(workdir: Path, runtime: Path, root: str = "") -> int:
    """Start a keeper in a session of its own; its pid. One that finds another at work ends by itself.

    ``root`` is the release it is taken from, the current one unless said otherwise.
    """
    script = str(Path(root or paths.code_root(workdir)) / "pipeline" / "agent" / "keeper.py")
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", script, "--workdir", str(workdir)],
        {**os.environ},
        setsid=True,
        setsigmask=(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(runtime / "keeper.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


def trouble(release: Path) -> str:
    """Why the agent of a release cannot be started, as its Python says; "" when it can."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import pipeline.agent.daemon, pipeline.agent.keeper"],
        env={**os.environ, "PYTHONPATH": str(release)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=IMPORT_S,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 else (lines or [f"exit code {done.returncode}"])[-1]


def write_start_script(workdir: Path) -> Path:
    """Write ``agent/start``: an idempotent script that brings the agent back after the container was restarted."""
    path = Path(paths.agent_dir(workdir)) / "start"
    path.parent.mkdir(parents=True, exist_ok=True)
    root = shlex.quote(paths.own_root())
    releases = shlex.quote(str(workdir.resolve() / "releases"))
    current = shlex.quote(str(path.with_name("current")))
    text = f"""#!/bin/sh
# Starts the agent of this work directory unless it runs. For the image's entrypoint or for @reboot.
release=$(cat {current} 2>/dev/null)
root={releases}/$release
[ -n "$release" ] && [ -d "$root/pipeline" ] || root={root}
export PYTHONPATH="$root"
exec {shlex.quote(sys.executable)} -P -m pipeline.agent start --workdir {shlex.quote(str(workdir.resolve()))}
"""
    temporary = path.with_name(f".start.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(path)
    return path
