"""Real file systems for tests: a small one that can be filled, and one that never answers. Both take root."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20
MNT_DETACH = 2


@contextmanager
def tmpfs(path: Path, size: int) -> Iterator[Path]:
    """A tmpfs of ``size`` bytes, mounted at ``path``."""
    with _mounted(path, "mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield path


@contextmanager
def ramfs(path: Path) -> Iterator[Path]:
    """A file system that neither reserves space nor gives any back."""
    with _mounted(path, "mount", "-t", "ramfs", "ramfs"):
        yield path


@contextmanager
def ext4(path: Path, image: Path, size: int) -> Iterator[Path]:
    """An ext4 of ``size`` bytes in a file, mounted at ``path``."""
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-m", "0", str(image))
    with _mounted(path, "mount", "-o", "loop", str(image)):
        yield path
    image.unlink()


@contextmanager
def _mounted(path: Path, *command: str) -> Iterator[None]:
    path.mkdir(parents=True, exist_ok=True)
    _run(*command, str(path))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} here")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a file system of its own takes root: {done.stderr.strip()}")


@contextmanager
def hung(path: Path) -> Iterator[int]:
    """A FUSE file system whose server never answers; who asks it anything waits until the handle given is closed."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"a mount that hangs takes FUSE: {error}")
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={handle},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    if libc.mount(b"hung", os.fsencode(path), b"fuse.hung", 0, options) != 0:
        os.close(handle)
        pytest.skip(f"a mount that hangs takes root: {os.strerror(ctypes.get_errno())}")
    try:
        yield handle
    finally:
        with contextlib.suppress(OSError):
            os.close(handle)
        libc.umount2(os.fsencode(path), MNT_DETACH)


def fill(folder: Path, leave: int = 0) -> Path:
    """Fill the file system of ``folder`` but for about ``leave`` bytes; the file that does it."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (MIB, 4096, 64):
            with contextlib.suppress(OSError):
                while os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize > leave:
                    if not file.write(b"\1" * size):
                        break
    return filler
