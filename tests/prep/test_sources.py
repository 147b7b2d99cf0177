from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.prep.hub import reason
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
    assert read(path) == [{"n": 1}, "undecodable: JSON array broken after item 1"]


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
        ("x.parquet", b"not parquet at all", "is no Parquet file"),
        ("x.csv", b"a,b", "not a kind of file that is read here"),
        ("x.jsonl.gz", b"not packed", "damaged"),
    ],
)
def test_files_that_are_not_what_they_seem(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=words):
        read(tmp_path / name)


def test_a_damaged_parquet_page_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"a": [f"value {number}" for number in range(5000)]}), path)
    data = bytearray(path.read_bytes())
    data[4:400] = b"\x00" * 396
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"rows\.parquet: .*the file is damaged"):
        read(path)


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


def test_a_hub_that_is_switched_off_or_away_is_one_line(tmp_path: Path) -> None:
    script = (
        "from pipeline.prep.sources import SourceError, open_source\n"
        "try:\n    open_source('some/dataset')\nexcept SourceError as error:\n    print(error)\n"
    )
    base = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd())}
    off = {**base, "HF_HUB_OFFLINE": "1"}
    away = {**base, "HF_ENDPOINT": "http://127.0.0.1:9"}
    for environment, words in ((off, "HF_HUB_OFFLINE"), (away, "cannot be reached")):
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.stdout.startswith("some/dataset"), done.stderr
        assert done.stdout.count("\n") == 1
        assert words in done.stdout


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("DatasetNotFoundError", "Dataset 'x/y' is a gated dataset on the Hub.", "gated or private"),
        ("DatasetNotFoundError", "Dataset 'x/y' doesn't exist on the Hub or cannot be accessed.", "not on the hub"),
        ("RuntimeError", "Dataset scripts are no longer supported, but found y.py", "refs/convert/parquet"),
        ("ValueError", "Config name is missing.\nPlease pick one among ['all', 'code']", "choose with --config"),
        ("ReadTimeout", "timed out", "cannot be reached"),
        ("OddError", "what\x1b[2J is\nthis", "x/y: OddError: what [2J is this"),
    ],
)
def test_hub_errors_say_what_to_do(kind: str, text: str, words: str) -> None:
    error = type(kind, (Exception,), {})(text)
    assert words in reason(error, "x/y")
    assert "\n" not in reason(error, "x/y")
