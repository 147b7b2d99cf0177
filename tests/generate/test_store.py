"""Answers on disk: whatever is cut off or left over, each key counts once; a full disk loses and doubles nothing."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.duplicates import DROPPED, Dropped, DuplicatesError
from pipeline.files import content_hash, file_hash
from pipeline.generate.__main__ import manifest_of
from pipeline.generate.board import Board
from pipeline.generate.prompts import ids_hash, index_prompts, order, read_ids
from pipeline.generate.settings import Settings, SettingsError, parse_partition
from pipeline.generate.store import Answer, Store
from pipeline.generate.writer import Line, Writer
from pipeline.outputs import HeldError, exclusive, write_manifest
from tests.generate.run import SHORT, answers, command, finish, keys, reported, rows, write_prompts


def settings_for(folder: Path, *prompts: Path) -> Settings:
    return Settings(("http://x",), prompts, (parse_partition(SHORT),), folder / "out")


def line_for(settings: Settings, key: str, ids: list[int]) -> bytes:
    sampling = settings.sampling(settings.partitions[0], None)
    answer = Answer(key, key.split("/")[0], content_hash(ids), [7, 8, 2], "stop", len(ids), 3, 0.5, sampling)
    return msgspec.json.encode(answer) + b"\n"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 11), max_size=30),
    st.binary(max_size=40).filter(lambda data: b"\n" not in data),
    st.lists(st.sampled_from([b"{}", b"not json", b'{"key":"B1/0/x"}', b""]), max_size=3),
)
def test_load_counts_each_key_once_whatever_the_file_holds(written: list[int], torn: bytes, odd: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prompts_folder = write_prompts(folder / "B1", "B1", rows(12))
        setting = settings_for(folder, prompts_folder)
        prompts = index_prompts(setting).by_key
        in_order = list(prompts)
        setting.out.mkdir()
        data = [line_for(setting, in_order[at], read_ids(prompts[in_order[at]])) for at in written]
        lines = data[: len(data) // 2] + [one + b"\n" for one in odd] + data[len(data) // 2 :]
        (setting.out / "B1.jsonl").write_bytes(b"".join(lines) + torn)
        loaded = Store(setting.out, model=None).load(prompts)
        assert set(loaded.answers) == {in_order[at] for at in written}
        assert loaded.torn == len(torn)
        if written:
            assert set(answers(setting.out)) == set(loaded.answers)
        doubled = sum(count - 1 for count in Counter(written).values())
        assert loaded.stale.get("answered twice", 0) == doubled
        assert loaded.stale.get("not readable", 0) == len(odd)
        again = Store(setting.out, model=None).load(prompts)
        assert (set(again.answers), again.stale, again.torn) == (set(loaded.answers), {}, 0)


def test_only_one_holds_the_output(tmp_path: Path) -> None:
    with exclusive(tmp_path / "out"):
        with pytest.raises(HeldError, match="another run"), exclusive(tmp_path / "out"):
            pass
        with exclusive(tmp_path / "other"):
            pass
    with exclusive(tmp_path / "out"):
        pass


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Files may not grow beyond ``size`` bytes: writes end short and then fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    store = Store(tmp_path, model=None)
    store.append("B1.jsonl", b"x" * 99 + b"\n")
    with disk_of(150), pytest.raises(OSError, match="File too large"):
        store.append("B1.jsonl", b"y" * 99 + b"\n")
    assert (tmp_path / "B1.jsonl").read_bytes() == b"x" * 99 + b"\n"


async def test_the_writer_outlives_a_full_disk(tmp_path: Path) -> None:
    """While nothing can be written nothing counts as written; afterwards every line is there once."""
    writer = Writer(Store(tmp_path, model=None))
    task = asyncio.create_task(writer.run())
    written: list[int] = []
    with disk_of(2000):
        for number in range(100):
            data = json.dumps({"key": number, "pad": "x" * 50}).encode() + b"\n"
            await writer.put(Line("B1.jsonl", data, lambda number=number: written.append(number)))  # type: ignore[misc]
        async with asyncio.timeout(20):
            while not writer.trouble:  # noqa: ASYNC110 - what a screen does
                await asyncio.sleep(0.01)
        assert "B1.jsonl cannot be written" in writer.trouble
        lines = (tmp_path / "B1.jsonl").read_bytes().splitlines()
        assert [json.loads(line)["key"] for line in lines] == written
    writer.close()
    async with asyncio.timeout(20):
        await task
    assert written == list(range(100))
    found = [json.loads(line)["key"] for line in (tmp_path / "B1.jsonl").read_bytes().splitlines()]
    assert found == list(range(100))
    assert writer.trouble == ""


async def test_a_writer_that_cannot_write_still_ends(tmp_path: Path) -> None:
    writer = Writer(Store(tmp_path / "missing", model=None))
    task = asyncio.create_task(writer.run())
    for number in range(200):
        await writer.put(Line("B1.jsonl", b"x\n", lambda number=number: pytest.fail(f"{number} written")))  # type: ignore[misc]
    writer.close()
    async with asyncio.timeout(20):
        await task


@given(st.lists(st.integers(0, 200_000), max_size=30))
def test_ids_hash_is_the_content_hash_whatever_the_spacing(ids: list[int]) -> None:
    assert ids_hash(json.dumps(ids).encode()) == ids_hash(msgspec.json.encode(ids)) == content_hash(ids)


@given(st.dictionaries(st.sampled_from(["B1", "B2", "B3"]), st.integers(0, 15)), st.integers(0, 12), st.integers())
def test_order_is_a_stratified_pilot_and_the_rest(answered: dict[str, int], pilot: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folders = [write_prompts(folder / each, each, rows(10 * at)) for at, each in enumerate(("B1", "B2", "B3"), 1)]
        prompts = list(index_prompts(settings_for(folder, *folders)).by_key.values())
    first, rest = order(prompts, Counter(answered), pilot, seed)
    assert Counter(prompt.key for prompt in [*first, *rest]) == Counter(prompt.key for prompt in prompts)
    for at, each in enumerate(("B1", "B2", "B3"), 1):
        wanted = min(10 * at, max(0, pilot - answered.get(each, 0)))
        assert sum(prompt.dataset == each for prompt in first) == wanted
    assert order(prompts, Counter(answered), pilot, seed) == (first, rest)


def test_index(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", [*rows(3), *rows(1)])
    found = index_prompts(settings_for(tmp_path, folder, tmp_path / "B2"))
    assert set(found.by_key) == keys(folder)
    assert found.doubled == {"B1": 1}
    assert found.missing == (tmp_path / "B2",)
    prompt = found.by_key[next(iter(found.by_key))]
    assert read_ids(prompt) == [100, 3, 5]
    write_prompts(folder, "B1", rows(3, start=7))
    with pytest.raises(SettingsError, match="was changed while it was read"):
        read_ids(prompt)


@pytest.mark.parametrize("name", ["../B1", "a/b", "", ".hidden"])
def test_a_dataset_that_cannot_name_a_file(tmp_path: Path, name: str) -> None:
    folder = write_prompts(tmp_path / "B1", name, rows(1))
    with pytest.raises(SettingsError, match="cannot name a file"):
        index_prompts(settings_for(tmp_path, folder))


def dedup_of(folder: Path, dropped: list[str], **preps: str) -> Path:
    """What dedup leaves: keys it dropped, and the content of the preps it read."""
    folder.mkdir()
    rows = [Dropped(key, key.split("/")[0], "near duplicate", "A1/0/x", 0.9) for key in dropped]
    data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    (folder / DROPPED).write_bytes(data)
    made_of = [{"dataset": name, "content": content} for name, content in preps.items()]
    files = {DROPPED: {"bytes": len(data), "sha256": ""}}
    write_manifest(folder, {"content": "d", "inputs": made_of, "files": files})
    return folder


def test_prompts_that_dedup_dropped_are_not_asked(tmp_path: Path) -> None:
    folders = [write_prompts(tmp_path / name, name, rows(4, start=at)) for name, at in (("B1", 0), ("B2", 10))]
    for folder in folders:
        write_manifest(folder, {"settings": {"dataset": folder.name}, "content": f"of {folder.name}"})
    gone = sorted(keys(*folders))[2:5]
    setting = replace(settings_for(tmp_path, *folders), dedup=tmp_path / "dedup")
    waived = index_prompts(setting)
    assert len(waived.by_key) == 8 and waived.undecided == tmp_path / "dedup"
    dedup_of(tmp_path / "dedup", gone, B1="of B1", B2="of B2")
    found = index_prompts(setting)
    assert set(found.by_key) == keys(*folders) - set(gone)
    assert found.skipped == {"B1": 2, "B2": 1} and found.undecided is None
    setting.out.mkdir()
    made_from = manifest_of(setting, Board(setting, found.by_key))["inputs"]
    assert made_from[str(tmp_path / "dedup")] == file_hash(tmp_path / "dedup" / "manifest.json")


@pytest.mark.parametrize(
    ("preps", "words"),
    [({"B1": "other"}, "made from other records of B1; run dedup again"), ({}, "made without B1; run dedup again")],
)
def test_what_a_stale_dedup_dropped_is_not_believed(tmp_path: Path, preps: dict[str, str], words: str) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", rows(4))
    write_manifest(folder, {"settings": {"dataset": "B1"}, "content": "of B1"})
    dedup_of(tmp_path / "dedup", [], **preps)
    with pytest.raises(DuplicatesError, match=words):
        index_prompts(replace(settings_for(tmp_path, folder), dedup=tmp_path / "dedup"))
    argv = command("http://127.0.0.1:9", tmp_path / "out", folder, more=["--dedup", str(tmp_path / "dedup")])
    code, _ = finish(argv, tmp_path / "progress.jsonl")
    result = reported(tmp_path / "progress.jsonl")[1]
    assert code == 3 and result is not None and words in result.message, "the same next time: not retried"
