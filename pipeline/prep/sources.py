"""Where rows come from: files and folders of them, here or on the hub. Everything streams."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from pipeline.files import file_hash
from pipeline.prep.columns import BrokenTableError, arrow_rows, parquet_row_count, parquet_rows
from pipeline.prep.decode import Lost, Undecoded, array_items, lines
from pipeline.prep.packed import DAMAGE, stem, to_temporary_file, unpacked
from pipeline.prep.roles import printable

KINDS: Final = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
READ_HERE: Final = f"{', '.join(KINDS)}, each also with .gz, .zst, .bz2 or .xz"


class SourceError(Exception):
    """A source that cannot be read; one line that says what to do. ``final``: trying again does not help."""

    def __init__(self, message: str, *, final: bool = True) -> None:
        super().__init__(message)
        self.final = final


class Row(NamedTuple):
    """A row's position in its source, and how to decode it. ``load`` raises RowError for an undecodable row."""

    position: int
    load: Callable[[], Any]
    raw: bytes = b""  # to show of a row that is not decoded
    ends: str = ""  # the file whose unread rest this one row stands for; never left out of a draw


class Source(Protocol):
    """What the stage reads. ``total`` is the number of rows as far as it is known: exact, estimated, or None."""

    def fingerprint(self) -> Any: ...
    def rows(self) -> Iterator[Row]: ...
    def total(self) -> float | None: ...


@dataclass(frozen=True)
class DataFile:
    """A file with rows: its name, its size in bytes, and how to have it here."""

    name: str
    size: int
    here: Callable[[], Path]


def open_source(
    source: str,
    *,
    config: str | None = None,
    split: str | None = None,
    revision: str | None = None,
    files: Sequence[str] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Source:
    """A local file or folder, or a hub id. ``tell`` gets what is worth a note on the way. Raises SourceError."""
    path = Path(source).expanduser()
    if path.exists():
        if config or revision:
            raise SourceError(f"{source} is on this host; a configuration or revision is only had of a hub id")
        return LocalSource(_files(path, split, files))
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or stem(source).endswith(KINDS):
        raise SourceError(f"{source}: no such file or folder on this host")
    from pipeline.prep.hub import open_hub

    return open_hub(source, config, split, revision, files, tell)


class FileSource:
    """Files, one after the other."""

    def __init__(self, files: Sequence[DataFile], known: float | None = None) -> None:
        self._files = files
        self._known = known  # rows in all
        self._rows_read = 0
        self._bytes_before = 0  # of the files that are read to their end
        self._raw: BinaryIO | None = None  # the file that is being read

    def total(self) -> float | None:
        """Rows in all: as far as it is said somewhere, else the rows so far scaled by the bytes still unread."""
        if self._known is not None:
            return self._known
        now = self._raw.tell() if self._raw is not None and not self._raw.closed else 0
        read = self._bytes_before + now
        if not self._rows_read or not read:
            return None
        return self._rows_read * max(1.0, sum(file.size for file in self._files) / read)

    def rows(self) -> Iterator[Row]:
        """Every row of every file. What is left of a file that cannot be read on counts as one undecodable row."""
        self._rows_read = self._bytes_before = 0
        for file in self._files:
            path = file.here()
            try:
                with path.open("rb") as raw:
                    self._raw = raw
                    for load, shown in _read(raw, path, file.name):
                        yield Row(self._rows_read, load, shown, file.name if isinstance(load, Lost) else "")
                        self._rows_read += 1
            except DAMAGE as error:
                if isinstance(error, OSError) and error.errno:  # the disk's error says nothing about the file
                    raise SourceError(f"{path}: {printable(error, 200)}", final=False) from error
                reason = f"undecodable: the rest of {printable(file.name, 60)}: {printable(error, 80)}"
                yield Row(self._rows_read, Lost(reason), ends=file.name)
                self._rows_read += 1
            self._bytes_before += file.size
            self._raw = None


class LocalSource(FileSource):
    """Files of this host, in the order of their names."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        super().__init__([_local(path) for path in paths], _rows_said(paths))

    def fingerprint(self) -> Any:
        """Names, sizes and hashes of the files."""
        return [{"file": path.name, "bytes": path.stat().st_size, "sha256": file_hash(path)} for path in self._paths]


def chosen_by(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that fit one of the patterns, in which * also stands for /; all where there is no pattern."""
    return [name for name in names if not patterns or any(fnmatch.fnmatchcase(name, each) for each in patterns)]


def _local(path: Path) -> DataFile:
    return DataFile(path.name, path.stat().st_size, lambda: path)


def _read(raw: BinaryIO, path: Path, name: str) -> Iterator[Undecoded]:
    """The rows of one file. Raises one of DAMAGE where it cannot go on."""
    kind = stem(name)
    packed = kind != name.lower()
    if kind.endswith(".parquet"):
        yield from parquet_rows(to_temporary_file(unpacked(raw, name)) if packed else path)
        return
    stream = unpacked(raw, name)
    if kind.endswith(".arrow"):
        yield from arrow_rows(stream)
    elif kind.endswith(".json") and stream.peek(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
        yield from array_items(stream)
    else:
        yield from lines(stream)


def _rows_said(paths: Sequence[Path]) -> float | None:
    """The number of rows where the files all say theirs."""
    if not all(path.suffix.lower() == ".parquet" for path in paths):
        return None
    try:
        return float(sum(parquet_row_count(path) for path in paths))
    except (BrokenTableError, OSError):
        return None  # what is wrong is said when it is read


def _files(path: Path, split: str | None, patterns: Sequence[str]) -> list[Path]:
    """The data files of a path, sorted: those with the split in their names, and of these the ones asked for."""
    if path.is_file():
        if not stem(path.name).endswith(KINDS):
            raise SourceError(f"{path}: not a kind of file that is read here; there are {READ_HERE}")
        return [path]
    names = sorted(
        str(file.relative_to(path))
        for file in path.rglob("*")
        if file.is_file() and stem(file.name).endswith(KINDS) and not file.name.startswith((".", "_"))
    )
    if not names:
        raise SourceError(f"{path}: no data files; there should be {READ_HERE}")
    found = names
    if split is not None:
        # The split is a word of its own in the path: "train" is not in "training".
        word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(split)}(?![A-Za-z])")
        found = [name for name in names if word.search(name)]
    chosen = chosen_by(found, patterns)
    if not chosen:
        what = f'split "{split}" in the name' if not found else f"file like {', '.join(patterns)}"
        raise SourceError(f"{path}: no {what} of any of {len(names)} data files: {_some(names)}")
    return [path / name for name in chosen]


def _some(names: Sequence[str]) -> str:
    """A few names, to choose from."""
    return printable(", ".join(names[:5]) + (", …" if len(names) > 5 else ""), 300)
