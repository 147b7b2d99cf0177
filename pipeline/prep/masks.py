"""Token ids and the loss mask of a sample: 1 on what the target wrote, 0 elsewhere.

The rendered text is tokenized span by span: the server tokenizes a prompt by itself too, so the tokens at the seams are
the ones it sees. What is masked in is proved by decoding it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.prep import spans
from pipeline.prep.records import Message
from pipeline.prep.spans import Rendered
from pipeline.prep.template import Template, Tools
from pipeline.prep.turns import MaskError, RowError
from pipeline.tokens import Tokenizer


@dataclass(frozen=True)
class Sample:
    """A tokenized conversation. ``unmasked_turns``: assistant turns the template does not show as they are; no loss."""

    input_ids: list[int]
    loss_mask: list[int]
    unmasked_turns: int = 0


def prompt_text(messages: Sequence[Message], template: Template, tools: Tools = ()) -> str:
    """The text of a prompt, up to where the target begins to write. Raises RowError."""
    prepared = template.prepared(messages, tools)
    text = template.render(prepared, tools, generation_prompt=True)
    if prepared[-1].content.strip() not in text:
        raise RowError("the chat template leaves out the last turn")
    return text


def rendered(
    messages: Sequence[Message], template: Template, turns: Literal["assistant", "all-but-system"], tools: Tools = ()
) -> Rendered:
    """Render a sample and find what carries loss. Raises RowError."""
    find = spans.of_all_but_system if turns == "all-but-system" else spans.of_assistant
    return find(template.prepared(messages, tools), tools, template)


def tokenized(sample: Rendered, tokenizer: Tokenizer) -> Sample | RowError:
    """Ids and mask of one rendered sample; a RowError where it is unusable."""
    parts = pieces(sample)
    ids = tokenizer.encode([text for text, _ in parts])
    return join(sample, [(one, loss) for one, (_, loss) in zip(ids, parts, strict=True)], tokenizer)


def join(sample: Rendered, parts: Sequence[tuple[list[int], int]], tokenizer: Tokenizer) -> Sample | RowError:
    """A sample of its pieces' ids with their loss; a RowError where it is unusable."""
    input_ids = [token for ids, _ in parts for token in ids]
    loss_mask = [loss for ids, loss in parts for _ in ids]
    if not any(loss_mask):
        return MaskError("no loss: the mask is all 0")
    if all(loss_mask):
        return MaskError("loss on everything: the mask is all 1")
    written = "".join(sample.text[start:end] for start, end in sample.spans)
    masked_in = "".join(tokenizer.decode(ids) for ids, loss in parts if loss)
    if masked_in != written:
        return MaskError("the text does not survive the tokenizer")
    return Sample(input_ids, loss_mask, sample.unmasked_turns)


def pieces(sample: Rendered) -> list[tuple[str, int]]:
    """The text in pieces with their loss, none of them empty."""
    found = []
    at = 0
    for start, end in sample.spans:
        found += [(sample.text[at:start], 0), (sample.text[start:end], 1)]
        at = end
    found.append((sample.text[at:], 0))
    return [(text, loss) for text, loss in found if text]
