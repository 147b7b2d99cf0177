"""What is known of model families by heart: ids of special tokens, and conversations with their text.

Only what is certain stands here. A check that knows too much would stop a run for nothing.
"""

from __future__ import annotations

from typing import Final

from pipeline.model_files import Declared, Reference

_KIMI: Final = "what is known of kimi_k25"
_SAID: Final = ({"role": "system", "content": "S 1"}, {"role": "user", "content": "U 2"})
_BEGUN: Final = "<|im_system|>system<|im_middle|>S 1<|im_end|><|im_user|>user<|im_middle|>U 2<|im_end|>"

IDS: Final[dict[str, tuple[Declared, ...]]] = {
    "kimi_k25": tuple(
        Declared(text, number, _KIMI)
        for text, number in {
            "[BOS]": 163584,
            "[EOS]": 163585,
            "<|im_end|>": 163586,
            "<|im_user|>": 163587,
            "<|im_assistant|>": 163588,
            "<|im_system|>": 163594,
            "<|tool_calls_section_begin|>": 163595,
            "<|tool_calls_section_end|>": 163596,
            "<|tool_call_begin|>": 163597,
            "<|tool_call_argument_begin|>": 163598,
            "<|tool_call_end|>": 163599,
            "<|im_middle|>": 163601,
            "<|media_begin|>": 163602,
            "<|media_content|>": 163603,
            "<|media_end|>": 163604,
            "<|media_pad|>": 163605,
            "<think>": 163606,
            "</think>": 163607,
        }.items()
    )
}
"""By the name of a family: tokens whose ids every model of it has."""

REFERENCES: Final[dict[str, tuple[Reference, ...]]] = {
    "kimi_k25": (
        Reference(_SAID, _BEGUN, _KIMI),
        Reference(
            (*_SAID, {"role": "assistant", "content": "A 3"}, {"role": "user", "content": "U 4"}),
            _BEGUN + "<|im_assistant|>assistant<|im_middle|><think></think>A 3<|im_end|>"
            "<|im_user|>user<|im_middle|>U 4<|im_end|>",
            _KIMI,
        ),
        Reference(_SAID, _BEGUN + "<|im_assistant|>assistant<|im_middle|>", _KIMI, generation_prompt=True, begins=True),
    )
}
"""Turns of one header, one body and one end token, without line breaks; thinking of the past is an empty pair."""
