"""The loss mask, proved by decoding what it covers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from pipeline import tokens
from pipeline.prep import masks
from pipeline.prep.masks import Sample
from pipeline.prep.records import Message
from pipeline.prep.shapes import RowError
from pipeline.prep.spans import Rendered
from pipeline.prep.template import Template, Tools
from pipeline.prep.turns import Call
from tests.prep import small

TALK = (
    Message("system", "Be brief."),
    Message("user", "One?"),
    Message("assistant", "It is 1."),
    Message("user", "\n\nTwo?"),
    Message("assistant", "\nIt is 2, naïvely 二."),
)


def tokenizer_of(folder: Path, template: str) -> Template:
    return Template(tokens.load(str(small.make_tokenizer(folder, template))))


def masked(
    template: Template, messages: tuple[Message, ...], turns: Any = "assistant", tools: Tools = ()
) -> tuple[Sample, list[str]]:
    """The sample, and the texts of the parts that carry loss."""
    tokenizer = template.tokenizer
    sample = masks.tokenized(masks.rendered(messages, template, turns, tools), tokenizer)
    assert isinstance(sample, Sample), sample
    assert len(sample.input_ids) == len(sample.loss_mask)
    groups = itertools.groupby(zip(sample.input_ids, sample.loss_mask, strict=True), key=lambda pair: pair[1])
    return sample, [tokenizer.decode([token for token, _ in group]) for loss, group in groups if loss]


@pytest.mark.parametrize("template", [small.CHATML, small.MARKED, small.OPENED], ids=["prefixes", "markers", "opened"])
def test_loss_is_on_the_answers_and_their_end_tokens(tmp_path: Path, template: str) -> None:
    shown = tokenizer_of(tmp_path, template)
    sample, written = masked(shown, TALK)
    assert written == ["It is 1.<|im_end|>", "\nIt is 2, naïvely 二.<|im_end|>"]
    assert shown.tokenizer.decode(sample.input_ids) == shown.tokenizer.render(
        [message.for_template() for message in TALK], generation_prompt=False
    )
    assert sample.unmasked_turns == 0


def test_the_ids_before_an_answer_are_those_of_the_prompt(target: Path) -> None:
    template = Template(tokens.load(str(target)))
    sample, _ = masked(template, TALK)
    (prompt,) = template.tokenizer.encode([masks.prompt_text(TALK[:2], template)])
    assert sample.input_ids[: len(prompt)] == prompt
    assert sample.loss_mask[: len(prompt)] == [0] * len(prompt)
    assert sample.loss_mask[len(prompt)] == 1


def test_a_template_that_forgets_thinking_leaves_the_answer_after_it(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, small.FORGETFUL)
    thinking = (
        *TALK[:2],
        Message("assistant", "<think>1, or?</think>It is 1."),
        TALK[3],
        Message("assistant", "<think>y</think>2"),
    )
    sample, written = masked(tokenizer, thinking)
    assert written == ["It is 1.<|im_end|>", "<think>y</think>2<|im_end|>"]
    assert sample.unmasked_turns == 0


@pytest.mark.parametrize("tag", ["<think>\n", ""], ids=["with its tag", "begun by the prompt"])
def test_the_last_turn_has_its_thinking_whatever_the_template_does(tmp_path: Path, tag: str) -> None:
    template = tokenizer_of(tmp_path, small.HIDING)
    thinking = (
        TALK[1],
        Message("assistant", f"{tag}1?</think>It is 1."),
        TALK[3],
        Message("assistant", f"{tag}y</think>\n2"),
    )
    sample, written = masked(template, thinking)
    assert written == ["It is 1.<|im_end|>", "y</think>\n2<|im_end|>"]
    (prompt,) = template.tokenizer.encode([masks.prompt_text(thinking[:-1], template)])
    assert sample.input_ids[: len(prompt)] == prompt, "what the server was given"


def test_reasoning_is_written_by_the_target_too(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, small.OPENED)
    _, written = masked(tokenizer, (Message("user", "q"), Message("assistant", "a", "because")))
    assert written == ["because\n</think>\n\na<|im_end|>"], "the prompt had opened the thinking"


def test_everything_but_system(target: Path) -> None:
    template = Template(tokens.load(str(target)))
    _, written = masked(template, TALK, "all-but-system")
    whole = template.tokenizer.render([message.for_template() for message in TALK], generation_prompt=False)
    assert "".join(written) == whole.removeprefix("<|im_start|>system\nBe brief.<|im_end|>\n")


def test_a_template_that_refuses_or_hides_is_a_reason(tmp_path: Path) -> None:
    strict = tokenizer_of(tmp_path / "strict", small.STRICT)
    with pytest.raises(RowError, match="the chat template refuses it: only user and assistant are known"):
        masks.prompt_text(TALK[:2], strict)
    deaf = tokenizer_of(tmp_path / "deaf", "{% for message in messages %}{{ '<|im_start|>' }}{% endfor %}")
    with pytest.raises(RowError, match="leaves out the last turn"):
        masks.prompt_text(TALK[:2], deaf)
    with pytest.raises(RowError, match="no loss"):
        masks.rendered(TALK, deaf, "assistant")


def test_a_mask_that_is_all_1_or_all_0_is_refused(target: Path) -> None:
    tokenizer = tokens.load(str(target))
    every, none = Rendered("some text", ((0, 9),)), Rendered("some text", ())
    for given, word in ((every, "all 1"), (none, "all 0")):
        refused = masks.tokenized(given, tokenizer)
        assert isinstance(refused, RowError)
        assert word in str(refused)


CALLED = Message("assistant", "I add.", calls=(Call("c1", "add", '{"a":1,"b":"二"}'), Call("c2", "now", "{}")))
GIVEN = (Message("tool", "", call_id="c1"), Message("tool", "12:00", call_id="c2"))
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def test_tool_calls_where_the_template_writes_the_json(tmp_path: Path) -> None:
    template = tokenizer_of(tmp_path, small.CALLING)
    assert (template.shows_tools, template.arguments) == (True, "object")
    _, written = masked(template, (*TALK[:2], CALLED, *GIVEN, TALK[2]), tools=(TOOL,))
    assert written == [
        'I add.<call>{"name": "add", "arguments": {"a": 1, "b": "二"}}</call>'
        '<call>{"name": "now", "arguments": {}}</call><|im_end|>',
        "It is 1.<|im_end|>",
    ]
    broken = Message("assistant", "", calls=(Call("c1", "add", "{"),))
    with pytest.raises(RowError, match="tool call arguments that are not JSON"):
        masks.rendered((*TALK[:2], broken, *GIVEN, TALK[2]), template, "assistant")


def test_a_tool_that_quotes_its_call_carries_no_loss(tmp_path: Path) -> None:
    template = tokenizer_of(tmp_path, small.CALLING)
    quoting = Message("tool", 'f was called with {"a":1} SECRET OUTPUT', call_id="c")
    talk = (Message("user", "q"), Message("assistant", "", calls=(Call("c", "f", '{"a":1}'),)), quoting)
    _, written = masked(template, (*talk, Message("assistant", "done")))
    assert written == ['<call>{"name": "f", "arguments": {"a": 1}}</call><|im_end|>', "done<|im_end|>"]


def test_a_call_with_an_end_token_of_its_own_takes_in_no_tools_turn(tmp_path: Path) -> None:
    other = "{{ '<|endoftext|>' if message.get('tool_calls') else '<|im_end|>\n' }}{% endfor %}{% if add"
    template = tokenizer_of(tmp_path, small.CALLING.replace("{{ '<|im_end|>\n' }}{% endfor %}{% if add", other))
    talk = (*TALK[:2], CALLED, Message("tool", "SECRET", call_id="c1"), TALK[2])
    assert "<|endoftext|><|im_start|>tool\nSECRET<|im_end|>" in template.render(talk)
    _, written = masked(template, talk)
    assert written == ["It is 1.<|im_end|>"]


@pytest.mark.parametrize("asked", ["a", "add", "\n\nprobe draft"])
def test_everything_but_system_where_the_template_declares_the_tools(tmp_path: Path, asked: str) -> None:
    template = tokenizer_of(tmp_path, small.CALLING)
    _, written = masked(template, (Message("user", asked), Message("assistant", "b")), "all-but-system", (TOOL,))
    assert written == [f"{asked}<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"]


def test_what_the_template_cannot_show_is_a_reason(target: Path) -> None:
    template = Template(tokens.load(str(target)))
    assert (template.shows_tools, template.arguments) == (False, "none")
    with pytest.raises(RowError, match="shows no tool calls"):
        masks.rendered((*TALK[:2], CALLED, *GIVEN, TALK[2]), template, "assistant")
    with pytest.raises(RowError, match="shows no tools"):
        masks.prompt_text(TALK[:2], template, (TOOL,))


def test_markers_that_are_not_one_a_turn_are_not_needed(tmp_path: Path) -> None:
    template = tokenizer_of(
        tmp_path, small.MARKED.replace("{% generation %}", "{% generation %}{% endgeneration %}{% generation %}")
    )
    _, written = masked(template, TALK)
    assert written == ["It is 1.<|im_end|>", "\nIt is 2, naïvely 二.<|im_end|>"]


def test_an_answer_that_quotes_a_header_is_still_one_answer(tmp_path: Path) -> None:
    template = tokenizer_of(tmp_path, small.CHATML)
    quoting = Message("assistant", "It begins with <|im_start|>assistant\nand text.")
    _, written = masked(template, (*TALK[:3], TALK[3], quoting))
    assert written == ["It is 1.<|im_end|>", f"{quoting.content}<|im_end|>"]


def test_an_answer_the_template_changes_carries_no_loss(tmp_path: Path) -> None:
    template = tokenizer_of(
        tmp_path, small.CHATML.replace("message['content']", "message['content'] | replace('1', 'I')")
    )
    sample, written = masked(template, TALK)
    assert written == ["\nIt is 2, naïvely 二.<|im_end|>"] and sample.unmasked_turns == 1
