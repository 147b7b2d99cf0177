"""The target's tokenizer and chat template: text in, token ids out, and the check that its ids are the model's own.

Text is rendered first and tokenized after, never both in one call: that works for slow tokenizers without offsets, and
a part of the text can be tokenized by itself. No torch is needed for any of it.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pipeline import known_models
from pipeline.files import content_hash
from pipeline.model_files import (
    REFERENCE,
    Declared,
    ModelFileError,
    Reference,
    declared_tokens,
    model_type,
    references,
    vocabulary_size,
)

PROBES: Final = (
    "Hello, world! How are you?",
    "def f(x):\n\treturn x ** 2  # 3.14",
    "naïve café, 你好, привет, 🙂",
    "  two  spaces\n\n\nthree lines",
)
"""Text that must survive encode, decode, encode."""

_ASIDE: Final = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

_MARK: Final = re.compile(r"<\|[^\s|<>'\"]{1,40}\|>")


class TokenizerError(Exception):
    """A tokenizer that cannot be loaded or whose ids are not the model's own; one line that says what to do.

    ``final``: it will be the same next time.
    """

    def __init__(self, line: str, *, final: bool = False) -> None:
        super().__init__(line)
        self.final = final


class RenderError(Exception):
    """The chat template refuses these messages; one line."""


def hide_torch() -> None:
    """Keep transformers from importing torch in this process: 2 s and 100 MB that a tokenizer has no use for.

    For the entry point of a process only: whatever else is in the process sees a transformers without torch.
    """
    if "transformers" in sys.modules or "torch" in sys.modules:
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would advise to install torch
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None
    try:
        importlib.import_module("transformers.configuration_utils")
    finally:
        del modules["torch"]  # a tokenizer's remote code may still import it


@dataclass(frozen=True)
class Tokenizer:
    """A Hugging Face tokenizer with the variables its chat template is rendered with."""

    hf: Any
    model: str
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the template, e.g. {"thinking": True}
    unchecked: tuple[str, ...] = ()  # what nobody could say about it, in words

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The messages as the model sees them. Raises RenderError where the template refuses them."""
        try:
            text = self.hf.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                **self.variables,
            )
        except Exception as error:  # templates raise jinja's errors, but TypeErrors and KeyErrors too
            raise RenderError(_line(error)) from error
        return str(text)

    def render_marked(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[str, list[tuple[int, int]]]:
        """The rendered messages and the character spans between the template's generation markers."""
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, spans = render_jinja_template(
                conversations=[list(messages)],
                tools=list(tools) or None,
                chat_template=self.hf.get_chat_template(),
                return_assistant_tokens_mask=True,
                add_generation_prompt=False,
                **{**self.hf.special_tokens_map, **self.variables},
            )
        except Exception as error:
            raise RenderError(_line(error)) from error
        return str(texts[0]), [(int(start), int(end)) for start, end in spans[0]]

    @property
    def template(self) -> str:
        """The source of its chat template, of all of them where it has several; "" for none."""
        source = self.hf.chat_template or ""
        return source if isinstance(source, str) else "\n".join(str(part) for part in source.values())

    def id_of(self, token: str) -> int | None:
        """The id of a token's text; None where the tokenizer knows none."""
        try:
            number = self.hf.convert_tokens_to_ids(token)
        except (KeyError, ValueError):
            return None
        return number if isinstance(number, int) else None

    @property
    def marked(self) -> bool:
        """Whether the template marks what the model writes."""
        template = self.hf.chat_template
        return isinstance(template, str) and "endgeneration" in template

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text; special tokens written out in a text become their ids, none are added."""
        if not texts:
            return []
        if self.hf.is_fast:  # past the library's call, which also makes offsets and masks of every text
            encodings = self.hf.backend_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [encoding.ids for encoding in encodings]
        ids: list[list[int]] = self.hf(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def begin(self, texts: Sequence[str]) -> Callable[[], list[list[int]]]:
        """Begin to encode; the result waits for the ids. A Rust tokenizer works beside the interpreter meanwhile."""
        if not self.hf.is_fast:
            ids = self.encode(texts)
            return lambda: ids
        return _ASIDE.submit(self.encode, texts).result

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included, spaces as they are."""
        return str(self.hf.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def special_tokens(self) -> tuple[str, ...]:
        """The texts of all special and added tokens, longest first."""
        texts = {str(token) for token in self.hf.get_added_vocab()} | {
            str(token) for token in self.hf.all_special_tokens
        }
        return tuple(sorted((text for text in texts if text), key=lambda text: (-len(text), text)))

    def vocabulary_size(self) -> int:
        """One more than the highest id the tokenizer can give."""
        return int(max(self.hf.get_vocab().values())) + 1

    def fingerprint(self) -> str:
        """Names what this tokenizer makes of text: its vocabulary, template, template variables and some encodings."""
        return content_hash(
            {
                "vocabulary": content_hash(self.hf.get_vocab()),
                "template": self.hf.chat_template,
                "variables": dict(self.variables),
                "probes": self.encode(PROBES),
            }
        )


def load(
    model: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    variables: Mapping[str, Any] | None = None,
    family: str = "",
) -> Tokenizer:
    """Load the tokenizer of a folder or hub id and check it. Raises TokenizerError.

    It is checked against the model's own files and what is known of its family, which is the one its config.json names
    where none is given.
    """
    from transformers import AutoTokenizer

    if Path(model).is_absolute() and not Path(model).is_dir():
        raise TokenizerError(f"tokenizer of {model} not loaded: no such folder here; give a folder with a tokenizer")
    # It warns of texts longer than the model's context; here those are counted, not warned of.
    logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)
    try:
        hf = AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:  # the library raises OSError, ValueError, ImportError and what remote code raises
        advice = "give a folder with a tokenizer, or a hub id this machine can reach"
        if "trust_remote_code" in str(error):
            advice = "its tokenizer is code of the model's own: allow it with --trust-remote-code"
        raise TokenizerError(f"tokenizer of {model} not loaded: {_line(error)}; {advice}") from error
    if hf.is_fast:
        hf.backend_tokenizer.no_truncation()  # a tokenizer's file may ask for both
        hf.backend_tokenizer.no_padding()
    tokenizer = Tokenizer(hf, model, dict(variables or {}))
    try:
        problems, unknown = _truth(tokenizer, revision, family)
    except ModelFileError as error:
        raise TokenizerError(str(error)) from error
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise TokenizerError(f"tokenizer of {model} is wrong: {'; '.join(problems[:3])}{more}", final=True)
    return replace(tokenizer, unchecked=tuple(unknown))


def target_vocabulary(tokenizer: Tokenizer, revision: str | None = None) -> int:
    """Rows of the target's output head, from its config.json; without one, what the tokenizer can give."""
    try:
        return vocabulary_size(tokenizer.model, revision) or tokenizer.vocabulary_size()
    except ModelFileError as error:
        raise TokenizerError(str(error)) from error


def _truth(tokenizer: Tokenizer, revision: str | None, family: str) -> tuple[list[str], list[str]]:
    """What is wrong with a tokenizer, and what nobody can say about it. Raises ModelFileError."""
    family = family or model_type(tokenizer.model, revision)
    table = getattr(tokenizer.hf, "special_tokens", None)  # of tokenizers that are code of their own, Kimi's for one
    own = [
        Declared(text, number, "its own code")
        for text, number in (table.items() if isinstance(table, dict) else ())
        if isinstance(text, str) and isinstance(number, int)
    ]
    declared = [*declared_tokens(tokenizer.model, revision), *known_models.IDS.get(family, ()), *own]
    given = [*references(tokenizer.model, revision), *known_models.REFERENCES.get(family, ())]
    unknown = [
        f"the template writes {mark}, which is no token of this model"
        for mark in dict.fromkeys(_MARK.findall(tokenizer.template))
        if len(tokenizer.encode([mark])[0]) != 1
    ]
    if not any(token.text in tokenizer.template for token in declared):
        unknown.append("no file of the model gives ids to the tokens in its template: they are taken as they are")
    if not given:
        unknown.append(f"no {REFERENCE} and no known family: what the template writes is not compared with anything")
    return check(tokenizer, declared, given), unknown


def check(tokenizer: Tokenizer, declared: Sequence[Declared], given: Sequence[Reference] = ()) -> list[str]:
    """What is wrong with a tokenizer, in words, the worst first; nothing where it can be trusted."""
    if not tokenizer.template:
        return ["it has no chat template; a chat model is needed"]
    problems = []
    special = {str(token) for token in tokenizer.hf.all_special_tokens}
    for token in sorted(declared, key=lambda each: each.text not in tokenizer.template):
        found = tokenizer.id_of(token.text)
        if found != token.id:
            problems.append(
                f"special token {token.text!r} has id {found}, {token.where} says {token.id}: "
                "use a transformers version that does not renumber them"
            )
        elif token.text in tokenizer.template or token.text in special:
            if tokenizer.encode([token.text])[0] != [token.id]:
                problems.append(f"special token {token.text!r} is not encoded as its id {token.id}")
            elif (text := tokenizer.decode([token.id])) != token.text:
                problems.append(f"special token {token.text!r}: its id {token.id} is decoded to {text!r}")
    for probe in PROBES:
        (once,) = tokenizer.encode([probe])
        (twice,) = tokenizer.encode([tokenizer.decode(once)])
        if once != twice or not once:
            problems.append(f"text does not survive encoding: {probe!r}")
    return [*dict.fromkeys(problems), *filter(None, (_compare(tokenizer, reference) for reference in given))]


def _compare(tokenizer: Tokenizer, reference: Reference) -> str:
    """How the template differs from a reference; "" where it does not."""
    try:
        # With the variables it was written with; what the operator gives the template is another matter.
        text = replace(tokenizer, variables=reference.variables).render(
            reference.messages, generation_prompt=reference.generation_prompt, tools=reference.tools
        )
    except RenderError as error:
        return f"the chat template refuses a conversation of {reference.where}: {error}"
    shown = text[: len(reference.text)] if reference.begins else text
    if shown != reference.text:
        same = _alike(shown, reference.text)
        return (
            f"the chat template writes {shown[max(0, same - 20) : same + 20]!r}, "
            f"{reference.where} says {reference.text[max(0, same - 20) : same + 20]!r}"
        )
    (ids,) = tokenizer.encode([reference.text]) if reference.ids is not None else ([],)
    if ids != list(reference.ids or []):
        wanted = list(reference.ids or [])
        at = _alike(ids, wanted)
        found, expected = (str(each[at]) if at < len(each) else "none" for each in (ids, wanted))
        return f"token {at} of a text of {reference.where} has id {found}, expected is {expected}"
    return ""


def _alike(left: Sequence[Any], right: Sequence[Any]) -> int:
    """How many of the first items of both are the same."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _line(error: BaseException) -> str:
    """The first line of an error's text, without control characters, at most 300 characters."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return "".join(character for character in text if character.isprintable())[:300]
