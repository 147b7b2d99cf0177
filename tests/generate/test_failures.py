"""What a server can do wrong, done by a real one: what it costs, what it counts as, and what becomes of the prompt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.generate import stub
from tests.generate.run import SHORT, answers, command, finish, keys, reported, rows, set_aside, start, write_prompts
from tests.tiny import Process, server
from tests.waiting import free_port, wait_until


@pytest.fixture
def fresh_stub(tmp_path: Path) -> Iterator[Process]:
    with server("tests.generate.stub", tmp_path / "stub.log") as running:
        running.wait_healthy()
        yield running


def asked(running: Process) -> Counter[int]:
    """How often the stub was asked, by the kind of prompt."""
    seen = httpx.get(f"{running.url}/seen", trust_env=False).json()
    return Counter(body["ids"][0] for body in seen["bodies"])


def faulty(more: dict[str, Any]) -> tuple[str, str]:
    return "--faulty", json.dumps(more)


def test_every_misbehaviour_costs_an_attempt_and_nothing_else(fresh_stub: Process, tmp_path: Path) -> None:
    odd = [(f"odd{kind}-{number}", [kind, number]) for kind in (*stub.ODD, stub.TWICE) for number in range(3)]
    folder = write_prompts(tmp_path / "B1", "B1", [*rows(80), *odd])
    out, progress = tmp_path / "out", tmp_path / "progress"
    code, output = finish(command(fresh_stub.url, out, folder, more=("--timeout-floor", "2")), progress)
    assert code == 0, output
    found = answers(out)
    assert set(found) == keys(folder)
    assert set_aside(out) == []
    for row, ids in odd:
        (answer,) = [one for key, one in found.items() if key.startswith(f"B1/{row}/")]
        assert answer["output_ids"] == stub.answer_to(ids)
    lines, _ = reported(progress)
    figures = lines[-1].figures
    expected = Counter[str]()
    for kind, name in stub.ODD.items():
        expected[f"retries: {name}"] += 6 if kind == stub.ERROR_500 else 3
    # A connection that one answer has spoilt may cost the next prompt an attempt, and a crowded machine one in time.
    assert {name: min(figures.get(name, 0), count) for name, count in expected.items()} == dict(expected)
    assert figures["retries"] == sum(count for name, count in figures.items() if name.startswith("retries: "))
    assert f"retried {figures['retries']:,.0f} times: " in lines[-1].note


def test_a_bounded_body(fresh_stub: Process, tmp_path: Path) -> None:
    """An answer without end is given up at the bound, not when the memory is gone."""
    folder = write_prompts(tmp_path / "B1", "B1", [("endless", [stub.ENDLESS, 1]), ("huge", [stub.HUGE, 1])])
    out = tmp_path / "out"
    code, output = finish(command(fresh_stub.url, out, folder, more=("--retries", "0")), tmp_path / "progress")
    assert code == 1, output
    assert {one["reason"] for one in set_aside(out)} == {"answer too large: more than 278,528 bytes, 1 attempts"}


def test_a_busy_server_costs_no_retry_and_is_asked_when_it_says(fresh_stub: Process, tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", [("busy", [stub.BUSY_429, 1])])
    out = tmp_path / "out"
    code, output = finish(command(fresh_stub.url, out, folder, more=("--retries", "0")), tmp_path / "progress")
    assert code == 0, output
    seen = httpx.get(f"{fresh_stub.url}/seen", trust_env=False).json()["bodies"]
    assert seen[1]["at"] - seen[0]["at"] >= 1.0, "Retry-After: 1"


def test_refused_prompts_are_set_aside_with_the_reason(fresh_stub: Process, tmp_path: Path) -> None:
    bad = [(f"bad{number}", [stub.REFUSED_400, number]) for number in range(4)]
    folder = write_prompts(tmp_path / "B1", "B1", [*rows(40), *bad])
    out, progress = tmp_path / "out", tmp_path / "progress"
    code, output = finish(command(fresh_stub.url, out, folder), progress)
    assert code == 0, output
    assert len(answers(out)) == 40
    aside = {one["key"].split("/")[1]: one for one in set_aside(out)}
    assert {row: one["reason"] for row, one in aside.items()} == {
        f"bad{number}": f"HTTP 400: The input, {number} tokens, is too long" for number in range(4)
    }
    assert all(one["permanent"] for one in aside.values())
    # Counted without what differs from prompt to prompt, also when it is started again.
    for name in ("progress", "again"):
        assert finish(command(fresh_stub.url, out, folder), tmp_path / name)[0] == 0
        _, result = reported(tmp_path / name)
        assert result is not None
        assert result.datasets["B1"].dropped == {"HTTP 400: The input, … tokens, is too long": 4}
        assert "HTTP 400: The input, … tokens, is too long" in result.message
    assert asked(fresh_stub)[stub.REFUSED_400] == 4, "they are not asked again"


def test_an_answer_without_its_end_id_is_set_aside(fresh_stub: Process, tmp_path: Path) -> None:
    """Some servers leave the end id out of output_ids: a draft trained on that would never learn to stop."""
    folder = write_prompts(tmp_path / "B1", "B1", [*rows(10), ("endless", [stub.NO_END_ID, 5])])
    out = tmp_path / "out"
    code, output = finish(command(fresh_stub.url, out, folder), tmp_path / "progress")
    assert code == 0, output
    assert len(answers(out)) == 10
    (aside,) = set_aside(out)
    assert aside["reason"] == "the server ended the answer with id 2 and left it out of output_ids"


def test_too_many_refused_end_the_run_with_the_most_common_reason(fresh_stub: Process, tmp_path: Path) -> None:
    """Lately, not overall: of a run that went well for a day the same is true."""
    good = write_prompts(tmp_path / "B1", "B1", rows(300))
    bad = [*rows(200, kind=stub.REFUSED_400, start=300), *rows(20, kind=stub.NO_END_ID, start=600)]
    refused = write_prompts(tmp_path / "B2", "B2", bad)
    out = tmp_path / "out"
    assert finish(command(fresh_stub.url, out, good), tmp_path / "p1")[0] == 0
    code, output = finish(command(fresh_stub.url, out, good, refused), tmp_path / "p2")
    assert code == 4
    assert "prompts were set aside, more than 50%; most often, " in output
    assert output.splitlines()[-1].endswith("times: HTTP 400: The input, … tokens, is too long")
    assert asked(fresh_stub)[stub.REFUSED_400] < 60
    code, output = finish(
        command(fresh_stub.url, out, good, refused, more=("--max-set-aside-share", "1")), tmp_path / "p3"
    )
    assert code == 0, output
    assert Counter(one["key"] for one in set_aside(out)) == Counter(keys(refused)), "all of them, each once"


FAULTY = [
    ("empty", [stub.ALWAYS_EMPTY, 1]),
    ("aborted", [stub.ALWAYS_ABORTED, 1]),
    ("looping", [stub.LOOPING, 1]),
    ("cut", [stub.CUT_AT_BUDGET, 1]),
    ("thinking", [stub.THINKING, 1]),
]


def test_faulty_answers_are_kept_and_counted_or_asked_again_and_set_aside(fresh_stub: Process, tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", [*rows(10, kind=stub.THINKING), *FAULTY])
    out, progress = tmp_path / "out", tmp_path / "progress"
    argv = command(fresh_stub.url, out, folder, more=faulty({"thinking_end": stub.THOUGHT}))
    code, output = finish(argv, progress)
    assert code == 0, output
    kept = {key.split("/")[1]: one.get("faults", []) for key, one in answers(out).items()}
    assert kept == {str(number): [] for number in range(10)} | {
        "thinking": [],
        "cut": ["thinking not ended", "truncated"],
        "looping": ["thinking not ended", "truncated"],  # 63 tokens are no loop
    }
    aside = {one["key"].split("/")[1]: one["reason"] for one in set_aside(out)}
    assert aside == {"empty": "answer empty, 3 samples", "aborted": "answer aborted, 3 samples"}
    count = asked(fresh_stub)
    assert (count[stub.ALWAYS_EMPTY], count[stub.ALWAYS_ABORTED], count[stub.CUT_AT_BUDGET]) == (3, 3, 1)
    _, result = reported(progress)
    assert result is not None
    assert result.datasets["B1"].faulty == {"truncated": 2, "thinking not ended": 2}
    assert result.datasets["B1"].dropped == {"answer empty": 1, "answer aborted": 1}
    assert "2 cut at their budget, 2 thinking not ended" in result.message
    # Started again it knows as much, and asks nobody.
    assert finish(argv, tmp_path / "again")[0] == 0
    _, again = reported(tmp_path / "again")
    assert again is not None and again.datasets == result.datasets
    assert asked(fresh_stub) == count
    assert json.loads((out / "manifest.json").read_text())["datasets"]["B1"]["faulty"]["truncated"] == 2


def test_faulty_answers_by_config(fresh_stub: Process, tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", FAULTY)
    out = tmp_path / "out"
    policy = {"retry": ["truncated"], "set_aside": ["empty"], "retries": 1}
    argv = command(fresh_stub.url, out, folder, more=faulty(policy))
    assert finish(argv, tmp_path / "progress")[0] == 0
    assert {one["key"].split("/")[1]: one["reason"] for one in set_aside(out)} == {
        "empty": "answer empty",
        "cut": "answer truncated, 2 samples",
        "looping": "answer truncated, 2 samples",
    }
    found = {key.split("/")[1]: one for key, one in answers(out).items()}
    assert set(found) == {"aborted", "thinking"}
    assert (found["aborted"]["finish"], found["aborted"]["faults"]) == ("abort", ["aborted"])


def test_a_sample_that_cannot_differ_is_not_drawn_again(fresh_stub: Process, tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "B1", "B1", FAULTY[:2])
    greedy = SHORT.replace("0.7", "0")
    argv = command(fresh_stub.url, tmp_path / "out", folder, partitions=(greedy,))
    finish(argv, tmp_path / "progress")
    count = asked(fresh_stub)
    assert (count[stub.ALWAYS_EMPTY], count[stub.ALWAYS_ABORTED]) == (1, 3), "the server's doing may differ"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--faulty", '{"retry": ["emty"]}'), "is one of truncated, aborted, empty, repetitive, thinking not ended"),
        (("--faulty", '{"retries": -1}'), "retries must be 0 or more"),
        (("--faulty", '{"retry": ["empty"], "set_aside": ["empty"]}'), "empty is in retry and in set_aside"),
        (("--suspect-after", "0"), "expected 1 or more"),
        (("--max-set-aside-share", "1.5"), "expected 0 to 1"),
    ],
)
def test_bad_settings(tmp_path: Path, more: tuple[str, ...], says: str) -> None:
    code, output = finish(command("http://127.0.0.1:1", tmp_path / "out", tmp_path, more=more), tmp_path / "progress")
    assert code == 2
    assert says in output


def test_poison_prompts_are_found_and_the_others_are_answered(tmp_path: Path) -> None:
    """Two prompts under which the server dies, among others in flight with them; somebody starts it again each time."""
    poison = [(f"poison{number}", [stub.POISON, number]) for number in range(2)]
    folder = write_prompts(tmp_path / "B1", "B1", [*rows(12), *poison])
    out, progress, port = tmp_path / "out", tmp_path / "progress", free_port()
    argv = command(f"http://127.0.0.1:{port}", out, folder, more=("--suspect-after", "2", "--retries", "0"))
    starts = 0
    with start(argv, progress) as process:
        while process.poll() is None:
            starts += 1
            assert starts < 10, reported(progress)[0][-1].note
            with server("tests.generate.stub", tmp_path / "log", "--latency", "0.3", port=port) as running:
                wait_until(
                    lambda running=running: running.process.poll() is not None or process.poll() is not None,  # type: ignore[misc]
                    "the server dies, or the run ends",
                    timeout_s=60,
                )
        output = process.communicate()[0]
    assert process.returncode == 0, output
    assert set(answers(out)) == {key for key in keys(folder) if "poison" not in key}
    aside = {one["key"].split("/")[1]: one for one in set_aside(out)}
    assert set(aside) == {"poison0", "poison1"}
    for one in aside.values():
        assert one["permanent"]
        assert one["reason"] == "the server went down 3 times while it was answering this"
    lines, result = reported(progress)
    assert any("prompts under which the server went down are asked one by one, now B1/" in line.note for line in lines)
    assert result is not None
    assert result.datasets["B1"].dropped == {"the server went down while it was answering this": 2}
