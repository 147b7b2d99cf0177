"""Rows of Parquet and Arrow files. A row is made of its columns only when it is wanted."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from pipeline.prep.decode import Undecoded
from pipeline.prep.packed import DAMAGE
from pipeline.prep.roles import printable
from pipeline.prep.shapes import RowError

BATCH_ROWS: Final = 256
BATCH_BYTES: Final = 32 << 20  # of rows that are long, fewer are read at once

_ARROW_MAGIC: Final = b"ARROW1\x00\x00"


class BrokenTableError(ValueError):
    """A table that cannot be read, or not read on."""


def parquet_row_count(file: Path) -> int:
    """Rows of a Parquet file. Raises BrokenTableError, OSError."""
    return sum(_counts(_open(file)))


def parquet_rows(file: Path | BinaryIO) -> Iterator[Undecoded]:
    """Every row; those of a row group that is damaged cannot be decoded. Raises BrokenTableError, OSError."""
    reader = _open(file)
    for number, rows in enumerate(_counts(reader)):
        group = _Group(reader, number)
        for index in range(rows):
            yield functools.partial(group.row, index), b""


def arrow_rows(stream: BinaryIO) -> Iterator[Undecoded]:
    """Every row of an Arrow stream, or of an Arrow file, which is one between two marks. Raises one of DAMAGE."""
    import pyarrow as pa

    peeked = stream.peek(8) if hasattr(stream, "peek") else b""
    if peeked[:8] == _ARROW_MAGIC:
        stream.read(8)
    try:
        with pa.ipc.open_stream(pa.PythonFile(stream, mode="r")) as reader:
            for number, batch in enumerate(reader):
                for index in range(batch.num_rows):
                    yield functools.partial(_row, batch, index, f"batch {number}"), b""
    except (MemoryError, pa.ArrowException) as error:
        raise BrokenTableError(str(error) or "it asks for more memory than there is") from error


class _Group:
    """A row group. Nothing of it is read before a row is wanted."""

    def __init__(self, reader: Any, number: int) -> None:
        self._reader = reader
        self._number = number
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None
        self._first = 0  # index of the batch's first row
        self._broken: tuple[int, str] | None = None  # from which row on, and why

    def row(self, index: int) -> Any:
        """A row by its index in the group. Raises RowError."""
        if self._batch is None or index < self._first:
            group = self._reader.metadata.row_group(self._number)
            size = BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
            size = max(1, min(BATCH_ROWS, size))
            self._batches = self._reader.iter_batches(batch_size=size, row_groups=[self._number])
            self._batch, self._first = None, 0
        while self._batch is None or index >= self._first + self._batch.num_rows:
            self._next(index)
        return _row(self._batch, index - self._first, f"row group {self._number}")

    def _next(self, index: int) -> None:
        import pyarrow as pa

        first = self._first + (0 if self._batch is None else self._batch.num_rows)
        if self._broken is not None and index >= self._broken[0]:
            raise RowError(self._broken[1])
        try:
            self._batch, self._first = next(self._batches), first
        except StopIteration:
            self._broken = (first, f"undecodable: row group {self._number} has fewer rows than it says")
        except (*DAMAGE, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            self._broken = (first, f"undecodable: row group {self._number} is damaged: {printable(error, 80)}")


def _row(batch: Any, index: int, where: str) -> Any:
    import pyarrow as pa

    try:
        one = batch.slice(index, 1)
        # Offsets that point anywhere are found here and not by a crash.
        one.validate(full=True)
        return one.to_pylist()[0]
    except UnicodeDecodeError:
        raise RowError("undecodable: not UTF-8") from None
    except (ValueError, TypeError, ArithmeticError, MemoryError, pa.ArrowException) as error:
        why = "not UTF-8" if "UTF8" in str(error) else f"damaged, {where}: {printable(error, 80)}"
        raise RowError(f"undecodable: {why}") from None


def _open(file: Path | BinaryIO) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file, buffer_size=1 << 20, page_checksum_verification=True)
    except (*DAMAGE, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise BrokenTableError(f"no Parquet file: {printable(error, 120)}") from error


def _counts(reader: Any) -> list[int]:
    """Rows of each row group. Of columns nothing is asked here: the library aborts where theirs is damaged."""
    metadata = reader.metadata
    counts = [int(metadata.row_group(number).num_rows) for number in range(metadata.num_row_groups)]
    if sum(counts) != metadata.num_rows or min(counts, default=0) < 0:
        raise BrokenTableError(f"no Parquet file: {sum(counts):,} rows in groups, {metadata.num_rows:,} in all")
    return counts
