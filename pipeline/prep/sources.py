"""Where rows come from: local files and folders of them, and the hub. Everything streams."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast

from pipeline.files import file_hash
from pipeline.prep.decode import LINE_LIMIT, BrokenArrayError, array_items, decode_line, refuse
from pipeline.prep.roles import printable

SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".parquet", ".jsonl.gz", ".ndjson.gz", ".json.gz")
PARQUET_BATCH: Final = 256  # rows
SHOWN: Final = 1024  # bytes of a line too long to be a row

_Undecoded = tuple[Callable[[], Any], bytes]


class SourceError(Exception):
    """A source that cannot be read; one line that says what to do."""


@dataclass(frozen=True)
class Row:
    """A row's position in its source, and how to decode it. ``load`` raises RowError for an undecodable row."""

    position: int
    load: Callable[[], Any]
    raw: bytes = b""  # to show of a row that is not decoded


class Source(Protocol):
    """What the stage reads. ``total`` is the number of rows as far as it is known: exact, estimated, or None."""

    def fingerprint(self) -> Any: ...
    def rows(self) -> Iterator[Row]: ...
    def total(self) -> float | None: ...


def open_source(
    source: str, *, config: str | None = None, split: str | None = None, revision: str | None = None
) -> Source:
    """A local file or folder, or a hub id. Raises SourceError."""
    path = Path(source).expanduser()
    if path.exists():
        return LocalSource(_files(path, split))
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or source.lower().endswith(SUFFIXES):
        raise SourceError(f"{source}: no such file or folder on this host")
    from pipeline.prep.hub import HubSource

    return HubSource(source, config, split, revision)


class LocalSource:
    """JSONL, JSON and Parquet files, one after the other in the order of their names."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        self._files = files
        self._sizes = {file: file.stat().st_size for file in files}
        self._rows_known = {file: _parquet_rows(file) for file in files if file.suffix.lower() == ".parquet"}
        self._rows_read = 0  # of files without a row count
        self._bytes_read = 0

    def fingerprint(self) -> Any:
        """Names, sizes and hashes of the files."""
        return [{"file": file.name, "bytes": self._sizes[file], "sha256": file_hash(file)} for file in self._files]

    def total(self) -> float | None:
        """Rows in all: Parquet says it, of other files the rows so far are scaled by the bytes still unread."""
        unknown = sum(size for file, size in self._sizes.items() if file not in self._rows_known)
        if not unknown:
            return float(sum(self._rows_known.values()))
        if not self._bytes_read:
            return None
        return sum(self._rows_known.values()) + self._rows_read * max(1.0, unknown / self._bytes_read)

    def rows(self) -> Iterator[Row]:
        """Every row of every file. Raises SourceError for a file that is not what its name says."""
        self._rows_read = self._bytes_read = 0
        position = 0
        for file in self._files:
            read = _parquet if file.suffix.lower() == ".parquet" else self._text
            try:
                for load, raw in read(file):
                    yield Row(position, load, raw)
                    position += 1
            except (OSError, EOFError) as error:
                raise SourceError(f"{file}: {printable(error, 200)}; the file is damaged or was changed") from error

    def _text(self, file: Path) -> Iterator[_Undecoded]:
        finished = self._bytes_read
        name = file.name.lower()
        array = name.endswith((".json", ".json.gz"))
        with file.open("rb") as raw:
            packed = name.endswith(".gz")
            stream = io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=raw)), 1 << 20) if packed else raw
            for row in _lines_or_items(cast("io.BufferedReader", stream), maybe_array=array):
                self._rows_read += 1
                self._bytes_read = finished + max(1, raw.tell())
                yield row
        self._bytes_read = finished + self._sizes[file]


def _lines_or_items(stream: io.BufferedReader, *, maybe_array: bool) -> Iterator[_Undecoded]:
    """The rows of JSON lines, or of a JSON array where the text is one."""
    if maybe_array and stream.peek(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
        try:
            for item in array_items(stream):
                yield _given(item), b""
        except BrokenArrayError as error:
            yield refuse(str(error)), b""
        return
    while line := stream.readline(LINE_LIMIT):
        if not line.endswith(b"\n") and len(line) == LINE_LIMIT:
            while (rest := stream.readline(LINE_LIMIT)) and not rest.endswith(b"\n"):
                pass
            yield refuse(f"undecodable: a line over {LINE_LIMIT >> 20} MiB"), line[:SHOWN]
        elif line.strip():
            yield _line(line), line


def _line(line: bytes) -> Callable[[], Any]:
    return lambda: decode_line(line)


def _given(item: Any) -> Callable[[], Any]:
    return lambda: item


def _parquet(file: Path) -> Iterator[_Undecoded]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as reader:
            for batch in reader.iter_batches(batch_size=PARQUET_BATCH):
                for index in range(batch.num_rows):
                    yield _cell(batch, index), b""
    except pa.ArrowException as error:
        raise SourceError(f"{file}: {printable(error, 200)}; the file is damaged") from error


def _cell(batch: Any, index: int) -> Callable[[], Any]:
    """A row is made of its columns only when it is wanted: most rows of a large set are not."""
    return lambda: batch.slice(index, 1).to_pylist()[0]


def _parquet_rows(file: Path) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{file} is no Parquet file: {printable(error, 200)}") from error


def _files(path: Path, split: str | None) -> tuple[Path, ...]:
    """The data files of a path, sorted; of a folder with a split, those that have the split in their path."""
    if path.is_file():
        if not path.name.lower().endswith(SUFFIXES):
            raise SourceError(f"{path}: not a kind of file that is read here; there are {', '.join(SUFFIXES)}")
        return (path,)
    found = sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and file.name.lower().endswith(SUFFIXES) and not file.name.startswith((".", "_"))
    )
    chosen = [file for file in found if split is None or split in str(file.relative_to(path))]
    if not chosen:
        what = f'split "{split}" in the name of any of {len(found)} data files' if found else "data files"
        raise SourceError(f"{path}: no {what}; there should be {', '.join(SUFFIXES)}")
    return tuple(chosen)
