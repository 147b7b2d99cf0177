"""A tokenizer of Kimi's kind, made on the spot: tiktoken ranks, code of its own, no offsets, its special ids and turns.

The ids are the model's own; the vocabulary below them is small, so most of it is a gap.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

SPECIAL = {
    "[BOS]": 163584, "[EOS]": 163585, "<|im_end|>": 163586, "<|im_user|>": 163587, "<|im_assistant|>": 163588,
    "<|start_header_id|>": 163590, "<|end_header_id|>": 163591, "[EOT]": 163593, "<|im_system|>": 163594,
    "<|tool_calls_section_begin|>": 163595, "<|tool_calls_section_end|>": 163596, "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598, "<|tool_call_end|>": 163599, "<|im_middle|>": 163601,
    "<|media_begin|>": 163602, "<|media_content|>": 163603, "<|media_end|>": 163604, "<|media_pad|>": 163605,
    "<think>": 163606, "</think>": 163607, "[UNK]": 163838, "[PAD]": 163839,
}  # fmt: skip

# Turns without newlines. History, up to the last answer that calls no tool, has an empty pair in place of thinking.
TEMPLATE = """
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{%- set past = namespace(end=-1) -%}
{%- for message in messages -%}
  {%- if message['role'] == 'assistant' and not message.get('tool_calls') -%}
    {%- set past.end = loop.index0 -%}
  {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
  {%- if message['role'] == 'assistant' -%}
    {{- '<|im_assistant|>assistant<|im_middle|><think>' -}}
    {%- if loop.index0 > past.end and message.get('reasoning_content') -%}
      {{- message['reasoning_content'] -}}
    {%- endif -%}
    {{- '</think>' + message['content'] -}}
    {%- if message.get('tool_calls') -%}
      {{- '<|tool_calls_section_begin|>' -}}
      {%- for call in message['tool_calls'] -%}
        {%- set arguments = call['function']['arguments'] -%}
        {{- '<|tool_call_begin|>' + call['id'] + '<|tool_call_argument_begin|>' -}}
        {{- arguments if arguments is string else arguments | tojson -}}
        {{- '<|tool_call_end|>' -}}
      {%- endfor -%}
      {{- '<|tool_calls_section_end|>' -}}
    {%- endif -%}
  {%- elif message['role'] == 'tool' -%}
    {{- '<|im_system|>tool<|im_middle|>## Return of ' + message['tool_call_id'] + '\\n' + message['content'] -}}
  {%- else -%}
    {{- '<|im_' + message['role'] + '|>' + message['role'] + '<|im_middle|>' + message['content'] -}}
  {%- endif -%}
  {{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_assistant|>assistant<|im_middle|><think>' -}}
  {%- if thinking is defined and thinking is false -%}{{- '</think>' -}}{%- endif -%}
{%- endif -%}
"""

CODE = '''
import base64
from pathlib import Path

import tiktoken
from transformers import AddedToken, PreTrainedTokenizer

SPLIT = r"""\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+|\\s*[\\r\\n]+| ?\\p{L}+|\\s+"""
SPECIAL = @SPECIAL@


class TikTokenTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tiktoken.model"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file, added_tokens_decoder=None, **kwargs):
        lines = Path(vocab_file).read_bytes().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
        self.special_tokens = dict(SPECIAL)
        self.model = tiktoken.Encoding("kimi", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens=self.special_tokens)
        self.pieces = {number: token.decode("latin-1") for token, number in ranks.items()}
        self.numbers = {text: number for number, text in self.pieces.items()}
        own = {number: AddedToken(text, special=True, normalized=False) for text, number in SPECIAL.items()}
        super().__init__(added_tokens_decoder=own, **kwargs)

    @property
    def vocab_size(self):
        return max(self.special_tokens.values()) + 1

    def get_vocab(self):
        return {**self.numbers, **self.special_tokens}

    def _tokenize(self, text, **kwargs):
        return [self.pieces[number] for number in self.model.encode(text, disallowed_special=())]

    def _convert_token_to_id(self, token):
        return self.numbers.get(token, self.special_tokens.get(token, self.special_tokens["[UNK]"]))

    def _convert_id_to_token(self, index):
        return self.pieces.get(index, "")

    def convert_tokens_to_string(self, tokens):
        parts = [token.encode() if token in self.special_tokens else token.encode("latin-1") for token in tokens]
        return b"".join(parts).decode(errors="replace")
'''


def make(
    folder: Path, *, shifted: bool = False, wrong: Mapping[str, int] | None = None, template: str = TEMPLATE
) -> Path:
    """Write the model's folder.

    ``shifted``: its code numbers the special tokens without gaps, as a conversion to a fast tokenizer has done.
    ``wrong``: tokens to which its code gives these ids.
    """
    table = {text: min(SPECIAL.values()) + at for at, text in enumerate(SPECIAL)} if shifted else dict(SPECIAL)
    table |= wrong or {}
    folder.mkdir(parents=True, exist_ok=True)
    tokens = [bytes([number]) for number in range(256)]
    for word in (" the", " return", " function", "What", " is", "<function"):
        tokens += [word.encode()[:length] for length in range(2, len(word) + 1)]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(dict.fromkeys(tokens))]
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
    (folder / "tokenization_kimi.py").write_text(CODE.replace("@SPECIAL@", repr(table)))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": {"vocab_size": 163840}}))
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(number): {"content": text, "special": text not in ("<think>", "</think>"), "lstrip": False,
                          "rstrip": False, "normalized": False, "single_word": False}
            for text, number in SPECIAL.items()
        },
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
