"""Where secrets' values lie: files that only their owner can read. Standard library only."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class MissingSecret(Exception):  # noqa: N818 - a state of things that the operator ends
    """A job names a secret that has no value here."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"secret {name} is not set here: draftdeck secret set {name}")


class SecretRefused(Exception):  # noqa: N818
    """A secret's file could be read or written by others."""


def write_secret(runtime_dir: str | Path, name: str, value: str) -> None:
    """Store a secret's value: a file of mode 0600 in a folder of mode 0700."""
    _check_name(name)
    if not value or "\0" in value:
        raise ValueError(f"secret {name}: its value is empty or holds a NUL")
    folder = Path(runtime_dir) / "secrets"
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_private(folder.lstat(), folder, stat.S_ISDIR, 0o700)
    temporary = folder / f".{name}.{os.getpid()}"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123
            file.write(value)
            file.flush()
            os.fsync(handle)
        temporary.replace(folder / name)
    finally:
        temporary.unlink(missing_ok=True)


def read_secret(runtime_dir: str | Path, name: str) -> str | None:
    """A stored secret's value, None if there is none. SecretRefused if others can reach it."""
    _check_name(name)
    path = Path(runtime_dir) / "secrets" / name
    try:
        _check_private(path.parent.lstat(), path.parent, stat.S_ISDIR, 0o700)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SecretRefused(f"{path}: {error.strerror}; set it anew: draftdeck secret set {name}") from error
    try:
        _check_private(os.fstat(handle), path, stat.S_ISREG, 0o600)
        with open(handle, encoding="utf-8", newline="", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a variable's name: letters, digits and _ only")


def _check_private(found: os.stat_result, path: Path, is_kind: Callable[[int], bool], mode: int) -> None:
    if not is_kind(found.st_mode):
        raise SecretRefused(f"{path} is not what it should be; remove it")
    if found.st_uid != os.getuid():
        raise SecretRefused(f"{path} belongs to user {found.st_uid}, not {os.getuid()}; have it removed")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise SecretRefused(f"{path} has mode {stat.S_IMODE(found.st_mode):o}; run: chmod {mode:o} {path}")
