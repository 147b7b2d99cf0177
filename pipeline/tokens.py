"""The target's tokenizer and chat template: text in, token ids out, and the check that its ids are the model's own.

Text is rendered first and tokenized after, never both in one call: that works for slow tokenizers without offsets, and
a part of the text can be tokenized by itself. No torch is needed for any of it.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pipeline.files import content_hash

PROBES: Final = (
    "Hello, world! How are you?",
    "def f(x):\n\treturn x ** 2  # 3.14",
    "naïve café, 你好, привет, 🙂",
    "  two  spaces\n\n\nthree lines",
)
"""Text that must survive encode, decode, encode."""

TOKENIZER_FILES: Final = ("tokenizer_config.json", "tokenizer.json", "added_tokens.json")


class TokenizerError(Exception):
    """A tokenizer that cannot be loaded or whose ids are not the model's own; one line that says what to do."""


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
    def marked(self) -> bool:
        """Whether the template marks what the model writes."""
        template = self.hf.chat_template
        return isinstance(template, str) and "endgeneration" in template

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text; special tokens written out in a text become their ids, none are added."""
        if not texts:
            return []
        ids: list[list[int]] = self.hf(list(texts), add_special_tokens=False)["input_ids"]
        return ids

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
) -> Tokenizer:
    """Load the tokenizer of a folder or hub id and check it. Raises TokenizerError."""
    from transformers import AutoTokenizer

    # It warns of texts longer than the model's context; here those are counted, not warned of.
    logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)
    try:
        hf = AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:  # the library raises OSError, ValueError, ImportError and what remote code raises
        advice = "give a folder with a tokenizer, or a hub id this machine can reach"
        if "trust_remote_code" in str(error):
            advice = "its tokenizer is code of the model's own: allow it with --trust-remote-code"
        raise TokenizerError(f"tokenizer of {model} not loaded: {_line(error)}; {advice}") from error
    tokenizer = Tokenizer(hf, model, dict(variables or {}))
    problems = check(tokenizer, declared_tokens(model, revision))
    if problems:
        raise TokenizerError(f"tokenizer of {model} is wrong: {'; '.join(problems[:3])}")
    return tokenizer


def check(tokenizer: Tokenizer, declared: Mapping[str, int]) -> list[str]:
    """What is wrong with a tokenizer, in words; nothing where it can be trusted.

    ``declared`` are the special tokens and the ids that the model's own files give them.
    """
    problems = []
    if not tokenizer.hf.chat_template:
        problems.append("it has no chat template; a chat model is needed")
    for text, expected in declared.items():
        found = tokenizer.hf.convert_tokens_to_ids(text)
        if found != expected:
            problems.append(
                f"special token {text!r} has id {found}, the model's files say {expected}: "
                "use a transformers version that does not renumber them"
            )
        elif tokenizer.encode([text])[0] != [expected]:
            problems.append(f"special token {text!r} is not encoded as its id {expected}")
    for probe in PROBES:
        (once,) = tokenizer.encode([probe])
        (twice,) = tokenizer.encode([tokenizer.decode(once)])
        if once != twice or not once:
            problems.append(f"text does not survive encoding: {probe!r}")
    return problems


def target_vocabulary(tokenizer: Tokenizer, revision: str | None = None) -> int:
    """Rows of the target's output head, from its config.json; without one, what the tokenizer can give."""
    path = _file_of(tokenizer.model, "config.json", revision)
    if path is not None:
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TokenizerError(f"{path} cannot be read: {_line(error)}; fetch the model again") from error
        # A vision-language model keeps the size with its text part.
        for part in (config, config.get("text_config") or {}):
            if isinstance(part.get("vocab_size"), int):
                return int(part["vocab_size"])
    return tokenizer.vocabulary_size()


def declared_tokens(model: str, revision: str | None = None) -> dict[str, int]:
    """The special tokens and ids written in the model's own files; empty where they name none."""
    declared: dict[str, int] = {}
    for name in TOKENIZER_FILES:
        path = _file_of(model, name, revision)
        if path is None:
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TokenizerError(f"{path} cannot be read: {_line(error)}; fetch the model again") from error
        declared.update(_tokens_of(name, content))
    return declared


def _tokens_of(name: str, content: Any) -> dict[str, int]:
    if name == "added_tokens.json" and isinstance(content, dict):
        return {str(text): int(number) for text, number in content.items()}
    if name == "tokenizer_config.json" and isinstance(content, dict):
        decoder = content.get("added_tokens_decoder") or {}
        return {str(token["content"]): int(number) for number, token in decoder.items() if token.get("special")}
    if name == "tokenizer.json" and isinstance(content, dict):
        added = content.get("added_tokens") or []
        return {str(token["content"]): int(token["id"]) for token in added if token.get("special")}
    return {}


def _file_of(model: str, name: str, revision: str | None) -> Path | None:
    if Path(model).is_dir():
        path = Path(model) / name
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    # The tokenizer was just loaded from the hub, so what there is lies in the cache.
    found = try_to_load_from_cache(model, name, revision=revision)
    return Path(found) if isinstance(found, str) else None


def _line(error: BaseException) -> str:
    """The first line of an error's text, without control characters, at most 300 characters."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return "".join(character for character in text if character.isprintable())[:300]
