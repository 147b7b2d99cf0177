"""generate as a real process against a real HTTP server that misbehaves."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.generate import stub
from tests.generate.run import (
    LONG,
    SHORT,
    answers,
    command,
    count_lines,
    finish,
    keys,
    reported,
    rows,
    seen_datasets,
    set_aside,
    start,
    write_prompts,
)
from tests.tiny import Process, server
from tests.waiting import free_port, wait_until


@pytest.fixture
def fresh_stub(tmp_path: Path) -> Iterator[Process]:
    with server("tests.generate.stub", tmp_path / "stub.log") as running:
        running.wait_healthy()
        yield running


def test_a_whole_run(fresh_stub: Process, tmp_path: Path) -> None:
    folders = [
        write_prompts(tmp_path / "B1", "B1", rows(60)),
        write_prompts(tmp_path / "B2", "B2", rows(25, start=100)),
        write_prompts(tmp_path / "B8", "B8", rows(12, start=200), partition="long"),
    ]
    out, progress = tmp_path / "out", tmp_path / "progress"
    more = ("--pilot", "5", "--model-path", "stub")
    argv = command(fresh_stub.url, out, *folders, partitions=(SHORT, LONG), more=more)
    code, output = finish(argv, progress)
    assert code == 0, output

    found = answers(out)
    assert set(found) == keys(*folders)
    for record in (json.loads(line) for line in (folders[0] / "records.jsonl").read_text().splitlines()):
        answer = found[f"B1/{record['row']}/{record['hash']}"]
        assert answer["output_ids"] == stub.answer_to(record["prompt_ids"])
        assert answer["finish"] == "stop"
        assert answer["prompt_tokens"] == 3
        assert answer["completion_tokens"] == len(answer["output_ids"])
        assert answer["latency_s"] > 0
        assert answer["sampling"] == {
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 40,
            "max_new_tokens": 64,
            "stop_token_ids": [2],
        }

    seen = httpx.get(f"{fresh_stub.url}/seen", trust_env=False).json()
    assert seen["most"] <= 16
    assert len(seen["bodies"]) == 97
    assert seen_datasets(seen["bodies"][:10]) == {"B1": 5, "B2": 5}, "the pilot of the short ones goes first"
    assert seen_datasets(seen["bodies"][10:15]) == {"B8": 5}
    assert {json.dumps(body["sampling"]) for body in seen["bodies"] if body["rid"].startswith("B8/")} == {
        json.dumps({"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 256, "stop_token_ids": [2]})
    }

    lines, result = reported(progress)
    assert result is not None
    assert result.records == 97
    assert result.message.startswith("97 of 97 prompts answered")
    assert result.datasets["B1"].kept == result.datasets["B1"].read == result.datasets["B1"].total == 60
    assert lines[-1].done == lines[-1].total == 97
    assert {"tok_s", "tok_s_mean", "req_s", "mean_tokens", "in_flight", "errors", "retries"} <= set(lines[-1].figures)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["datasets"]["B1"]["finish"] == {"stop": 60}
    assert set(manifest["files"]) == {"B1.jsonl", "B2.jsonl", "B8.jsonl"}
    assert len(manifest["inputs"]) == 3

    # Nothing is left to do: nothing is asked, and nothing changes.
    assert finish(argv, tmp_path / "again")[0] == 0
    assert len(httpx.get(f"{fresh_stub.url}/seen", trust_env=False).json()["bodies"]) == 97
    assert answers(out) == found


def test_partitions_side_by_side(fresh_stub: Process, tmp_path: Path) -> None:
    folders = [
        write_prompts(tmp_path / "B1", "B1", rows(150)),
        write_prompts(tmp_path / "B8", "B8", rows(40, start=200), partition="long"),
    ]
    argv = command(
        fresh_stub.url, tmp_path / "out", *folders, partitions=(SHORT, LONG), more=("--side-by-side", "--pilot", "0")
    )
    code, output = finish(argv, tmp_path / "progress")
    assert code == 0, output
    seen = httpx.get(f"{fresh_stub.url}/seen", trust_env=False).json()
    assert set(seen_datasets(seen["bodies"][:40])) == {"B1", "B8"}
    assert 16 < seen["most"] <= 20
    assert set(answers(tmp_path / "out")) == keys(*folders)


def test_retries_that_run_out_are_named_and_tried_again(fresh_stub: Process, tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", [*rows(10), ("never", [stub.ALWAYS_500, 1])])
    out = tmp_path / "out"
    argv = command(fresh_stub.url, out, folder, more=("--retries", "1"))
    code, output = finish(argv, tmp_path / "progress")
    assert code == 1
    assert "generate: error: 1 prompts without an answer (B1/never/" in output.splitlines()[-1]
    assert not (out / "manifest.json").exists(), "something is missing"
    (aside,) = set_aside(out)
    assert (aside["reason"], aside["permanent"]) == ("HTTP 500, 2 attempts", False)
    assert finish(argv, tmp_path / "again")[0] == 1
    assert len(set_aside(out)) == 2
    assert len(answers(out)) == 10


def test_sigkill_at_random_moments_answers_each_exactly_once(tmp_path: Path) -> None:
    draw = random.Random(20)
    folders = [write_prompts(tmp_path / name, name, rows(250, start=250 * at)) for at, name in enumerate(("B1", "B2"))]
    out, progress = tmp_path / "out", tmp_path / "progress"
    with server("tests.generate.stub", tmp_path / "stub.log", "--latency", "0.06") as running:
        running.wait_healthy()
        argv = command(running.url, out, *folders, more=("--pilot", "20"))
        for kill in range(6):
            before = count_lines(out)
            # The first kill may come before anything was written, the others somewhere in the run.
            wanted = before + draw.randrange(0 if kill == 0 else 1, 60)
            with start(argv, progress) as process:
                wait_until(lambda wanted=wanted: count_lines(out) >= wanted, "answers", timeout_s=60)  # type: ignore[misc]
                process.send_signal(signal.SIGKILL)
                assert process.wait() == -signal.SIGKILL
            with (out / "B1.jsonl").open("ab") as file:
                file.write(b'{"key": "B1/torn')
        code, output = finish(argv, progress)
        assert code == 0, output
    assert set(answers(out)) == keys(*folders)
    assert set_aside(out) == []


def test_sigterm_keeps_what_was_answered(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", rows(300))
    out, progress = tmp_path / "out", tmp_path / "progress"
    with server("tests.generate.stub", tmp_path / "stub.log", "--latency", "0.1") as running:
        running.wait_healthy()
        argv = command(running.url, out, folder)
        with start(argv, progress) as process:
            wait_until(lambda: count_lines(out) > 20, "answers", timeout_s=60)
            process.send_signal(signal.SIGTERM)
            output = process.communicate(timeout=20)[0]
        assert process.returncode == 143
        assert "start again to go on" in output
        kept = answers(out)
        assert 20 < len(kept) < 300
        assert not (out / "manifest.json").exists()
        lines, result = reported(progress)
        assert result is None
        assert lines[-1].done == len(kept)
        assert finish(argv, tmp_path / "resumed")[0] == 0
        first, second = reported(tmp_path / "resumed")[0][:2]
        assert first.phase == "reading prompts"
        assert (second.phase, second.done, second.total) == ("resuming", len(kept), 300), "before anything is asked"
    assert set(answers(out)) == keys(folder)


def test_two_runners_on_one_output(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", rows(200))
    out = tmp_path / "out"
    with server("tests.generate.stub", tmp_path / "stub.log", "--latency", "0.5") as running:
        running.wait_healthy()
        argv = command(running.url, out, folder)
        with start(argv, tmp_path / "progress") as first:
            wait_until(lambda: (out / "settings.json").exists(), "the first has begun", timeout_s=60)
            code, output = finish(argv, tmp_path / "second")
            assert code == 4
            assert f"another run (pid {first.pid})" in output
            first.kill()
        # A killed holder leaves no lock behind.
        with start(argv, tmp_path / "third") as third:
            wait_until(lambda: count_lines(out) > 0, "the third writes", timeout_s=60)
            third.kill()


def test_a_server_that_goes_away_pauses_the_run(tmp_path: Path) -> None:
    """With no retries at all: what the server's absence costs is time."""
    folder = write_prompts(tmp_path / "B1", "B1", rows(200))
    out, progress, port = tmp_path / "out", tmp_path / "progress", free_port()
    argv = command(f"http://127.0.0.1:{port}", out, folder, more=("--retries", "0"))

    def noted(text: str) -> bool:
        return progress.exists() and any(text in line.note for line in reported(progress)[0])

    with start(argv, progress) as process:
        wait_until(lambda: noted("server not there yet"), "it says that it waits", timeout_s=60)
        for _ in range(2):
            with server("tests.generate.stub", tmp_path / "log", "--latency", "0.1", port=port):
                before = count_lines(out)
                wait_until(lambda before=before: count_lines(out) > before + 20, "answers", timeout_s=60)  # type: ignore[misc]
            wait_until(lambda: noted("server gone for"), "it says that the server is gone", timeout_s=60)
        with server("tests.generate.stub", tmp_path / "log", port=port):
            output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert set(answers(out)) == keys(folder)
    assert set_aside(out) == []
    lines, _ = reported(progress)
    assert any("server lost 2×" in line.note for line in lines)
    assert any("prompts to be asked again: B1/" in line.note for line in lines), "it says which"


def test_a_server_that_dies_under_its_first_requests_is_no_progress(tmp_path: Path) -> None:
    """Whoever looks for a stall must see one, and the ids that every crash had in flight."""
    folder = write_prompts(tmp_path / "B1", "B1", rows(3))
    out, progress, port = tmp_path / "out", tmp_path / "progress", free_port()
    with start(command(f"http://127.0.0.1:{port}", out, folder), progress) as process:
        for losses in (1, 2):
            with server("tests.generate.stub", tmp_path / "log", "--latency", "600", port=port) as running:
                running.wait_healthy()
                wait_until(
                    lambda: len(httpx.get(f"{running.url}/seen", trust_env=False).json()["bodies"]) == 3,
                    "all are asked",
                    timeout_s=60,
                )
            wait_until(lambda: f"server lost {losses}×" in reported(progress)[0][-1].note, "it is seen", 60)  # noqa: B023
        lines, _ = reported(progress)
        process.kill()
    assert "3 prompts to be asked again: B1/" in lines[-1].note
    assert all(key in lines[-1].note for key in keys(folder))
    assert "(connection cut: " in lines[-1].note
    assert all(count.read == 0 and count.total == 3 for line in lines for count in line.datasets.values())


def test_the_ids_it_waits_for_are_named(fresh_stub: Process, tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", [*rows(10), ("slow", [stub.HANG, 1])])
    progress = tmp_path / "progress"
    with start(command(fresh_stub.url, tmp_path / "out", folder), progress) as process:
        wait_until(
            lambda: progress.exists() and any("waits for B1/slow/" in line.note for line in reported(progress)[0]),
            "the id is named",
            timeout_s=60,
        )
        process.kill()


def test_another_model_is_refused(fresh_stub: Process, tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", rows(3))
    argv = command(fresh_stub.url, tmp_path / "out", folder, more=("--model-path", "/models/planned"))
    code, output = finish(argv, tmp_path / "progress")
    assert code == 4
    last = output.splitlines()[-1]
    assert last.startswith("generate: error: ") and last.endswith("serves stub, --model-path is /models/planned")


def test_no_prompts_is_empty(fresh_stub: Process, tmp_path: Path) -> None:
    code, _ = finish(command(fresh_stub.url, tmp_path / "out", tmp_path / "B1"), tmp_path / "progress")
    assert code == 3
    _, result = reported(tmp_path / "progress")
    assert result is not None
    assert (result.records, result.message) == (0, f"no prompts in {tmp_path / 'B1'}: has prep run?")


def test_changed_inputs_and_sampling_are_named_and_asked_again(fresh_stub: Process, tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", rows(20))
    out = tmp_path / "out"
    assert finish(command(fresh_stub.url, out, folder), tmp_path / "p1")[0] == 0
    first = answers(out)
    # One row has other content under the same id, one is gone, one is new.
    changed = [("0", [stub.NORMAL, 777, 5]), *rows(18, start=1), ("new", [stub.NORMAL, 9])]
    write_prompts(folder, "B1", changed)
    code, output = finish(command(fresh_stub.url, out, folder), tmp_path / "p2")
    assert code == 0, output
    notes = " ".join(line.note for line in reported(tmp_path / "p2")[0])
    assert "1 answers put away: row has changed since (B1/0/" in notes
    found = answers(out)
    assert keys(folder) <= set(found)
    assert len(found) == 21, "the answer to the row that is gone is kept"
    assert len((out / "B1.jsonl.stale").read_text().splitlines()) == 1
    assert sum(found[key] == first.get(key) for key in found) == 19

    warmer = SHORT.replace("0.7", "0.8")
    assert finish(command(fresh_stub.url, out, folder, partitions=(warmer,)), tmp_path / "p3")[0] == 0
    notes = " ".join(line.note for line in reported(tmp_path / "p3")[0])
    assert "20 answers put away: sampling has changed since" in notes
    assert all(answers(out)[key]["sampling"]["temperature"] == 0.8 for key in keys(folder))

    argv = command(fresh_stub.url, out, folder, more=("--model-path", "stub"))
    assert finish(argv, tmp_path / "p4")[0] == 0
    assert any("answers of another model moved to out.stale-" in line.note for line in reported(tmp_path / "p4")[0])
    assert len(list(tmp_path.glob("out.stale-*"))) == 1
    assert set(answers(out)) == keys(folder)


@pytest.mark.parametrize(
    ("partition", "says"),
    [
        ("{", "Expected a JSON object with name, concurrency"),
        ('{"name": "a", "concurrency": 0, "max_new_tokens": 5}', "concurrency must be 1 or more"),
        ('{"name": "a", "concurrency": 1, "max_new_tokens": 5, "temprature": 1}', "temprature"),
        ('{"name": "a", "concurrency": 1, "max_new_tokens": 5, "top_p": 1.5}', "top_p must be above 0"),
    ],
)
def test_bad_partitions(tmp_path: Path, partition: str, says: str) -> None:
    argv = command("http://127.0.0.1:1", tmp_path / "out", tmp_path, partitions=(partition,))
    code, output = finish(argv, tmp_path / "progress")
    assert code == 2
    assert says in output


def test_unknown_partition_and_broken_prompts_are_named(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", rows(2), partition="long")
    argv = command("http://127.0.0.1:1", tmp_path / "out", folder)
    code, output = finish(argv, tmp_path / "progress")
    assert code == 4
    assert "records.jsonl:1: partition 'long' is not one of those given: short" in output
    (folder / "records.jsonl").write_text('{"dataset": "B1"}\n')
    code, output = finish(argv, tmp_path / "progress")
    assert code == 4
    assert "records.jsonl:1 is not a prompt" in output
