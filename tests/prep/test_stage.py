"""A prep from its rows to its output: what is kept, what is counted, what fails."""

from __future__ import annotations

import functools
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline import outputs, tokens
from pipeline.files import file_hash
from pipeline.prep import __main__ as command
from pipeline.prep import masks
from pipeline.progress import Reporter
from tests.prep import kimi
from tests.prep.small import CALLING, CHATML, make_tokenizer, run_prep, write_lines
from tests.waiting import wait_until


def chat(number: int, user: str = "user", assistant: str = "assistant") -> dict[str, Any]:
    return {
        "messages": [
            {"role": user, "content": f"What is {number} plus 1?"},
            {"role": assistant, "content": f"It is {number + 1}."},
        ]
    }


def balanced(outcome: Any) -> bool:
    counts = [progress.datasets["T1"] for progress in outcome.progress if progress.datasets]
    if outcome.result.datasets:
        counts.append(outcome.result.datasets["T1"])
    assert counts
    return all(count.read == count.kept + sum(count.dropped.values()) for count in counts)


def test_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path) -> None:
    rows = [*(chat(number) for number in range(200)), chat(3), {"messages": []}, {"messages": [{"role": "x"}]}]
    outcome = run_prep(monkeypatch, tmp_path, write_lines(tmp_path / "in.jsonl", rows), target, partition="long")
    assert outcome.code == 0
    count = outcome.result.datasets["T1"]
    assert (count.read, count.kept) == (203, 200)
    assert count.dropped == {'a turn without "role" and "content"': 1, "duplicate": 1, "no turns": 1}
    assert balanced(outcome)
    assert outcome.result.records == 200
    assert outcome.result.message.startswith("200 of 203 kept")
    assert outcome.manifest is not None
    assert outcome.manifest["examples"]["duplicate"][0]["position"] == 200
    assert outcome.manifest["files"]["records.jsonl"]["sha256"] == file_hash(tmp_path / "out" / "records.jsonl")
    tokenizer = tokens.load(str(target))
    record = outcome.records[3]
    assert list(record) == [
        "dataset", "row", "hash", "group", "heldout", "partition", "max_new_tokens", "prompt_ids", "messages",
    ]  # fmt: skip
    assert (record["dataset"], record["row"], record["partition"], record["max_new_tokens"]) == ("T1", "3", "long", 64)
    assert record["messages"] == [{"role": "user", "content": "What is 3 plus 1?"}]
    assert tokenizer.decode(record["prompt_ids"]) == (
        "<|im_start|>user\nWhat is 3 plus 1?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert count.tokens == sum(len(record["prompt_ids"]) for record in outcome.records)


def test_samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [chat(number) for number in range(70)])
    outcome = run_prep(monkeypatch, tmp_path, source, target, kind="answers", heldout_share=0.2)
    assert outcome.code == 0 and len(outcome.records) == 70
    tokenizer = tokens.load(str(target))
    for number, record in enumerate(outcome.records):
        written = [token for token, loss in zip(record["input_ids"], record["loss_mask"], strict=True) if loss]
        assert tokenizer.decode(written) == f"It is {number + 1}.<|im_end|>"
    assert outcome.manifest is not None
    assert 0 < outcome.manifest["heldout"] == sum(record["heldout"] for record in outcome.records) < 40


def test_prompts_without_room_for_the_answer_are_counted_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path
) -> None:
    rows = [chat(1), {"messages": [{"role": "user", "content": "long " * 500}]}, chat(2)]
    source = write_lines(tmp_path / "in.jsonl", rows)
    outcome = run_prep(monkeypatch, tmp_path, source, target, context_length=200, max_new_tokens=100)
    assert outcome.result.datasets["T1"].dropped == {"too long": 1}
    assert all(len(record["prompt_ids"]) <= 100 for record in outcome.records)


@pytest.mark.parametrize(
    ("over_context", "kept", "dropped"), [("drop", 1, {"too long": 2}), ("cut", 2, {"too long": 1})]
)
def test_samples_over_the_context(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path, over_context: str, kept: int, dropped: dict[str, int]
) -> None:
    long: dict[str, Any] = {"messages": [turn for number in range(40) for turn in chat(number)["messages"]]}
    huge = {"messages": [{"role": "user", "content": "long " * 500}, {"role": "assistant", "content": "no"}]}
    source = write_lines(tmp_path / "in.jsonl", [chat(1), long, huge])
    outcome = run_prep(
        monkeypatch, tmp_path, source, target, kind="answers", context_length=300, over_context=over_context
    )
    assert outcome.code == 0 and len(outcome.records) == kept
    assert outcome.result.datasets["T1"].dropped == dropped
    assert outcome.manifest is not None and outcome.manifest["cut_at_a_turn"] == kept - 1
    if over_context == "drop":
        return
    assert "1 of them cut at a turn" in outcome.result.message
    text = tokens.load(str(target)).decode(ids := outcome.records[1]["input_ids"])
    assert 250 < len(ids) <= 300, "no more is cut than has to be"
    assert text.startswith("<|im_start|>user\nWhat is 0 plus 1?") and text.endswith(".<|im_end|>\n")
    assert outcome.records[1]["loss_mask"][-5:].count(1) > 2


def test_masks_that_are_wrong_as_a_rule_refuse_the_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A template that changes what it is given: most answers are not shown as they were written.
    target = make_tokenizer(
        tmp_path / "target", CHATML.replace("message['content']", "message['content'] | replace('1', 'I')")
    )
    source = write_lines(tmp_path / "in.jsonl", [chat(number) for number in [1, 2, *range(9, 19)]])
    outcome = run_prep(monkeypatch, tmp_path, source, target, kind="answers")
    assert (outcome.code, outcome.result.records, outcome.manifest) == (3, 0, None)
    assert outcome.result.message == (
        "the loss mask is wrong for 10 of 12 samples, more than half: "
        "no loss: the chat template shows no assistant turn as it was written took 10"
    )


def test_tools_are_in_the_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path) -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    talk = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "assistant", "content": "It is 2."},
    ]
    tool = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    source = write_lines(tmp_path / "in.jsonl", [{"messages": talk, "tools": json.dumps([tool])}])
    calling = make_tokenizer(tmp_path / "calling", CALLING)
    outcome = run_prep(monkeypatch, tmp_path, source, calling)
    (record,) = outcome.records
    assert record["tools"] == [{"type": "function", "function": tool}]
    assert record["messages"][1]["tool_calls"] == [called]
    text = tokens.load(str(calling)).decode(record["prompt_ids"])
    assert text.startswith("<|im_start|>system\n[") and '<call>{"name": "add", "arguments": {"a": 1}}</call>' in text
    assert text.endswith("<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n")
    outcome = run_prep(monkeypatch, tmp_path, source, target)
    assert (outcome.code, outcome.result.datasets["T1"].dropped) == (3, {"the chat template shows no tools": 1})


def test_a_row_that_no_tokenizer_can_take_is_dropped_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
    broken = chat(1)
    broken["messages"][-1]["tool_calls"] = [call]
    source = write_lines(tmp_path / "in.jsonl", [chat(0), broken, chat(2)])
    target = make_tokenizer(tmp_path / "calling", CALLING)
    outcome = run_prep(monkeypatch, tmp_path, source, target, kind="answers")
    assert len(outcome.records) == 2
    assert outcome.result.datasets["T1"].dropped == {"undecodable: a lone surrogate in the text": 1}


def test_a_row_that_breaks_the_mask_is_dropped_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path
) -> None:
    rendered = masks.rendered

    def breaking(messages: Any, *rest: Any) -> Any:
        if "It is 18." in messages[-1].content:
            raise ZeroDivisionError
        return rendered(messages, *rest)

    monkeypatch.setattr(masks, "rendered", breaking)
    source = write_lines(tmp_path / "in.jsonl", [chat(16), chat(17), chat(18)])
    outcome = run_prep(monkeypatch, tmp_path, source, target, kind="answers")
    assert len(outcome.records) == 2
    assert outcome.result.datasets["T1"].dropped == {"undecodable: ZeroDivisionError": 1}


def test_zero_records_name_the_roles_seen_and_expected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write_lines(tmp_path / "in.jsonl", [chat(number, "asker", "replier") for number in range(240)])
    outcome = run_prep(monkeypatch, tmp_path, source, target)
    assert outcome.code == 3
    assert outcome.result.records == 0
    assert outcome.result.message.startswith(
        '0 of 240 kept: no user turn; roles seen: "asker" 240, "replier" 240; expected one of user, human, prompter'
    )
    assert outcome.result.message.endswith('; unknown role "asker" took 240')
    assert outcome.result.datasets["T1"].dropped == {'unknown role "asker"': 240}
    assert outcome.manifest is None and not outcome.records and not list((tmp_path / "out").iterdir())
    assert "What is 0 plus 1?" in capfd.readouterr().err, "the log shows rows"


def test_columns_nobody_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"asker": "q", "replier": "a"}] * 5)
    outcome = run_prep(monkeypatch, tmp_path, source, target)
    assert (outcome.code, outcome.result.records) == (3, 0)
    assert "asker: text, replier: text" in outcome.result.message


def test_a_column_that_is_null_for_a_thousand_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path
) -> None:
    rows = [
        *({"id": str(number), "messages": None} for number in range(1000)),
        *(chat(number) for number in range(400)),
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    outcome = run_prep(monkeypatch, tmp_path, source, target)
    assert outcome.code == 0 and len(outcome.records) == 400
    assert outcome.result.datasets["T1"].dropped == {'"messages" is null': 1000}
    assert any("of the 64 rows after the first 1,024 read so" in progress.note for progress in outcome.progress)
    outcome = run_prep(monkeypatch, tmp_path, write_lines(tmp_path / "none.jsonl", rows[:1000]), target)
    assert (outcome.code, outcome.result.records) == (3, 0)
    assert "columns seen: id: text, messages: null; nearest: messages" in outcome.result.message


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path, text: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(text)
    outcome = run_prep(monkeypatch, tmp_path, source, target)
    assert (outcome.code, outcome.result.records) == (3, 0)
    assert outcome.result.message == f"0 rows: {source} is empty"


def test_nothing_decodable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("not json\n" * 100)
    outcome = run_prep(monkeypatch, tmp_path, source, target)
    assert (outcome.code, outcome.result.records) == (3, 0)
    assert outcome.result.message == "0 of 100 kept: undecodable: not JSON, 100 rows"
    assert balanced(outcome)


def test_a_share_under_the_floor_fails_with_the_top_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path
) -> None:
    rows = [chat(number, "user" if number % 4 == 0 else "prober") for number in range(100)]
    source = write_lines(tmp_path / "in.jsonl", rows)
    outcome = run_prep(monkeypatch, tmp_path, source, target, min_kept_share=0.5)
    assert (outcome.code, outcome.result.records, outcome.manifest) == (3, 0, None)
    assert outcome.result.message == (
        '25 of 100 rows are usable, 25.0%, under the floor of 50%: unknown role "prober" took 75'
    )
    assert run_prep(monkeypatch, tmp_path, source, target, min_kept_share=0.25).code == 0
    again = run_prep(monkeypatch, tmp_path, source, target, min_kept_share=0.5)
    assert (again.code, again.result.records) == (3, 0), "what is done already is not above a higher floor"
    assert again.manifest is None, "nobody takes it for a good one"
    assert again.result.message == outcome.result.message


def test_two_preps_on_one_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [chat(number) for number in range(10)])
    first = run_prep(monkeypatch, tmp_path, source, target)
    with outputs.exclusive(tmp_path / "out"):
        second = run_prep(monkeypatch, tmp_path, source, target)
    assert (second.code, second.result.records) == (1, 0)
    assert f"is being written by another run (pid {os.getpid()})" in second.result.message
    assert second.manifest == first.manifest is not None, "nothing of the first is touched"


def test_a_draw_from_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path) -> None:
    rows = [chat(number) if number % 10 else {"messages": None} for number in range(5000)]
    source = write_lines(tmp_path / "in.jsonl", rows)
    outcome = run_prep(monkeypatch, tmp_path, source, target, take=100, min_kept_share=0.85)
    assert outcome.code == 0
    count = outcome.result.datasets["T1"]
    assert (count.read, count.kept) == (5000, 100)
    assert set(count.dropped) == {"not sampled", '"messages" is null'}
    spare, null = count.dropped["not sampled"], count.dropped['"messages" is null']
    assert outcome.result.message == (
        f"100 of 5,000 kept (100 drawn, {spare:,} not needed), {count.tokens:,} tokens; "
        f'dropped: "messages" is null {null:,}'
    )
    assert balanced(outcome)
    positions = sorted(int(record["row"]) for record in outcome.records)
    assert len(set(positions)) == 100 and positions[0] < 500 and positions[-1] > 4500
    other = run_prep(monkeypatch, tmp_path, source, target, take=100, seed=1, out=tmp_path / "seed1")
    assert {record["hash"] for record in other.records} != {record["hash"] for record in outcome.records}


@pytest.mark.parametrize("take", [None, 20])
def test_a_file_that_is_cut_off_is_said_in_a_draw_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path, take: int | None
) -> None:
    rng = random.Random(0)
    lines = "".join(json.dumps(chat(number) | {"id": rng.getrandbits(64)}) + "\n" for number in range(4000))
    packed = gzip.compress(lines.encode())
    source = tmp_path / "in.jsonl.gz"
    source.write_bytes(packed[: len(packed) // 2])
    outcome = run_prep(monkeypatch, tmp_path, source, target, take=take, damaged="keep")
    (reason,) = (each for each in outcome.result.datasets["T1"].dropped if "the rest of" in each)
    assert outcome.result.datasets["T1"].dropped[reason] == 1
    assert outcome.manifest is not None and len(outcome.manifest["examples"][reason]) == 1
    said = "the rest of in.jsonl.gz could not be read"
    assert outcome.result.message.endswith(f"; {said}")
    assert any(progress.note == said for progress in outcome.progress)
    again = run_prep(monkeypatch, tmp_path, source, target, take=take, damaged="keep")
    assert again.result.message.startswith("already done") and said in again.result.message
    for out in (tmp_path / "out", tmp_path / "anew"):
        refused = run_prep(monkeypatch, tmp_path, source, target, take=take, out=out)
        assert refused.code == 3 and refused.result.message == (
            f'{said}: bring it anew, or set damaged = "keep" to go on without it'
        )
    assert refused.manifest is None and not refused.records


def test_an_array_that_is_cut_off_is_said_in_a_draw_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path
) -> None:
    source = tmp_path / "in.json"
    source.write_text(json.dumps([chat(number) for number in range(4000)])[:-100])
    outcome = run_prep(monkeypatch, tmp_path, source, target, take=20, damaged="keep")
    assert outcome.result.message.endswith("; the rest of in.json could not be read")
    assert any("JSON array cut off" in each for each in outcome.result.datasets["T1"].dropped)


def test_rows_that_wait_do_not_hide_that_all_samples_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path
) -> None:
    rows = [{"messages": [{"role": "user", "content": f"{number} " + "long " * 400}]} for number in range(400)]
    source = write_lines(tmp_path / "in.jsonl", rows)
    monkeypatch.setattr("pipeline.prep.stage.Reporter", functools.partial(Reporter, interval_s=0.0))
    outcome = run_prep(monkeypatch, tmp_path, source, target, take=300, context_length=200, max_new_tokens=100)
    assert outcome.code == 3
    counts = [each.datasets["T1"] for each in outcome.progress if each.phase == "tokenizing"]
    assert counts and all(count.kept == 0 and count.dropped["too long"] for count in counts)
    assert balanced(outcome)


def test_old_records_are_out_of_the_way_before_anything_can_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", [chat(number) for number in range(50)])
    first = run_prep(monkeypatch, tmp_path, source, target, kind="answers", train_turns="all-but-system", files=("*",))
    assert first.code == 0 and first.manifest is not None
    source.rename(tmp_path / "gone.jsonl")
    same = run_prep(monkeypatch, tmp_path, source, target, kind="answers", train_turns="all-but-system", files=("*",))
    assert same.code == 3 and same.manifest == first.manifest, "records of the same settings stay"
    other = run_prep(monkeypatch, tmp_path, source, target, kind="answers", train_turns="assistant", files=("*",))
    assert other.code == 3 and other.manifest is None
    assert outputs.read_manifest(tmp_path / f"out.stale-{first.manifest['content']}") == first.manifest


def test_done_is_done_and_other_settings_move_it_aside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", [chat(number) for number in range(50)])
    first = run_prep(monkeypatch, tmp_path, source, target)
    records = tmp_path / "out" / "records.jsonl"
    written = records.stat().st_mtime_ns
    again = run_prep(monkeypatch, tmp_path, source, target)
    assert again.result.message == "already done: 50 of 50 kept"
    assert again.result.datasets == first.result.datasets | {"T1": again.result.datasets["T1"]}
    assert records.stat().st_mtime_ns == written

    other = run_prep(monkeypatch, tmp_path, source, target, max_new_tokens=32)
    assert first.manifest is not None and other.manifest is not None
    stale = tmp_path / f"out.stale-{first.manifest['content']}"
    assert outputs.read_manifest(stale) == first.manifest
    assert any(stale.name in progress.note for progress in other.progress)
    assert {record["max_new_tokens"] for record in other.records} == {32}

    write_lines(source, [chat(number) for number in range(51)])
    assert len(run_prep(monkeypatch, tmp_path, source, target, max_new_tokens=32).records) == 51, (
        "other rows, done anew"
    )

    records.write_bytes(records.read_bytes()[:-10])
    assert len(run_prep(monkeypatch, tmp_path, source, target, max_new_tokens=32).records) == 51, "cut, done anew"


def test_a_missing_source_and_a_missing_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path) -> None:
    outcome = run_prep(monkeypatch, tmp_path, tmp_path / "none.jsonl", target)
    assert outcome.code == 3 and "no such file or folder" in outcome.result.message
    outcome = run_prep(monkeypatch, tmp_path, tmp_path / "none.jsonl", tmp_path / "no-target")
    assert outcome.code == 1 and "not loaded" in outcome.result.message


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--kind", "prompts"], "needs --max-new-tokens"),
        (["--kind", "prompts", "--max-new-tokens", "512"], "leaves no room for a prompt"),
        (["--kind", "answers", "--template-json", "[1]"], "not a JSON object"),
        (["--kind", "answers", "--heldout-share", "1"], "is not a share"),
        (["--kind", "answers", "--take", "0"], "is not a positive number"),
        (["--kind", "answers", "--trust-remote-code"], "give a folder, or a commit as --target-revision"),
        (["--kind", "answers", "--trust-remote-code", "--target-revision", "main"], "or a commit"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], extra: list[str], words: str) -> None:
    basis = ["--dataset", "T1", "--source", "s", "--target", "t", "--context-length", "512", "--out", "o"]
    with pytest.raises(SystemExit) as end:
        command.main([*basis, *extra])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def start(target: Path, source: Path, out: Path) -> subprocess.Popen[bytes]:
    argv = [
        sys.executable, "-m", "pipeline.prep", "--dataset", "T1", "--kind", "prompts", "--source", str(source),
        "--target", str(target), "--context-length", "2048", "--max-new-tokens", "64", "--out", str(out),
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "DRAFTDECK_PROGRESS": str(out.parent / "progress.jsonl")}
    return subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL)


def test_killed_and_started_again_gives_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", [chat(number) for number in range(4_000)])
    calm, out = tmp_path / "calm" / "T1", tmp_path / "killed" / "T1"
    out.parent.mkdir()
    assert run_prep(monkeypatch, tmp_path, source, target, out=calm).code == 0
    part = out / ".records.jsonl.part"
    whole = (calm / "records.jsonl").stat().st_size
    for share, number in ((0.0, signal.SIGTERM), (0.4, signal.SIGKILL)):
        enough = share * whole
        process = start(target, source, out)
        wait_until(lambda: part.exists() and part.stat().st_size > enough, "the records grow", 60)  # noqa: B023
        process.send_signal(number)
        assert process.wait(30) != 0
        assert not (out / "records.jsonl").exists() and not (out / "manifest.json").exists()
        assert part.exists() == (number == signal.SIGKILL), "a prep that is asked to end leaves nothing"
    assert start(target, source, out).wait(120) == 0
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "records.jsonl"]
    for name in ("manifest.json", "records.jsonl"):
        assert (out / name).read_bytes() == (calm / name).read_bytes()
    assert json.loads((out / "manifest.json").read_bytes())["kept"] == 4_000


def test_a_tokenizer_with_shifted_ids_stops_the_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = kimi.make(tmp_path / "kimi", wrong={"</think>": 163604, "<|media_end|>": 163700})
    source = write_lines(tmp_path / "in.jsonl", [chat(1)])
    outcome = run_prep(monkeypatch, tmp_path, source, target, kind="answers", trust_remote_code=True)
    assert (outcome.code, outcome.result.records, outcome.manifest) == (3, 0, None), "the same next time: not retried"
    assert "special token '</think>' has id 163604, tokenizer_config.json says 163607" in outcome.result.message
    assert not (tmp_path / "out").exists(), "nothing is tokenized"


def test_what_is_not_known_of_a_tokenizer_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path
) -> None:
    outcome = run_prep(monkeypatch, tmp_path, write_lines(tmp_path / "in.jsonl", [chat(1)]), target)
    assert outcome.manifest is not None and "no known family" in outcome.manifest["unchecked"][0]
    assert any(progress.note.startswith("not checked: ") for progress in outcome.progress)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_at_fifty_random_moments_it_writes_the_same_bytes(tmp_path: Path, target: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [chat(number) for number in range(2_000)])
    calm, out = tmp_path / "calm" / "T1", tmp_path / "killed" / "T1"
    calm.parent.mkdir()
    out.parent.mkdir()
    began = time.monotonic()
    assert start(target, source, calm).wait(120) == 0
    took = time.monotonic() - began
    moments = random.Random(5)
    for _ in range(50):
        process = start(target, source, out)
        time.sleep(took * moments.random())  # any moment, the last ones too
        process.kill()
        process.wait(30)
        if (out / "manifest.json").exists() and moments.random() < 0.5:
            (out / "manifest.json").unlink()  # killed just before its last step
    assert start(target, source, out).wait(120) == 0
    for name in ("manifest.json", "records.jsonl"):
        assert (out / name).read_bytes() == (calm / name).read_bytes()
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "records.jsonl"]
