"""Rows of Parquet and Arrow files. A row is made of its columns only when it is wanted."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from pipeline.prep.decode import Undecoded
from pipeline.prep.packed import DAMAGE
from pipeline.prep.roles import printable
from pipeline.prep.shapes import RowError

BATCH_ROWS: Final = 256
FEW_ROWS: Final = 4  # of a batch; when more are wanted, all are made
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
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    piece = _Batch(batch.slice(start, BATCH_ROWS), f"batch {number}")
                    for index in range(len(piece)):
                        yield functools.partial(piece.row, index), b""
    except (MemoryError, pa.ArrowException) as error:
        raise BrokenTableError(str(error) or "it asks for more memory than there is") from error


class _Group:
    """A row group. Nothing of it is read before a row is wanted."""

    def __init__(self, reader: Any, number: int) -> None:
        self._reader = reader
        self._number = number
        self._batches: Iterator[Any] = iter(())
        self._batch: _Batch | None = None
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
        while self._batch is None or index >= self._first + len(self._batch):
            self._next(index)
        return self._batch.row(index - self._first)

    def _next(self, index: int) -> None:
        import pyarrow as pa

        first = self._first + (0 if self._batch is None else len(self._batch))
        if self._broken is not None and index >= self._broken[0]:
            raise RowError(self._broken[1])
        try:
            batch = next(self._batches)
            self._batch, self._first = _Batch(batch, f"row group {self._number}"), first
        except StopIteration:
            self._broken = (first, f"undecodable: row group {self._number} has fewer rows than it says")
        except (*DAMAGE, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            self._broken = (first, f"undecodable: row group {self._number} is damaged: {printable(error, 80)}")


class _Batch:
    """Some rows. They are made one by one, or all at once where many are wanted: that is ten times faster a row."""

    def __init__(self, batch: Any, where: str) -> None:
        self._batch = batch
        self._where = where
        self._made = 0
        self._rows: list[Any] | None = None

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def row(self, index: int) -> Any:
        """A row by its index. Raises RowError."""
        if self._made == FEW_ROWS:
            with contextlib.suppress(RowError):  # then they are made one by one, to see which it is
                self._rows = self._make(self._batch)
        self._made += 1
        return self._make(self._batch.slice(index, 1))[0] if self._rows is None else self._rows[index]

    def _make(self, batch: Any) -> list[Any]:
        import pyarrow as pa

        try:
            # Offsets that point anywhere are found here and not by a crash.
            batch.validate(full=True)
            return list(batch.to_pylist())
        except UnicodeDecodeError:
            raise RowError("undecodable: not UTF-8") from None
        except (ValueError, TypeError, ArithmeticError, MemoryError, pa.ArrowException) as error:
            why = "not UTF-8" if "UTF8" in str(error) else f"damaged, {self._where}: {printable(error, 80)}"
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
