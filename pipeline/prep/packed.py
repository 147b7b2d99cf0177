"""Compressed files as streams of what is in them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import tempfile
import zlib
from typing import IO, Any, BinaryIO, Final, cast

SUFFIXES: Final = (".gz", ".zst", ".bz2", ".xz")

UNPACK_LIMIT: Final = 256 << 30  # bytes of a temporary file
BUFFER: Final = 1 << 20

DAMAGE: Final = (EOFError, OSError, ValueError, MemoryError, zlib.error, lzma.LZMAError)
"""What the readers of broken files raise: a damaged length asks for any memory. An OSError with a number is the
disk's, not the file's."""


class TooLargeError(ValueError):
    """A compressed file whose content does not fit the space there is for it."""


def stem(name: str) -> str:
    """A file's name without the ending of its compression, in lower case."""
    name = name.lower()
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def unpacked(raw: BinaryIO, name: str) -> io.BufferedReader:
    """The stream of a file's content. Reading it raises one of ``DAMAGE`` where it cannot go on.

    Buffers are small: what one holds is lost when the next piece is damaged.
    """
    suffix = name.lower().removeprefix(stem(name))
    stream: Any = raw
    if suffix == ".gz":
        stream = gzip.GzipFile(fileobj=raw)
    elif suffix == ".bz2":
        stream = bz2.BZ2File(raw)
    elif suffix == ".xz":
        stream = lzma.LZMAFile(raw)  # noqa: SIM115 - closed with the file below it
    elif suffix == ".zst":
        import pyarrow as pa

        stream = io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"), 1 << 16)
    return cast("io.BufferedReader", stream)


def to_temporary_file(stream: IO[bytes]) -> BinaryIO:
    """A stream's content as a file that has no name and goes when it is closed. Raises TooLargeError.

    It takes half of what its disk has left at most, so that nothing else there ends for want of space.
    """
    free = shutil.disk_usage(tempfile.gettempdir()).free
    limit = min(UNPACK_LIMIT, free // 2)
    file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - returned
    try:
        written = 0
        while data := stream.read(BUFFER):
            written += len(data)
            if written > limit:
                raise TooLargeError(
                    f"unpacks to more than {limit >> 20:,} MiB, half of what is free in {tempfile.gettempdir()}: "
                    "unpack it yourself, or name a larger disk with TMPDIR"
                )
            file.write(data)
        file.flush()
        file.seek(0, os.SEEK_SET)
    except BaseException:
        file.close()
        raise
    return file
