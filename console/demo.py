"""``draftdeck demo``: the whole run on a small real model, in a container on this machine that is reached over SSH.

The model, the datasets and the SSH server are made by ``pipeline.demo`` in processes of their own; from there on it is
the ordinary console with an ordinary config.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from console.demo_config import FIRST_LINE, SOURCES, demo_config

DEFAULT_SIZE: Final = 24
"""Prompts a dataset yields; chosen so that the demo ends within eight minutes on two cores."""


class DemoError(Exception):
    """Something the demo needs could not be made, in one line for the operator."""


@dataclass(frozen=True)
class Folders:
    """What the demo keeps where. The model is shared by all demo folders of a user."""

    root: Path
    model: Path

    @property
    def sources(self) -> Path:
        return self.root / "sources"

    @property
    def container(self) -> Path:
        return self.root / "container"

    @property
    def workdir(self) -> Path:
        return self.root / "work"

    @property
    def ended(self) -> Path:
        """A mark that the demo was ended as a whole: its jobs stopped with it and start with it again."""
        return self.root / "ended"

    @property
    def config(self) -> Path:
        return self.root / "config.toml"


def cache() -> Path:
    """The folder for what can be made again."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "draftdeck"


def folders(root: Path | None) -> Folders:
    """Where a demo's things lie; raises ``DemoError`` where its folder is something else."""
    if root is not None and root.exists() and not root.is_dir():
        raise DemoError(f"{root} is no folder; name one with --dir")
    return Folders((root or cache() / "demo").resolve(), cache() / "models" / "smollm2-135m-instruct")


def prepare(places: Folders, size: int, broken: str = "") -> None:
    """Make model, datasets, container and config, each only where it is missing, with progress on standard output."""
    if sys.platform != "linux":
        raise DemoError("the demo's container needs Linux; on this machine use draftdeck with a host of your own")
    there = places.config.exists()
    if there and not _is_demo(places):
        raise DemoError(f"{places.config} is no demo's config; name a folder of its own with --dir")
    if there and broken:
        raise DemoError(f"the demo in {places.root} has its datasets already; --break goes with --fresh or a new --dir")
    try:
        places.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"{places.root} cannot be made: {error.strerror}; name a folder with --dir") from None
    _step("target: SmolLM2-135M-Instruct", "pipeline.demo.target", "--out", str(places.model))
    if not there:
        extra = ("--break", broken) if broken else ()
        _step(
            "datasets: ten small ones in their public schemas",
            *("pipeline.demo.datasets", "--out", str(places.sources), "--size", str(size), *extra),
        )
    _step("container: an SSH server on 127.0.0.1", "pipeline.demo.container", "--dir", str(places.container))
    if not there:
        places.config.write_text(_config(places, size))
    port = _container(places)["port"]
    print(f"  listens on port {port}", flush=True)
    follow_port(places.config, port)


def remove(places: Folders) -> None:
    """Delete everything of a demo but the model. Its agent and container must have ended."""
    require_demo(places)
    shutil.rmtree(places.root)


def require_demo(places: Folders) -> None:
    """Raise ``DemoError`` where the folder holds something that is no demo: nothing in it is deleted or started."""
    if places.root.is_dir() and any(places.root.iterdir()) and not _is_demo(places):
        raise DemoError(f"{places.root} is no demo's folder; remove it by hand or name another one with --dir")


def _is_demo(places: Folders) -> bool:
    """Whether the folder was made by ``prepare``, as far as that had come."""
    if places.config.exists():
        return places.config.read_text(errors="replace").startswith(FIRST_LINE)
    return {path.name for path in places.root.iterdir()} <= {places.sources.name, places.container.name}


def stop_container(places: Folders) -> None:
    _step("container: ends", "pipeline.demo.container", "--dir", str(places.container), "--stop")


def container_runs(places: Folders) -> bool:
    """Whether the container answers; its folder says how to reach it also while it does not run."""
    if not (places.container / "container.json").exists():
        return False
    try:
        with socket.create_connection(("127.0.0.1", _container(places)["port"]), timeout=2.0):
            return True
    except OSError:
        return False


def _container(places: Folders) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((places.container / "container.json").read_text())
    return facts


def follow_port(config: Path, port: int) -> None:
    """Name the container's port in the config: it is another one where its old one was taken in between."""
    text = config.read_text()
    host = re.compile(r"(^\[host\][^\[]*?^port *= *)(\d+)", re.MULTILINE | re.DOTALL)
    found = host.search(text)
    if found and found[2] != str(port):
        config.write_text(host.sub(rf"\g<1>{port}", text, count=1))


def _config(places: Folders, size: int) -> str:
    container = _container(places)
    return demo_config(
        port=container["port"],
        user=container["user"],
        key=container["key"],
        known_hosts=container["known_hosts"],
        workdir=str(places.workdir),
        python=sys.executable,
        model_dir=str(places.model),
        sources={name: str(places.sources / name) for name in SOURCES},
        size=size,
        server_port=_free_port(),
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _step(title: str, module: str, *arguments: str) -> None:
    """Run one part of ``pipeline.demo`` and show its lines as they come."""
    print(title, flush=True)
    argv: Sequence[str] = (sys.executable, "-m", module, *arguments)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        if line.strip():
            last = line.rstrip()
            if not last.startswith("{"):  # facts for programs
                print(f"  {last}", flush=True)
    if process.wait() != 0:
        hint = ". Install the demo's packages: pip install 'draftdeck[demo]'" if "ModuleNotFoundError" in last else ""
        raise DemoError(f"{title.split(':')[0]} failed: {last or f'exit code {process.returncode}'}{hint}")
