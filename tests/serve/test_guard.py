"""Mistakes that the server accepts in silence are refused before it starts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.draft.check import DraftError, inspect_draft, tensor_shapes
from pipeline.serve.__main__ import REFUSED, build_parser, main, options_of
from pipeline.serve.command import ServeOptions, Speculation, parse_flag, server_argv
from pipeline.serve.guard import refusals, remarks
from tests.serve.drafts import make_eagle1, make_eagle3, make_target_config, write_config, write_header
from tests.tiny import ROOT


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(make_target_config(tmp_path / "target"))


def options(target: str, draft: Path | str | None, algorithm: str = "EAGLE3", **numbers: Any) -> ServeOptions:
    speculation = None if draft is None else Speculation(str(draft), algorithm, **numbers)
    return ServeOptions("sglang", target, speculation=speculation)


def test_a_fitting_draft_passes(target: str, tmp_path: Path) -> None:
    fitting = options(target, make_eagle3(tmp_path / "d"))
    assert refusals(fitting) == []
    assert remarks(fitting) == []


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN"])
def test_eagle_with_an_eagle3_draft_is_refused_with_the_reason(target: str, tmp_path: Path, algorithm: str) -> None:
    (reason,) = refusals(options(target, make_eagle3(tmp_path / "d"), algorithm))
    assert f"--algorithm {algorithm} with the EAGLE-3 draft" in reason
    assert "accept length 1" in reason
    assert "Use --algorithm EAGLE3" in reason


def test_an_eagle3_draft_is_known_by_its_fc_alone(target: str, tmp_path: Path) -> None:
    draft = make_eagle3(tmp_path / "d", architectures=["LlamaForCausalLM"])
    (reason,) = refusals(options(target, draft, "EAGLE"))
    assert "Use --algorithm EAGLE3" in reason


def test_eagle3_with_another_kind_of_draft(target: str, tmp_path: Path) -> None:
    (reason,) = refusals(options(target, make_eagle1(tmp_path / "d")))
    assert "is no EAGLE-3 draft (LlamaForCausalLMEagle" in reason
    assert refusals(options(target, make_eagle1(tmp_path / "d"), "EAGLE")) == []


def test_algorithm_without_draft(target: str) -> None:
    (reason,) = refusals(ServeOptions("sglang", target, algorithm="EAGLE3"))
    assert "without --draft" in reason


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"steps": 3, "topk": 1, "draft_tokens": 5}, "set --draft-tokens 4"),
        ({"steps": 0}, "--steps 0"),
        ({"steps": 3, "topk": 0}, "--topk 0"),
        ({"steps": 3, "topk": 4, "draft_tokens": 1}, "--draft-tokens 1"),
    ],
)
def test_numbers(target: str, tmp_path: Path, numbers: dict[str, Any], says: str) -> None:
    assert any(says in reason for reason in refusals(options(target, make_eagle3(tmp_path / "d"), **numbers)))


def test_a_draft_of_another_target(target: str, tmp_path: Path) -> None:
    reasons = refusals(options(target, make_eagle3(tmp_path / "d", width=32, vocabulary=999)))
    assert any("fc.weight takes 96 inputs, this target gives 3 aux states of 64" in reason for reason in reasons)
    assert any("vocab_size 999, the target has 1,000" in reason for reason in reasons)


def test_the_width_of_a_multimodal_target(tmp_path: Path) -> None:
    target = write_config(tmp_path / "t", text_config={"hidden_size": 64, "vocab_size": 1000})
    assert refusals(options(str(target), make_eagle3(tmp_path / "d"))) == []
    assert len(refusals(options(str(target), make_eagle3(tmp_path / "e", width=32)))) == 1


def test_draft_vocabulary(target: str, tmp_path: Path) -> None:
    draft = make_eagle3(tmp_path / "d", draft_vocab_size=300)
    assert any("lm_head.weight has 200 rows" in reason for reason in refusals(options(target, draft)))
    write_config(draft, architectures=["LlamaForCausalLMEagle3"], hidden_size=64, vocab_size=1000)
    assert any("no draft_vocab_size" in reason for reason in refusals(options(target, draft)))


def test_broken_folders(target: str, tmp_path: Path) -> None:
    assert "there is no such folder" in refusals(options(target, tmp_path / "missing"))[0]
    (tmp_path / "empty").mkdir()
    assert "config.json is missing" in refusals(options(target, tmp_path / "empty"))[0]
    draft = make_eagle3(tmp_path / "d")
    (draft / "model.safetensors").write_bytes(b"\x07")
    assert "not a safetensors file" in refusals(options(target, draft))[0]
    (draft / "config.json").write_text("{")
    assert "cannot be read" in refusals(options(target, draft))[0]


def test_what_cannot_be_checked_is_said(target: str, tmp_path: Path) -> None:
    assert refusals(options(target, "someone/draft")) == []
    assert "not a local folder" in remarks(options(target, "someone/draft"))[0]
    assert "not compared" in remarks(options("someone/target", make_eagle3(tmp_path / "d")))[0]


def test_flags_that_contradict_an_option(target: str) -> None:
    given_twice = ServeOptions("sglang", target, flags=(("port", "1"), ("tp-size", "8"), ("tp-size", "4")))
    reasons = refusals(given_twice)
    assert any("--flag port" in reason for reason in reasons)
    assert any("tp-size is given twice" in reason for reason in reasons)


def test_sglangs_command(tmp_path: Path) -> None:
    arguments = build_parser().parse_args(
        shlex.split(
            "--engine sglang --model /m --host 0.0.0.0 --port 4 --python /py --flag tp-size=8 --flag enable-metrics "
            f"--draft {tmp_path} --algorithm EAGLE3 --steps 5 --topk 1 --draft-tokens 6"
        )
    )
    assert server_argv(options_of(arguments)) == shlex.split(
        "/py -m sglang.launch_server --model-path /m --host 0.0.0.0 --port 4 --tp-size 8 --enable-metrics "
        f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {tmp_path} --speculative-num-steps 5 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 6"
    )


def test_print_and_refusal_as_commands(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--engine", "reference", "--model", target, "--print"]
    assert main(command) == 0
    assert "-m pipeline.demo.server --model-path" in capsys.readouterr().out
    assert main([*command, "--draft", str(make_eagle3(tmp_path / "d")), "--algorithm", "EAGLE"]) == REFUSED
    assert "serve: refused: --algorithm EAGLE" in capsys.readouterr().err


def test_the_process_becomes_the_server(target: str, tmp_path: Path) -> None:
    """Same pid, the server's exit code: whoever supervises serve supervises the server."""
    engine = tmp_path / "engine"
    engine.write_text('#!/bin/sh\necho "$$ $*"\nexit 7\n')
    engine.chmod(0o755)
    command = ["-m", "pipeline.serve", "--engine", "sglang", "--model", target, "--python", str(engine)]
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 7
    assert output.split()[:3] == [str(process.pid), "-m", "sglang.launch_server"]


def test_needs_no_torch(target: str, tmp_path: Path) -> None:
    draft = make_eagle3(tmp_path / "d")
    code = (
        "import sys; from pipeline.serve.__main__ import main; "
        f"main(['--engine','sglang','--model',{target!r},'--draft',{str(draft)!r},'--print']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), check=False).returncode == 0


@given(st.text(max_size=30))
def test_flag_is_read_or_refused(text: str) -> None:
    try:
        name, value = parse_flag(text)
    except ValueError as error:
        assert "NAME=VALUE" in str(error)
        return
    assert name
    assert not name.startswith("-")
    assert (value is None) == ("=" not in text)


@given(st.binary(max_size=200))
def test_any_bytes_as_weights(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(data)
        try:
            tensor_shapes(path)
        except DraftError as error:
            assert str(path) in str(error)


def test_facts(tmp_path: Path) -> None:
    facts = inspect_draft(make_eagle3(tmp_path / "d"))
    assert (facts.is_eagle3, facts.fc_shape, facts.aux_layers) == (True, (64, 192), (2, 5, 8))
    write_header(tmp_path / "d" / "model.safetensors", model__fc__weight=(64, 192))
    assert inspect_draft(tmp_path / "d").fc_shape == (64, 192)
