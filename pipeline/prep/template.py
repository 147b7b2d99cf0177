"""The target's chat template as prep uses it: what it can show of a conversation, found out by rendering small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from pipeline.prep.records import Message
from pipeline.prep.turns import Call, RowError, check_text
from pipeline.tokens import RenderError, Tokenizer

THINKING_BEGINS: Final = "<think>"
THINKING_ENDS: Final = "</think>"

Tools = Sequence[Mapping[str, Any]]

PROBE: Final = "draftdeckprobe"
"""A word that is in no template."""

_ASKED: Final = Message("user", "q")


class Template:
    """A tokenizer's chat template.

    ``shows_tools``: whether declared tools are in what it writes. ``arguments``: the form in which it writes a tool
    call's arguments as they are, JSON text or an object; "none" where it shows no calls.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ends = tokenizer.special_tokens()
        tool = {
            "type": "function",
            "function": {"name": PROBE, "description": "d", "parameters": {"type": "object", "properties": {}}},
        }
        self.shows_tools = PROBE in self._probe([_ASKED], tools=[tool])
        self.arguments: Literal["text", "object", "none"] = "none"
        called = Message("assistant", "", calls=(Call("functions.f:0", "f", f'{{"{PROBE}": "x"}}'),))
        answered = [_ASKED, called, Message("tool", "r", call_id="functions.f:0")]
        for form in ("object", "text"):  # of a template that takes both, the text, because nothing is lost of it
            if f'{{"{PROBE}": "x"}}' in self._probe(answered, parsed=form == "object"):
                self.arguments = "object" if form == "object" else "text"
        if self.arguments == "none" and PROBE in self._probe(answered, parsed=True):
            self.arguments = "object"  # written in a form of the template's own
        self.knows_reasoning = "reasoning_content" in tokenizer.template
        self._around = self._around_thinking()

    def render(self, messages: Sequence[Message], tools: Tools = (), *, generation_prompt: bool = False) -> str:
        """The conversation as the model sees it. Raises RowError."""
        return self._render(messages, tools, generation_prompt, parsed=self.arguments == "object")

    def marked(self, messages: Sequence[Message], tools: Tools) -> tuple[str, list[tuple[int, int]]]:
        """The conversation and the character spans between the template's generation markers. Raises RowError."""
        given = _dicts(messages, parsed=self.arguments == "object")
        try:
            text, spans = self.tokenizer.render_marked(given, tools=tools)
        except RenderError as error:
            raise RowError(f"the chat template refuses it: {error}") from error
        check_text(text)
        return text, spans

    def prepared(self, messages: Sequence[Message], tools: Tools) -> list[Message]:
        """The messages in the form this template takes. Raises RowError where it cannot show what they hold."""
        if tools and not self.shows_tools:
            raise RowError("the chat template shows no tools")
        if self.arguments == "none" and any(message.calls for message in messages):
            raise RowError("the chat template shows no tool calls")
        return [self._split(message) for message in messages] if self.knows_reasoning else list(messages)

    def _split(self, message: Message) -> Message:
        """An answer with its thinking written before it, in two parts."""
        text = message.content.lstrip()
        thought, ended, answer = text.removeprefix(THINKING_BEGINS).partition(THINKING_ENDS)
        if message.role != "assistant" or message.reasoning or not ended or not text.startswith(THINKING_BEGINS):
            return message
        before, after, gap = self._around
        thought = thought.removeprefix(before).removesuffix(after)
        return replace(message, reasoning=thought, content=answer.removeprefix(gap))

    def _around_thinking(self) -> tuple[str, str, str]:
        """The white space the template itself puts around a turn's thinking: before it, after it, after its tag."""
        text = self._probe([_ASKED, Message("assistant", f"{PROBE}a", f"{PROBE}r")])
        before, _, rest = text.partition(f"{PROBE}r")
        between = rest.partition(f"{PROBE}a")[0]
        after, ended, gap = between.partition(THINKING_ENDS)
        opened = before.rpartition(THINKING_BEGINS)[2]
        if not ended or (opened + after + gap).strip():
            return "", "", ""
        return opened, after, gap

    def _probe(self, messages: Sequence[Message], tools: Tools = (), *, parsed: bool = False) -> str:
        try:
            return self._render(messages, tools, False, parsed=parsed)
        except RowError:
            return ""

    def _render(self, messages: Sequence[Message], tools: Tools, generation_prompt: bool, *, parsed: bool) -> str:
        given = _dicts(messages, parsed=parsed)
        try:
            text = self.tokenizer.render(given, generation_prompt=generation_prompt, tools=tools)
        except RenderError as error:
            raise RowError(f"the chat template refuses it: {error}") from error
        check_text(text)  # arguments of calls may be text with escapes in it, which the template is given as objects
        return text


def _dicts(messages: Sequence[Message], *, parsed: bool) -> list[dict[str, Any]]:
    try:
        return [message.for_template(parsed=parsed) for message in messages]
    except (ValueError, RecursionError):
        raise RowError("tool call arguments that are not JSON") from None
