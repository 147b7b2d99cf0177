"""Runs in the container before anything of ours is there: its source is given to ``python -c``.

Standard library only. Each command prints one line, ``MARK`` and a JSON object, so that it is told apart from what a
login shell prints besides. The console imports it for the hash of a release, which both sides must compute alike.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

MARK = "draftdeck-answer "
ABANDONED_S = 3600.0  # an unpacking folder this old belongs to an upload that died


def release_files(package: Path) -> dict[str, bytes]:
    """What a release consists of: relative POSIX path to bytes, without caches, hidden files and symbolic links."""
    files: dict[str, bytes] = {}
    for folder, names, leaves in os.walk(package):
        names[:] = [name for name in names if name != "__pycache__" and not name.startswith(".")]
        for leaf in leaves:
            path = Path(folder, leaf)
            if leaf.startswith(".") or leaf.endswith((".pyc", "~")) or path.is_symlink() or not path.is_file():
                continue
            files[path.relative_to(package).as_posix()] = path.read_bytes()
    return files


def release_hash(files: dict[str, bytes]) -> str:
    """16 hex digits that name the content of ``release_files``."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()[:16]


def look(workdir: Path, release: str) -> dict[str, Any]:
    """Whether the release is there and whole, and which one is current."""
    package = workdir / "releases" / release / "pipeline"
    current = workdir / "agent" / "current"
    return {
        "complete": package.is_dir() and release_hash(release_files(package)) == release,
        "current": current.read_text().strip() if current.is_file() else "",
    }


def install(workdir: Path, release: str, archive: bytes) -> dict[str, Any]:
    """Unpack beside the place, check, then rename: under its name a release is whole or absent."""
    releases = workdir / "releases"
    releases.mkdir(parents=True, exist_ok=True)
    for left in releases.glob(".*.tmp"):
        if time.time() - left.stat().st_mtime > ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{release}.", suffix=".tmp", dir=releases))
    try:
        _unpack(archive, folder / "pipeline")
        found = release_hash(release_files(folder / "pipeline"))
        if found != release:
            raise ValueError(f"what arrived has the hash {found}, not {release}")
        folder.chmod(0o755)
        place = releases / release
        if place.exists() and not look(workdir, release)["complete"]:
            place.rename(releases / f".{release}.damaged-{time.time_ns()}")
        try:
            folder.rename(place)
        except OSError:
            if not look(workdir, release)["complete"]:  # else somebody else was faster, with the same content
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return look(workdir, release)


def _unpack(archive: bytes, package: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar:
            parts = Path(member.name).parts
            content = tar.extractfile(member) if member.isfile() else None
            if content is None or member.name.startswith("/") or ".." in parts:
                raise ValueError(f"unexpected entry in the archive: {member.name!r}")
            path = package / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
                file.flush()
                os.fsync(file.fileno())


def point(workdir: Path, release: str) -> dict[str, Any]:
    """Make ``release`` the one that the agent starts with."""
    folder = workdir / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".current.", dir=folder)
    with os.fdopen(handle, "w") as file:
        file.write(release + "\n")
        file.flush()
        os.fsync(file.fileno())
    Path(name).replace(folder / "current")
    return {"current": release}


def modules(names: list[str]) -> dict[str, Any]:
    """Which of these cannot be imported, and why."""
    missing = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a broken package raises, it is not usable
            missing[name] = f"{type(error).__name__}: {error}"
    return {"missing": missing, "prefix": sys.prefix}


def versions(names: list[str]) -> dict[str, Any]:
    """The version of each distribution whose module could be imported, "?" where it tells none; nothing is imported.

    ``names`` are "module" or "module=distribution".
    """
    found = {}
    for name in names:
        module, _, distribution = name.partition("=")
        try:
            if importlib.util.find_spec(module) is None:
                continue
            found[module] = importlib.metadata.version(distribution or module)
        except importlib.metadata.PackageNotFoundError:
            found[module] = "?"
        except (ImportError, ValueError):
            continue
    return {"found": found, "python": sys.version.split()[0], "prefix": sys.prefix}


def ask(module: str, question: str, archive: bytes) -> dict[str, Any]:
    """What ``answer`` of a module in a zip archive says to a question. The archive stays in memory."""
    handle = os.memfd_create("draftdeck")
    with os.fdopen(handle, "wb", closefd=False) as file:
        file.write(archive)
    sys.path.insert(0, f"/proc/self/fd/{handle}")
    found: dict[str, Any] = importlib.import_module(module).answer(json.loads(question))
    return found


def main(arguments: list[str]) -> None:
    command, rest = arguments[0], arguments[1:]
    try:
        if command == "look":
            answer = look(Path(rest[0]), rest[1])
        elif command == "install":
            answer = install(Path(rest[0]), rest[1], sys.stdin.buffer.read())
        elif command == "point":
            answer = point(Path(rest[0]), rest[1])
        elif command == "versions":
            answer = versions(rest)
        elif command == "ask":
            answer = ask(rest[0], rest[1], sys.stdin.buffer.read())
        else:
            answer = modules(rest)
    except (OSError, ValueError, tarfile.TarError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write("\n" + MARK + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
