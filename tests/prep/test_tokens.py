"""Is the tokenizer the model's own?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline import tokens
from pipeline.model_files import Declared, declared_tokens
from tests.prep import kimi, small


def test_a_sound_tokenizer_is_loaded(target: Path) -> None:
    tokenizer = tokens.load(str(target))
    declared = declared_tokens(str(target))
    assert tokens.check(tokenizer, declared) == []
    assert {token.text: token.id for token in declared} == {text: number for number, text in enumerate(small.SPECIAL)}
    assert {token.where for token in declared} == {"tokenizer_config.json", "tokenizer.json"}
    assert set(small.SPECIAL) <= set(tokenizer.special_tokens())
    assert tokenizer.fingerprint() == tokens.load(str(target)).fingerprint()
    assert tokenizer.fingerprint() != tokens.load(str(target), variables={"thinking": True}).fingerprint()
    assert any("what the template writes is not compared" in line for line in tokenizer.unchecked)


def test_special_tokens_with_other_ids_than_the_models_files_say_are_named(target: Path) -> None:
    declared = [Declared("</think>", 163607, "f"), Declared("<|im_start|>", 1, "f"), Declared("<|im_end|>", 9, "f")]
    problems = tokens.check(tokens.load(str(target)), declared)
    assert len(problems) == 2
    assert "special token '<|im_end|>' has id 2, f says 9" in problems[0], "the template's own come first"
    assert "'</think>'" in problems[1]


def test_shifted_ids_in_the_models_folder_stop_it(tmp_path: Path) -> None:
    folder = small.make_tokenizer(tmp_path / "shifted")
    (folder / "added_tokens.json").write_text(json.dumps({"<|im_end|>": 3}))
    with pytest.raises(tokens.TokenizerError, match=r"'<\|im_end\|>' has id 2, added_tokens.json says 3"):
        tokens.load(str(folder))


def test_kimis_ids_shifted_by_a_conversion_stop_it(tmp_path: Path) -> None:
    folder = kimi.make(tmp_path / "shifted", shifted=True)
    with pytest.raises(tokens.TokenizerError) as error:
        tokens.load(str(folder), trust_remote_code=True)
    text = str(error.value)
    assert "special token '<|im_system|>' has id 163592, tokenizer_config.json says 163594" in text
    found = {token.text: token for token in declared_tokens(str(folder))}
    assert found["</think>"].id == 163607


@pytest.mark.parametrize("named", [True, False], ids=["its files", "its family"])
def test_a_shifted_end_of_thinking_is_named(tmp_path: Path, named: bool) -> None:
    folder = kimi.make(tmp_path / "one", wrong={"</think>": 163604, "<|media_end|>": 163700})
    if not named:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        del config["added_tokens_decoder"]
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(tokens.TokenizerError) as error:
        tokens.load(str(folder), trust_remote_code=True)
    says = "tokenizer_config.json" if named else "what is known of kimi_k25"
    assert f"special token '</think>' has id 163604, {says} says 163607" in str(error.value)


def test_the_family_is_the_one_that_is_given(tmp_path: Path) -> None:
    folder = kimi.make(tmp_path / "kimi", template=small.CHATML)
    (folder / "config.json").unlink()
    with pytest.raises(tokens.TokenizerError, match=r"what is known of kimi_k25 says '<\|im_system\|>sys"):
        tokens.load(str(folder), trust_remote_code=True, family="kimi_k25")
    tokenizer = tokens.load(str(folder), trust_remote_code=True)
    assert "the template writes <|im_start|>, which is no token of this model" in tokenizer.unchecked
    assert len(tokenizer.unchecked) == 2, "nor is any text compared"


def test_nothing_is_unchecked_of_kimi(tmp_path: Path) -> None:
    assert tokens.load(str(kimi.make(tmp_path / "kimi")), trust_remote_code=True).unchecked == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        (
            {"text": "<|im_start|>user\nhello<|im_end|>"},
            r"the chat template writes '.*Hello.*', chat_reference.json says",
        ),
        ({"ids": [1, 2]}, r"token 1 of a text of chat_reference.json has id \d+, expected is 2"),
        ({"messages": [{"role": "system"}]}, "refuses a conversation of chat_reference.json"),
        ({"messages": 3}, 'no list of objects with "messages" and "text"'),
    ],
)
def test_the_models_reference_texts(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    folder = small.make_tokenizer(tmp_path / "model")
    tokenizer = tokens.load(str(folder))
    messages = [{"role": "user", "content": "Hello"}]
    text = tokenizer.render(messages, generation_prompt=True)
    reference = {"messages": messages, "text": text, "add_generation_prompt": True, "ids": tokenizer.encode([text])[0]}
    (folder / "chat_reference.json").write_text(json.dumps([{**reference, **change}]))
    if not words:
        assert tokens.load(str(folder)).unchecked == ()
        return
    with pytest.raises(tokens.TokenizerError, match=words):
        tokens.load(str(folder))


def test_a_reference_is_rendered_with_its_own_variables(tmp_path: Path) -> None:
    template = "{% if style %}{{ style }}{% endif %}" + small.CHATML
    folder = small.make_tokenizer(tmp_path / "model", template)
    messages = [{"role": "user", "content": "Hello"}]
    plain = {"messages": messages, "text": tokens.load(str(folder)).render(messages, generation_prompt=False)}
    styled = {"messages": messages, "text": f"wild{plain['text']}", "variables": {"style": "wild"}}
    (folder / "chat_reference.json").write_text(json.dumps([plain, styled]))
    assert tokens.load(str(folder), variables={"style": "calm"}).unchecked == ()


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
