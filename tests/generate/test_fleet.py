"""generate with several real servers: shared by load, lost, returned, of another model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import httpx

from pipeline.generate.engine import max_running
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
    start,
    write_prompts,
)
from tests.tiny import Process, server
from tests.waiting import free_port, wait_until


@contextlib.contextmanager
def two(tmp_path: Path, *more: str) -> Iterator[list[Process]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(server("tests.generate.stub", tmp_path / f"stub{place}.log", *more)) for place in (1, 2)
        ]


def seen(running: Process) -> dict[str, object]:
    body: dict[str, object] = httpx.get(f"{running.url}/seen", trust_env=False).json()
    return body


def asked(running: Process) -> int:
    bodies = seen(running)["bodies"]
    assert isinstance(bodies, list)
    return len(bodies)


def name(running: Process) -> str:
    return running.url.removeprefix("http://")


def test_a_second_server_has_slots_of_its_own(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", rows(400))
    with two(tmp_path, "--latency", "0.1") as both:
        for one in both:
            one.wait_healthy()
        argv = command(both[0].url, tmp_path / "out", folder, more=("--server", both[1].url))
        code, output = finish(argv, tmp_path / "progress")
        assert code == 0, output
        assert [seen(one)["most"] for one in both] == [16, 16]
        counts = [asked(one) for one in both]
        assert sum(counts) == 400 and min(counts) > 150, "the least loaded one is asked"
        last = reported(tmp_path / "progress")[0][-1].figures
        assert (last["servers"], last["servers_there"]) == (2, 2)
        assert all(last[f"tok_s: {name(one)}"] > 0 for one in both)
        assert all(last[f"losses: {name(one)}"] == 0 for one in both)
    assert set(answers(tmp_path / "out")) == keys(folder)


def test_a_lost_servers_prompts_go_to_the_other_and_it_is_used_again(tmp_path: Path) -> None:
    """With no retries at all, and one server killed twice: nothing is lost, nothing pauses."""
    folder = write_prompts(tmp_path / "B1", "B1", rows(700))
    out, progress, port = tmp_path / "out", tmp_path / "progress", free_port()
    with server("tests.generate.stub", tmp_path / "stays.log", "--latency", "0.2") as stays:
        stays.wait_healthy()
        more = ("--server", f"http://127.0.0.1:{port}", "--retries", "0")
        with start(command(stays.url, out, folder, more=more), progress) as process:
            for losses in (1, 2):
                with server("tests.generate.stub", tmp_path / "goes.log", "--latency", "0.2", port=port) as goes:
                    goes.wait_healthy()
                    wait_until(lambda goes=goes: asked(goes) > 30, "it is asked too", timeout_s=60)  # type: ignore[misc]
                    goes.process.kill()
                    goes.process.wait()
                    before = count_lines(out)
                    wait_until(
                        lambda losses=losses: (
                            reported(progress)[0][-1].figures.get(f"losses: 127.0.0.1:{port}") == losses
                        ),  # type: ignore[misc]
                        "the loss is counted",
                        timeout_s=60,
                    )
                    wait_until(lambda before=before: count_lines(out) > before + 40, "the other goes on", 60)  # type: ignore[misc]
            output = process.communicate(timeout=60)[0]
        assert process.returncode == 0, output
        assert seen(stays)["most"] == 16, "it is given no more than its slots"
    assert set(answers(out)) == keys(folder)
    assert not (out / "errors.jsonl").exists()
    lines, _ = reported(progress)
    assert any(f"127.0.0.1:{port} gone for" in line.note and "the others go on" in line.note for line in lines)
    assert not any("waits for it" in line.note for line in lines if line.done)


def test_a_server_of_another_model_is_left_out(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", rows(100))
    with (
        server("tests.generate.stub", tmp_path / "right.log", "--latency", "0.1", "--model-path", "planned") as right,
        server("tests.generate.stub", tmp_path / "wrong.log", "--model-path", "another") as wrong,
    ):
        right.wait_healthy()
        wrong.wait_healthy()
        more = ("--server", right.url, "--model-path", "planned")
        code, output = finish(command(wrong.url, tmp_path / "out", folder, more=more), tmp_path / "progress")
        assert code == 0, output
        assert (asked(wrong), asked(right)) == (0, 100)
        note = f"{name(wrong)} is left out: serves another"
        assert any(note in line.note for line in reported(tmp_path / "progress")[0])
        refused = ("--server", right.url, "--model-path", "third")
        code, output = finish(command(wrong.url, tmp_path / "none", folder, more=refused), tmp_path / "again")
        assert code == 4
        assert f"{wrong.url} serves another, {right.url} serves planned, --model-path is third" in output


def test_the_same_server_twice_is_refused(tmp_path: Path) -> None:
    argv = command("http://127.0.0.1:1", tmp_path / "out", tmp_path, more=("--server", "http://127.0.0.1:1/"))
    code, output = finish(argv, tmp_path / "progress")
    assert code == 2
    assert "--server http://127.0.0.1:1 is given twice" in output


def test_a_server_is_given_no_more_than_it_runs_at_once(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", rows(60))
    with server("tests.generate.stub", tmp_path / "log", "--latency", "0.05", "--max-running", "5") as running:
        running.wait_healthy()
        code, output = finish(command(running.url, tmp_path / "out", folder), tmp_path / "progress")
        assert code == 0, output
        assert seen(running)["most"] == 5
    assert set(answers(tmp_path / "out")) == keys(folder)


def test_what_a_real_server_says_it_runs_at_once() -> None:
    info = json.loads((Path(__file__).parent.parent / "serve/sglang/server_info.json").read_text())
    assert max_running(info) == 4096
    assert max_running({"max_running_requests": 64}) == 64
    assert max_running({"max_running_requests": None}) is None


def test_the_last_answers_of_a_partition_hold_nothing_with_overlap(tmp_path: Path) -> None:
    """One answer hangs: with overlap all others are there while it does, without it the next partition waits."""
    from tests.generate import stub

    folders = [
        write_prompts(tmp_path / "B1", "B1", [*rows(40), ("slow", [stub.HANG, 1])]),
        write_prompts(tmp_path / "B8", "B8", rows(30, start=200), partition="long"),
    ]
    for overlap in (True, False):
        out, progress = tmp_path / f"out{overlap}", tmp_path / f"progress{overlap}"
        with server("tests.generate.stub", tmp_path / "log") as running:
            running.wait_healthy()
            more = ("--pilot", "0", *(["--overlap"] if overlap else []))
            argv = command(running.url, out, *folders, partitions=(SHORT, LONG), more=more)
            with start(argv, progress) as process:
                said = "tail: 1 answers of B1 " + ("hold the run" if overlap else "before long goes on")
                wait_until(
                    lambda progress=progress, said=said: (
                        progress.exists()  # type: ignore[misc]
                        and any(said in line.note for line in reported(progress)[0])
                    ),
                    "the tail is told",
                    timeout_s=60,
                )
                count = 70 if overlap else 40
                wait_until(lambda out=out, count=count: count_lines(out) >= count, "written", timeout_s=60)  # type: ignore[misc]
                assert seen(running)["most"] in range(1, 18)
                process.kill()
        assert len(answers(out)) == count
