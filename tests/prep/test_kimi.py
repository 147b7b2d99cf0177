"""A target of Kimi's kind: a slow tokenizer without offsets, thinking that the template forgets, tool calls by id."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline import tokens
from pipeline.prep import masks
from pipeline.prep.records import Message
from pipeline.prep.template import Template
from pipeline.prep.turns import Call
from tests.prep import kimi
from tests.prep.test_masks import masked

SYSTEM, ASKED = Message("system", "Be brief."), Message("user", "What is 1 + 1, 二?")
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
CALLED = Message("assistant", "I add.", "one call", (Call("functions.add:0", "add", '{"a":1,  "b": 1}'),))
GIVEN = Message("tool", "2", call_id="functions.add:0")
DECLARED = '<|im_system|>tool_declare<|im_middle|>[{"type": "function", "function": {"name": "add", '
ONE_CALL = (
    "I add.<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"a":1,  "b": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    folder = kimi.make(tmp_path_factory.mktemp("kimi") / "sound")
    return Template(tokens.load(str(folder), trust_remote_code=True, variables={"thinking": True}))


def test_what_it_is(template: Template) -> None:
    assert not template.tokenizer.hf.is_fast, "it gives no offsets"
    assert (template.shows_tools, template.arguments, template.knows_reasoning) == (True, "text", True)
    assert not template.tokenizer.marked
    for text, number in kimi.SPECIAL.items():
        assert template.tokenizer.encode([text]) == [[number]] and template.tokenizer.decode([number]) == text


def test_the_last_turn_is_as_it_was_written_and_earlier_ones_as_they_are_shown(template: Template) -> None:
    talk = (
        SYSTEM,
        ASKED,
        Message("assistant", "2", "easy"),
        Message("user", "And 2 + 2?"),
        Message("assistant", "四!", "二 + 二"),
    )
    sample, written = masked(template, talk)
    assert written == ["2<|im_end|>", "二 + 二</think>四!<|im_end|>"], "the prompt had opened the thinking"
    assert template.tokenizer.decode(sample.input_ids) == (
        "<|im_system|>system<|im_middle|>Be brief.<|im_end|><|im_user|>user<|im_middle|>What is 1 + 1, 二?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think></think>2<|im_end|><|im_user|>user<|im_middle|>And 2 + 2?"
        "<|im_end|><|im_assistant|>assistant<|im_middle|><think>二 + 二</think>四!<|im_end|>"
    )
    (prompt,) = template.tokenizer.encode([masks.prompt_text(talk[:-1], template)])
    assert sample.input_ids[: len(prompt)] == prompt, "what the server was given"
    assert sample.loss_mask[: len(prompt)].count(1) == len(template.tokenizer.encode(["2<|im_end|>"])[0])


def test_thinking_in_the_answers_text_is_thinking(template: Template) -> None:
    sample, written = masked(template, (ASKED, Message("assistant", "<think>easy\n</think>\n\n2")))
    assert written == ["easy\n</think>\n\n2<|im_end|>"]
    assert template.tokenizer.decode(sample.input_ids).count("<think>") == 1


def test_answers_without_thinking(template: Template) -> None:
    view = Message("assistant", "I look. <function=view><parameter=path>/x</parameter></function>")
    _, written = masked(template, (SYSTEM, ASKED, view, Message("user", "file contents"), view))
    assert written == [f"{view.content}<|im_end|>"] * 2, "the empty pair is the template's"


def test_tool_calls_and_the_thinking_between_them(template: Template) -> None:
    talk = (ASKED, CALLED, GIVEN, Message("assistant", "It is 2.", "done"))
    sample, written = masked(template, talk, tools=(TOOL,))
    assert written == [f"one call</think>{ONE_CALL}", "done</think>It is 2.<|im_end|>"]
    whole = template.tokenizer.decode(sample.input_ids)
    assert whole.startswith(DECLARED)
    assert "<|im_system|>tool<|im_middle|>## Return of functions.add:0\n2<|im_end|>" in whole
    _, written = masked(
        template, (*talk, Message("user", "Thanks"), Message("assistant", "!", "polite")), tools=(TOOL,)
    )
    assert written == [ONE_CALL, "It is 2.<|im_end|>", "polite</think>!<|im_end|>"]


def test_tools_are_kept_in_prompts(template: Template) -> None:
    text = masks.prompt_text((SYSTEM, ASKED, CALLED, GIVEN), template, (TOOL,))
    assert text.startswith(DECLARED)
    assert f"<think>one call</think>{ONE_CALL}" in text
    assert text.endswith("## Return of functions.add:0\n2<|im_end|><|im_assistant|>assistant<|im_middle|><think>")
    assert "<|im_system|>system<|im_middle|>Be brief.<|im_end|>" in text


def test_everything_but_system_by_name(template: Template) -> None:
    talk = (SYSTEM, ASKED, Message("assistant", "2"), Message("user", "output"), Message("assistant", "3"))
    _, written = masked(template, talk, "all-but-system")
    whole = template.tokenizer.render([one.for_template() for one in talk], generation_prompt=False)
    assert "".join(written) == whole.removeprefix("<|im_system|>system<|im_middle|>Be brief.<|im_end|>")


def test_without_thinking_none_is_put_back(template: Template) -> None:
    instant = Template(replace(template.tokenizer, variables={"thinking": False}))
    sample, written = masked(instant, (ASKED, Message("assistant", "2", "easy")))
    assert written == ["2<|im_end|>"]
    (prompt,) = template.tokenizer.encode([masks.prompt_text((ASKED,), instant)])
    assert sample.input_ids[: len(prompt)] == prompt
