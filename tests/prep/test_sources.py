from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.prep import decode, packed
from pipeline.prep.shapes import RowError
from pipeline.prep.sources import SourceError, open_source


def read(path: Path, split: str | None = None) -> list[Any]:
    """Every row, or the reason it cannot be decoded; the positions are checked on the way."""
    found: list[Any] = []
    for number, row in enumerate(open_source(str(path), split=split).rows()):
        assert row.position == number
        try:
            found.append(row.load())
        except RowError as error:
            found.append(str(error))
    return found


def test_lines_with_everything_wrong_in_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [
        b'{"a": 1}',
        b"",
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b"\xff\xfe",
        b'{"a": ',
        b"[" * 100_000,
        b"17",
        b'{"a": 2}',
    ]
    path.write_bytes(b"\n".join(lines))
    rows = read(path)
    assert rows[0] == {"a": 1}
    assert rows[1]["a"] != rows[1]["a"]
    assert rows[2] == {"a": "\ud800"}
    assert rows[3:6] == ["undecodable: not UTF-8", "undecodable: not JSON", "undecodable: JSON nested too deep"]
    assert rows[6:] == [17, {"a": 2}]


def test_a_packed_file_and_a_folder_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    with gzip.open(tmp_path / "deep" / "train-1.jsonl.gz", "wt") as file:
        file.write('{"n": 2}\n{"n": 3}\n')
    (tmp_path / "a-train-0.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "test-0.jsonl").write_text('{"n": 9}\n')
    (tmp_path / "README.md").write_text("# no rows")
    assert read(tmp_path, "train") == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert len(read(tmp_path)) == 4
    with pytest.raises(SourceError, match=r'no split "validation" in the name of any of 3 data files'):
        read(tmp_path, "validation")


def test_an_array_is_read_item_by_item(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    rows = [{"n": number, "text": "x" * (number * 37 % 90_000)} for number in range(200)]
    for text in (json.dumps(rows), json.dumps(rows, indent=1), " \n[ ]", "[1,2 ,\n3]", "[12345]"):
        path.write_text(text)
        assert read(path) == json.loads(text)


def test_an_array_that_is_cut_off_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    path.write_text(json.dumps([{"n": 1}, {"n": 2}, {"n": 3}])[:-5])
    assert read(path) == [{"n": 1}, {"n": 2}, "undecodable: JSON array cut off after item 2"]
    path.write_text('[{"n": 1}]\n{"n": 2}\n')
    assert read(path) == [{"n": 1}, "undecodable: text after the JSON array"]
    path.write_text('[{"n": 1} {"n": 2}]')
    assert read(path) == ["undecodable: not JSON"]
    path.write_text('[{"n": 1}, {"n": 2}, ')
    assert read(path) == [{"n": 1}, {"n": 2}, "undecodable: JSON array cut off after item 2"]


def test_a_broken_item_of_an_array_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    path.write_bytes(
        b'\xef\xbb\xbf[{"n": 1}, {"n": oops}, {"n": NaN}, {"n": "\xff"}, {"n": "a\\"],[{"}, , '
        b'{"n": [1, {"b": 2}]}]\n[{"n": 3}]'
    )
    rows = read(path)
    assert rows.pop(2)["n"] != 0
    assert rows == [
        {"n": 1}, "undecodable: not JSON", "undecodable: not UTF-8", {"n": 'a"],[{'}, "undecodable: not JSON",
        {"n": [1, {"b": 2}]}, {"n": 3},
    ]  # fmt: skip


def test_an_item_or_line_over_the_limit_is_counted_and_the_next_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "LINE_LIMIT", 2 << 20)
    kinds = (("a.json", "[", ",", "]"), ("b.jsonl", "", "\n", "\n"))
    for (name, head, between, tail), size in itertools.product(kinds, (1 << 20, 4 << 20)):
        with (tmp_path / name).open("w") as file:
            file.write(f'{head}{{"n": 1}}{between}{{"n": "')
            file.write("x]" * size)
            file.write(f'"}}{between}{{"n": 2}}{tail}')
        what = "a line" if name.endswith("l") else "an item"
        assert read(tmp_path / name) == [{"n": 1}, f"undecodable: {what} over 2 MiB", {"n": 2}]


@pytest.mark.parametrize("name", ["long.jsonl", "long.json", "long.parquet"])
def test_rows_of_ten_megabytes(tmp_path: Path, name: str) -> None:
    rows = [{"n": number, "text": f'\\"{number}' * 3_400_000} for number in range(3)]
    path = tmp_path / name
    if name.endswith("parquet"):
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if name.endswith("json") else "".join(json.dumps(row) + "\n" for row in rows))
    assert read(path) == rows


def test_the_case_of_a_name_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "A.JSON").write_text('[{"a": 1}, {"a": 2}]')
    parquet.write_table(pa.table({"a": [3]}), tmp_path / "B.PARQUET")
    with gzip.open(tmp_path / "C.JSONL.GZ", "wt") as file:
        file.write('{"a": 4}\n')
    assert read(tmp_path) == [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]


def test_lines_in_a_file_called_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert read(path) == [{"a": 1}, {"a": 2}]


def test_parquet_with_nulls_before_values(tmp_path: Path) -> None:
    rows = [
        {"text": None if number < 1000 else "late", "turns": [{"role": "u", "text": None}]} for number in range(1200)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet", row_group_size=100)
    source = open_source(str(tmp_path))
    assert source.total() == 1200, "Parquet says how many rows there are"
    assert read(tmp_path) == rows


def test_the_total_of_lines_is_scaled_by_the_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"a": 1}\n' * 500)
    source = open_source(str(tmp_path))
    assert source.total() is None, "nothing is known before the first row"
    for number, _ in enumerate(source.rows(), 1):
        if number == 600:
            estimate = source.total()
            assert estimate is not None and 600 <= estimate <= 1200
    assert source.total() == 1000


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.parquet", b"not parquet at all", "undecodable: the rest of x.parquet: no Parquet file: "),
        ("x.arrow", b"not arrow at all", "undecodable: the rest of x.arrow: "),
        ("x.jsonl.gz", b"not packed", "undecodable: the rest of x.jsonl.gz: Not a gzipped file"),
        ("x.jsonl.zst", b"not packed", "undecodable: the rest of x.jsonl.zst: ZSTD decompress failed"),
        ("x.jsonl.bz2", b"not packed", "undecodable: the rest of x.jsonl.bz2: Invalid data stream"),
        ("x.jsonl.xz", b"not packed", "undecodable: the rest of x.jsonl.xz: "),
    ],
)
def test_files_that_are_not_what_they_seem(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "y.jsonl").write_text('{"n": 1}\n')
    rows = read(tmp_path)
    assert rows[0].startswith(words)
    assert rows[1:] == [{"n": 1}], "the set goes on"


def test_what_is_not_read_here(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(SourceError, match="not a kind of file that is read here"):
        read(tmp_path / "x.csv")
    (tmp_path / "x.jsonl").write_text("{}")
    with pytest.raises(SourceError, match="a configuration or revision is only had of a hub id"):
        open_source(str(tmp_path), revision="main")


def written(path: Path, rows: list[Any]) -> Path:
    """The rows as a file of the kind that its name says, without its compression."""
    kind = path.name.split(".")[1]
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)
    elif kind == "arrow":
        table = pa.Table.from_pylist(rows)
        make = pa.ipc.new_file if "file" in path.name else pa.ipc.new_stream
        with make(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
    else:
        path.write_text(json.dumps(rows) if kind == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    return path


PACKERS = {"gz": ["gzip"], "zst": ["zstd", "--rm"], "bz2": ["bzip2"], "xz": ["xz"]}


def pack(path: Path, packing: str) -> Path:
    """Compress a file in place, as people do."""
    subprocess.run([*PACKERS[packing], "-q", "-1", str(path)], check=True)
    return path.with_name(f"{path.name}.{packing}")


@pytest.mark.parametrize("packing", ["", *PACKERS])
@pytest.mark.parametrize("name", ["r.jsonl", "r.json", "r.parquet", "file.arrow", "stream.arrow"])
def test_every_kind_of_file_in_every_packing(tmp_path: Path, name: str, packing: str) -> None:
    rows = [{"n": number, "turns": [{"role": "user", "content": "é" * number}]} for number in range(250)]
    path = written(tmp_path / name, rows)
    if packing:
        pack(path, packing)
    assert read(tmp_path) == rows


@pytest.mark.parametrize("packing", PACKERS)
def test_a_packed_file_that_is_cut_off_gives_what_is_whole(tmp_path: Path, packing: str) -> None:
    rows = [{"n": number, "text": hashlib.sha512(b"%d" % number).hexdigest()} for number in range(4_000)]
    for name in ("r.jsonl", "r.json"):
        path = pack(written(tmp_path / name, rows), packing)
        path.write_bytes(path.read_bytes()[:-2000])
        found = read(path)
        assert found[:-1] == rows[: len(found) - 1]
        assert len(found) > 2_000
        assert found[-1].startswith(f"undecodable: the rest of {path.name}: ")


def test_a_packed_table_that_does_not_fit_the_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(written(tmp_path / "r.parquet", [{"n": number} for number in range(1000)]), "gz")
    monkeypatch.setattr(packed, "UNPACK_LIMIT", 1000)
    assert "unpacks to more than" in read(tmp_path)[0]


def test_a_damaged_row_group_costs_its_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = [{"a": f"value {number}"} for number in range(5000)]
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=1000, use_dictionary=False)
    start = parquet.read_metadata(path).row_group(2).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 400] = b"\x00" * 400
    path.write_bytes(data)
    found = read(path)
    assert found[:2000] == rows[:2000] and found[3000:] == rows[3000:]
    assert all(each.startswith("undecodable: row group 2 is damaged: ") for each in found[2000:3000])


def test_a_row_group_that_nobody_wants_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist([{"a": number} for number in range(5000)]), path, row_group_size=1000)
    data = bytearray(path.read_bytes())
    for number in (0, 1, 3, 4):
        start = parquet.read_metadata(path).row_group(number).column(0).dictionary_page_offset
        data[start : start + 40] = b"\xff" * 40
    path.write_bytes(data)
    rows = list(open_source(str(path)).rows())
    assert len(rows) == 5000
    assert [rows[number].load() for number in (2999, 2000, 2345)] == [{"a": 2999}, {"a": 2000}, {"a": 2345}]
    with pytest.raises(RowError, match="row group 1 is damaged"):
        rows[1000].load()


def test_text_of_tables_that_is_no_utf8_costs_its_row_alone(tmp_path: Path) -> None:
    texts = pa.array([b"one", b"\xff\xfe", b"three"]).cast(pa.binary()).view(pa.string())
    table = pa.table({"a": texts})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_stream(tmp_path / "b.arrow", table.schema) as writer:
        writer.write_table(table)
    assert read(tmp_path) == [{"a": "one"}, "undecodable: not UTF-8", {"a": "three"}] * 2


def test_keys_that_come_and_go_and_nulls_before_text(tmp_path: Path) -> None:
    rows: list[Any] = [{"a": None} for _ in range(1000)]
    rows += [{"a": "late"}, {"b": {"c": 1}}, {"a": 7}, {"a": '{"in": "text"}'}, {"b": [None, "x"]}]
    assert read(written(tmp_path / "r.jsonl", rows)) == rows


def test_files_are_chosen_by_their_names(tmp_path: Path) -> None:
    for name in ("data/train-0", "data/train-1", "training_notes", "test-0"):
        (tmp_path / f"{name}.jsonl").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"n": name}) + "\n")

    def names(**which: Any) -> list[str]:
        return [row.load()["n"] for row in open_source(str(tmp_path), **which).rows()]

    assert names(split="train") == ["data/train-0", "data/train-1"]
    assert names(split="train", files=["*-1.jsonl"]) == ["data/train-1"]
    assert names(files=["data/*", "test*"]) == ["data/train-0", "data/train-1", "test-0"]
    with pytest.raises(SourceError, match=r"no file like \*\.zip .*data/train-0\.jsonl"):
        open_source(str(tmp_path), files=["*.zip"])


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file or folder on this host"):
        open_source(str(tmp_path / "none.jsonl"))
    with pytest.raises(SourceError, match="no data files"):
        open_source(str(tmp_path))


def test_the_fingerprint_is_the_content(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n')
    first = open_source(str(path)).fingerprint()
    path.write_text('{"a": 1}\n')
    assert open_source(str(path)).fingerprint() == first
    path.write_text('{"a": 2}\n')
    assert open_source(str(path)).fingerprint() != first
