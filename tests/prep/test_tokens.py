"""Is the tokenizer the model's own?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import tokens
from tests.prep import small


def test_a_sound_tokenizer_is_loaded(target: Path) -> None:
    tokenizer = tokens.load(str(target))
    assert tokens.check(tokenizer, tokens.declared_tokens(str(target))) == []
    assert tokens.declared_tokens(str(target)) == {text: number for number, text in enumerate(small.SPECIAL)}
    assert set(small.SPECIAL) <= set(tokenizer.special_tokens())
    assert tokenizer.fingerprint() == tokens.load(str(target)).fingerprint()
    assert tokenizer.fingerprint() != tokens.load(str(target), variables={"thinking": True}).fingerprint()


def test_special_tokens_with_other_ids_than_the_models_files_say_are_named(target: Path) -> None:
    problems = tokens.check(tokens.load(str(target)), {"<|im_start|>": 1, "<|im_end|>": 163586, "</think>": 163607})
    assert len(problems) == 2
    assert "special token '<|im_end|>' has id 2, the model's files say 163586" in problems[0]
    assert "'</think>'" in problems[1]


def test_shifted_ids_in_the_models_folder_stop_it(tmp_path: Path) -> None:
    folder = small.make_tokenizer(tmp_path / "shifted")
    (folder / "added_tokens.json").write_text(json.dumps({"<|im_end|>": 3}))
    with pytest.raises(tokens.TokenizerError, match=r"'<\|im_end\|>' has id 2, the model's files say 3"):
        tokens.load(str(folder))


def test_without_a_chat_template_nothing_starts(tmp_path: Path) -> None:
    folder = small.make_tokenizer(tmp_path / "bare")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(tokens.TokenizerError, match="no chat template"):
        tokens.load(str(folder))


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(tokens.TokenizerError) as error:
        tokens.load(str(tmp_path / "none"))
    assert "\n" not in str(error.value)
    assert "give a folder with a tokenizer" in str(error.value)


def test_the_heads_size_comes_from_the_config(tmp_path: Path) -> None:
    folder = small.make_tokenizer(tmp_path / "model")
    tokenizer = tokens.load(str(folder))
    assert tokens.target_vocabulary(tokenizer) == tokenizer.vocabulary_size()
    (folder / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 163840}, "model_type": "none"}))
    assert tokens.target_vocabulary(tokenizer) == 163840


def test_a_tokenizer_needs_no_torch(target: Path) -> None:
    script = (
        "import sys\nfrom pipeline import tokens\ntokens.hide_torch()\n"
        f"tokenizer = tokens.load({str(target)!r})\nprint(len(tokenizer.encode(['hello'])[0]))\n"
        "heavy = [name for name in ('torch', 'datasets') if sys.modules.get(name)]\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
