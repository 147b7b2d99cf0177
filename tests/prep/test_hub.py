"""Datasets of a hub, over real HTTP: found, refused, busy, torn off in mid-file, resumed after a kill."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.files import complete_lines
from pipeline.prep.hub import reason
from pipeline.progress import parse_line
from pipeline.protocol import Result
from tests.prep.loopback_hub import COMMIT, Hub, Repository, running
from tests.waiting import wait_until

ROWS = [
    {"messages": [{"role": "user", "content": f"q {number} {'word ' * 20}"}, {"role": "assistant", "content": "a"}]}
    for number in range(1500)
]
CARD = b"""---
configs:
- config_name: chat
  default: true
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: data/test-*
- config_name: meta
  data_files: meta.jsonl
---
"""
# Reads the sources that it is given, a line each, and says what became of each.
READER = """
import json, sys
from pipeline.prep.sources import SourceError, open_source
for line in sys.stdin:
    notes = []
    try:
        source = open_source(**json.loads(line), tell=notes.append)
        rows = [row.load() for row in source.rows()]
        found = {"rows": len(rows), "first": rows[0], "total": source.total(), "identity": source.fingerprint()}
    except SourceError as error:
        found = {"error": str(error), "final": error.final}
    print(json.dumps({**found, "notes": notes}), flush=True)
"""


def text(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def files() -> dict[str, bytes]:
    return {
        "README.md": CARD,
        "data/train-0.jsonl": text(ROWS[:1000]),
        "data/train-1.jsonl.gz": gzip.compress(text(ROWS[1000:])),
        "data/test-0.jsonl": text(ROWS[:10]),
        "meta.jsonl": text(ROWS[:5]),
    }


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running() as hub:
        yield hub


def environment(hub: Hub, home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": hub.endpoint,
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path.cwd()),
        "DRAFTDECK_PROGRESS": str(home / "progress.jsonl"),
    }


def ask(hub: Hub, home: Path, *sources: dict[str, Any]) -> list[dict[str, Any]]:
    """What became of each source, all read by one process."""
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input="\n".join(map(json.dumps, sources)),
        env=environment(hub, home),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(sources)
    return found


def start(hub: Hub, home: Path, source: str, target: Path, *more: str) -> subprocess.Popen[bytes]:
    argv = ["--dataset", "T1", "--kind", "prompts", "--source", source, "--target", str(target)]
    argv += ["--context-length", "2048", "--max-new-tokens", "64", "--out", str(home / "out"), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.prep", *argv], env=environment(hub, home), stderr=subprocess.DEVNULL
    )


def result(home: Path) -> Result:
    lines = [line for data in complete_lines(home / "progress.jsonl") if (line := parse_line(data)) is not None]
    assert lines[-1].result is not None
    return lines[-1].result


def test_configurations_splits_revisions_and_files(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["a/chat"] = Repository(files())
    train, test, meta, pinned, some, again = ask(
        hub,
        tmp_path,
        {"source": "a/chat"},
        {"source": "a/chat", "split": "test"},
        {"source": "a/chat", "config": "meta"},
        {"source": "a/chat", "revision": COMMIT, "split": "train", "files": ["data/*.gz"]},
        {"source": "a/chat", "files": ["*test*", "meta.*"]},
        {"source": "a/chat"},
    )
    assert (train["rows"], test["rows"], meta["rows"], pinned["rows"], some["rows"]) == (1500, 10, 5, 500, 15)
    assert train["identity"] == {
        "hub": "a/chat",
        "config": None,
        "split": "train",
        "commit": COMMIT,
        "files": ["data/train-0.jsonl", "data/train-1.jsonl.gz"],
    }
    assert train["total"] == 1500
    assert again["rows"] == 1500
    assert len(hub.downloads("train-0.jsonl")) == 1, "what is here is not brought again"


def test_each_refusal_is_one_line_that_says_what_to_do(hub: Hub, tmp_path: Path) -> None:
    hub.repositories |= {
        "a/chat": Repository(files()),
        "a/gated": Repository(files(), gated=401),
        "a/asked": Repository(files(), gated=403),
        "a/busy": Repository(files(), busy=-1),
        "a/script": Repository({"script.py": b"import datasets", "raw.jsonl": text(ROWS[:3])}),
        "a/table": Repository({"rows.csv": b"a,b\n1,2\n"}),
        "a/bare": Repository({"weights.bin": b"0"}),
    }
    cases: list[tuple[dict[str, Any], str, bool]] = [
        ({"source": "a/chat", "split": "dev"}, 'a/chat has no split "dev"; there are: train, test', True),
        ({"source": "a/chat", "config": "code"}, "Available: ['chat', 'meta']; choose with config", True),
        ({"source": "a/chat", "revision": "v9"}, "a/chat has no such revision", True),
        ({"source": "a/chat", "files": ["*.zip"]}, "no file like *.zip; there are: data/test-0.jsonl, ", True),
        ({"source": "a/gated"}, "gated or private: accept its terms on the hub and give HF_TOKEN", True),
        ({"source": "a/asked"}, "gated or private: accept its terms on the hub and give HF_TOKEN", True),
        ({"source": "a/asked", "files": ["meta.jsonl"]}, "gated or private: accept its terms", True),
        ({"source": "a/missing"}, "a/missing is not on the hub, nor a file or folder", True),
        ({"source": "a/script"}, "a/script is a dataset script, which is not run: name its data files", True),
        ({"source": "a/table"}, "rows.csv is not read here", True),
        ({"source": "a/bare"}, "no data files that are read here", True),
        ({"source": "a/busy"}, "the hub asks to slow down (429)", False),
    ]
    for (source, words, final), found in zip(cases, ask(hub, tmp_path, *(each[0] for each in cases)), strict=True):
        assert words in found.get("error", found), source
        assert found["final"] is final, found
        assert found["error"].isprintable()
    assert ask(hub, tmp_path, {"source": "a/script", "files": ["*.jsonl"]})[0]["rows"] == 3, "its files can be read"


def test_what_the_hub_answers_is_checked(hub: Hub, tmp_path: Path) -> None:
    hub.repositories |= {
        "a/backwards": Repository(files(), backwards=True),
        "a/forgets": Repository(files(), forgets="data/train-0.jsonl"),
        "a/commit": Repository(files(), commit="../../../outside"),
        "a/up": Repository({"../../up.jsonl": text(ROWS[:3])}),
        "a/root": Repository({"/root.jsonl": text(ROWS[:3])}),
    }
    sources = [{"source": name, "files": ["*train*", "*up.*", "*root.*"]} for name in hub.repositories]
    backwards, *refused = ask(hub, tmp_path, *sources)
    assert (backwards["rows"], backwards["first"]) == (1500, ROWS[0]), "in the order of the names"
    words = [
        "a/forgets: the hub lists a file that it does not have: data/train-0.jsonl",
        'a/commit: the hub gives no commit but "../../../outside"',
        'a/up: the hub lists "../../up.jsonl", a path out of',
        'a/root: the hub lists "/root.jsonl", a path out of',
    ]
    for each, word in zip(refused, words, strict=True):
        assert word in each.get("error", each) and each["final"]
    assert not list(tmp_path.rglob("outside")) and not list(tmp_path.rglob("up.jsonl"))


def test_a_busy_hub_and_a_torn_line_cost_time_alone(hub: Hub, tmp_path: Path) -> None:
    whole = files()["data/train-0.jsonl"]
    hub.repositories |= {
        "a/busy": Repository(files(), busy=2),
        "a/queue": Repository(files(), busy_files=2),
        "a/torn": Repository(files(), resets=[50_000, 90_000]),
        "a/spoiled": Repository(files(), spoiled=1),
    }
    found = dict(
        zip(
            hub.repositories,
            ask(hub, tmp_path, *({"source": name, "split": "train"} for name in hub.repositories)),
            strict=True,
        )
    )
    assert [each.get("rows") for each in found.values()] == [1500] * 4, found
    assert found["a/busy"]["notes"][0] == "a/busy: the hub gives 429, asked again in 0 s"
    assert "train-0.jsonl: the hub answers 429, tried again in 0 s" in found["a/queue"]["notes"]
    ranges = [each.range for each in hub.downloads("train-0.jsonl") if "/torn/" in each.path]
    assert ranges == ["", "bytes=50000-", "bytes=90000-"]
    assert len(whole) > 90_000
    assert [each.range for each in hub.downloads("train-0.jsonl") if "/spoiled/" in each.path] == ["", ""]


def test_a_download_outlives_the_process_that_is_killed(hub: Hub, tmp_path: Path, target: Path) -> None:
    repository = Repository(files(), hang_at=60_000)
    hub.repositories["a/chat"] = repository
    process = start(hub, tmp_path, "a/chat", target)
    wait_until(
        lambda: any(part.stat().st_size == 60_000 for part in (tmp_path / "hf").rglob("*.part")), "a part of it", 60
    )
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    repository.hang_at = None
    assert start(hub, tmp_path, "a/chat", target).wait(120) == 0
    assert result(tmp_path).datasets["T1"].read == 1500
    assert [each.range for each in hub.downloads("train-0.jsonl")] == ["", "bytes=60000-"]
    assert not list((tmp_path / "hf").rglob("*.part"))


def test_a_busy_hub_ends_the_job_so_that_it_is_tried_again(hub: Hub, tmp_path: Path, target: Path) -> None:
    hub.repositories["a/chat"] = Repository(files(), busy=-1)
    assert start(hub, tmp_path, "a/chat", target).wait(120) == 1, "3, of what no restart cures, is not tried again"
    assert result(tmp_path).records == 0
    assert result(tmp_path).message.startswith("T1: a/chat")


def test_a_hub_that_is_switched_off_or_away_is_one_line(hub: Hub, tmp_path: Path) -> None:
    base = environment(hub, tmp_path)
    for more, words in (
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "reached"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", READER],
            input='{"source": "some/dataset"}',
            env=base | more,
            capture_output=True,
            text=True,
            timeout=120,
        )
        error = json.loads(done.stdout)["error"]
        assert error.startswith("some/dataset") and error.isprintable() and words in error


@pytest.mark.parametrize(
    ("kind", "told", "words"),
    [
        ("DatasetNotFoundError", "Dataset 'x/y' is a gated dataset on the Hub.", "gated or private"),
        ("DatasetNotFoundError", "Dataset 'x/y' doesn't exist on the Hub or cannot be accessed.", "not on the hub"),
        ("RuntimeError", "Dataset scripts are no longer supported, but found y.py", "refs/convert/parquet"),
        ("ValueError", "Config name is missing.\nPlease pick one among ['all', 'code']", "choose with config"),
        ("HfHubHTTPError", "Invalid credentials in Authorization header", "store a valid one"),
        ("ReadTimeout", "timed out", "cannot be reached"),
        ("OddError", "what\x1b[2J is\nthis", "x/y: OddError: what [2J is this"),
    ],
)
def test_hub_errors_say_what_to_do(kind: str, told: str, words: str) -> None:
    error = type(kind, (Exception,), {})(told)
    assert words in reason(error, "x/y")
    assert "\n" not in reason(error, "x/y")
