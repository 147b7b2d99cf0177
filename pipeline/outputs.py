"""A stage's output folder: its files appear whole or not at all, and its manifest says what they were made from.

The manifest is written last. A folder without one is unfinished and made anew; one whose manifest names the same
content is done; one of other content is moved aside, never overwritten.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from pipeline.files import sync_folder, write_atomically

MANIFEST: Final = "manifest.json"


class HeldError(Exception):
    """Another run is writing the folder; the text says which."""


@contextmanager
def exclusive(out: Path) -> Iterator[None]:
    """Hold an output folder for as long as the body runs. Raises HeldError where another run has it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.with_name(f".{out.name}.lock")
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(20).decode(errors="replace") or "unknown"
            raise HeldError(
                f"{out} is being written by another run (pid {holder}): stop it, or name another --out"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        yield


class Writer:
    """A file being written: its bytes so far, and their hash."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.bytes = 0

    def line(self, value: Any) -> None:
        """Append a value as a line of JSON."""
        data = msgspec.json.encode(value) + b"\n"
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)

    def summary(self) -> dict[str, Any]:
        """For the manifest."""
        return {"bytes": self.bytes, "sha256": self._hash.hexdigest()}


@contextmanager
def replacing(path: Path) -> Iterator[Writer]:
    """Write a file that gets its name when the block ends well, and leaves nothing when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Always the same name: what a killed run left is overwritten by the next one.
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            yield Writer(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Finish a folder. ``manifest`` has "content" (its name) and "files" (name to ``Writer.summary``)."""
    write_atomically(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a finished folder; None without a readable one."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return manifest if isinstance(manifest, dict) else None


def done(folder: Path, content: str) -> dict[str, Any] | None:
    """The manifest, if the folder already holds this content and its files have the sizes they were written with."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.get("content") != content:
        return None
    for name, summary in manifest.get("files", {}).items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != summary["bytes"]:
            return None
    return manifest


def set_aside(folder: Path, content: str) -> Path | None:
    """Move a finished folder of other content to ``<name>.stale-<its content>``; None where there is no such folder."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.get("content") == content:
        return None
    return move_aside(folder, str(manifest.get("content", "unknown")))


def move_aside(folder: Path, content: str) -> Path:
    """Move a folder to ``<name>.stale-<content>``, or that with a number where such a one is there already."""
    name = f"{folder.name}.stale-{content}"
    target = folder.with_name(name)
    number = 2
    while target.exists():
        target = folder.with_name(f"{name}-{number}")
        number += 1
    folder.rename(target)
    sync_folder(folder.parent)
    return target
