"""A file brought over HTTP, once: what a broken connection or a kill left of it is gone on with."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import httpx

from pipeline.files import sync_folder

TRIES: Final = 6  # without a byte between them
PAUSE_MAX_S: Final = 30.0
TOLD_MAX_S: Final = 600.0  # the longest wait that a server may ask for
TIMEOUT_S: Final = 30.0
NOTE_S: Final = 1.0  # between two notes on how far it is
BLOCK: Final = 1 << 20
BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Answers that another try may change."""


class DamagedError(Exception):
    """A file that has come whole, and is not what the server says it is."""


def fetch(url: str, target: Path, *, headers: Mapping[str, str], digest: str, tell: Callable[[str], None]) -> None:
    """Bring ``url`` to ``target``. Raises httpx.HTTPError, DamagedError, OSError; what has come until then is kept.

    ``digest`` is the SHA-256 of the file, or the SHA-1 that git names it by; "" where the server says neither.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    with _alone(part, tell) as file:
        if target.exists():  # another process has brought it meanwhile
            return
        _bring(url, file, headers, lambda text: tell(f"{target.name}: {text}"))
        os.fsync(file.fileno())
        if digest and _digest(file, len(digest)) != digest:
            file.truncate(0)
            raise DamagedError(f"{target.name} arrived, and its hash is not the one that the hub says")
        part.rename(target)
    sync_folder(target.parent)


def pause(response: Any, tries: int) -> float:
    """Seconds to wait after so many tries: what the server asks for, else more each time."""
    asked = "" if response is None else str(response.headers.get("Retry-After", ""))
    return min(float(asked), TOLD_MAX_S) if asked.isdecimal() else min(PAUSE_MAX_S, 2.0 ** (tries - 1))


def _bring(url: str, file: BinaryIO, headers: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Append until the file is whole."""
    tries = 0
    with httpx.Client(follow_redirects=True, timeout=TIMEOUT_S) as client:
        while True:
            had = file.seek(0, os.SEEK_END)
            response: httpx.Response | None = None
            try:
                if _once(client, url, file, headers, tell):
                    return
                problem = "the connection was closed in mid-file"
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in BUSY or tries + 1 >= TRIES:
                    raise
                response, problem = error.response, f"the hub answers {error.response.status_code}"
            except httpx.TransportError as error:
                if tries + 1 >= TRIES:
                    raise
                problem = type(error).__name__
            tries = 1 if file.seek(0, os.SEEK_END) > had else tries + 1
            if tries >= TRIES:
                raise httpx.ReadError(problem)
            seconds = pause(response, tries)
            tell(f"{problem}, tried again in {seconds:.0f} s")
            time.sleep(seconds)


def _once(
    client: httpx.Client, url: str, file: BinaryIO, headers: Mapping[str, str], tell: Callable[[str], None]
) -> bool:
    """One request for what is missing; whether the file is whole after it."""
    have = file.seek(0, os.SEEK_END)
    asked = {**headers, "Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with client.stream("GET", url, headers=asked) as response:
        whole = response.headers.get("Content-Range", "").rpartition("/")[2]
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            if whole == str(have):
                return True
            file.truncate(0)
            return False
        response.raise_for_status()
        if response.status_code != httpx.codes.PARTIAL_CONTENT:  # it sends all of it, whatever was asked for
            have = 0
            file.truncate(0)
            whole = response.headers.get("Content-Length", "")
        file.seek(have)
        size = int(whole) if whole.isdecimal() else None
        due = 0.0
        for data in response.iter_raw():
            file.write(data)
            have += len(data)
            if time.monotonic() < due:
                continue
            due = time.monotonic() + NOTE_S
            tell(f"{have / 1e6:,.1f}{f' of {size / 1e6:,.1f}' if size else ''} MB")
    return size is None or have == size


@contextmanager
def _alone(path: Path, tell: Callable[[str], None]) -> Iterator[BinaryIO]:
    """A file that no other process writes meanwhile; without a buffer, so that a kill loses nothing that has come."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"{path.name}: another process brings it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield cast("BinaryIO", file)


def _digest(file: BinaryIO, length: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    sha = hashlib.sha256() if length == 64 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    while data := file.read(BLOCK):
        sha.update(data)
    return sha.hexdigest()
