"""Whatever the bytes of a file are: every row that can be told is kept or dropped for a reason, and the stage ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.prep.sources import open_source
from tests.prep.small import run_prep
from tests.prep.test_sources import PACKERS, pack, written

TABLES = ("r.parquet", "file.arrow", "stream.arrow")
NAMES = ("r.jsonl", "r.json", *TABLES)
ROWS: list[Any] = [
    {
        "id": number,
        "messages": [{"role": "user", "content": f'"é\\{number}' * number}, {"role": "assistant", "content": "a"}],
        "late": None if number < 20 else "text",
    }
    for number in range(1, 30)
]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of a file of every kind, in every packing."""
    folder = tmp_path_factory.mktemp("intact")
    found: dict[str, bytes] = {}
    for name in NAMES:
        for packing in ("", *PACKERS):
            path = written(folder / name, ROWS)
            path = pack(path, packing) if packing else path
            found[path.name] = path.read_bytes()
            path.unlink()
    return found


@st.composite
def accidents(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes after some of what happens to files: bits flipped, cut short, a hole, something in between, doubled."""
    original = data
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "cut", "hole", "insert", "again"])):
            case "flip" if at < len(data):
                data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
            case "cut":
                data = data[:at]
            case "hole":
                data = data[:at] + data[at + draw(st.integers(1, 50)) :]
            case "insert":
                data = data[:at] + draw(st.binary(max_size=20)) + data[at:]
            case _:
                data += original
    return data


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data(), take=st.sampled_from([None, 3]))
def test_read_is_kept_and_dropped(
    tmp_path_factory: pytest.TempPathFactory,
    target: Path,
    intact: dict[str, bytes],
    data: st.DataObject,
    take: int | None,
) -> None:
    name = data.draw(st.sampled_from(sorted(intact)))
    content = data.draw(accidents(intact[name]))
    folder = tmp_path_factory.mktemp("files")
    (folder / name).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        outcome = run_prep(patch, folder, folder / name, target, shape="messages", take=take, damaged="keep")
    assert outcome.code == (0 if outcome.records else 3), outcome.result.message
    assert outcome.result.message.isprintable()
    count = outcome.result.datasets["T1"]
    assert count.read == count.kept + sum(count.dropped.values())
    assert count.read == sum(1 for _ in open_source(str(folder / name)).rows())
    assert count.kept == len(outcome.records)
    if content == intact[name]:
        assert count.read == len(ROWS)
