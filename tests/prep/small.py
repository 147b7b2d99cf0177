"""A small real tokenizer with a chat template, made on the spot, and a way to run a prep with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from pipeline.files import complete_lines
from pipeline.prep.settings import Settings
from pipeline.prep.stage import run
from pipeline.progress import PROGRESS_VARIABLE, parse_line
from pipeline.protocol import Progress, Result

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}{% endgeneration %}{% else %}{{ message['content'] }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Thinking is kept in the last turn and dropped from earlier ones.
FORGETFUL = (
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and not loop.last %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# No turn that is over shows thinking, not even the last; the prompt opens it.
HIDING = FORGETFUL.replace(" and not loop.last", "").replace(
    "assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}"
)
# The prompt opens the thinking; a finished turn shows it only where there is some.
OPENED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['reasoning_content'] %}"
    "{{ '<think>\n' + message['reasoning_content'] + '\n</think>\n\n' }}{% endif %}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
STRICT = (
    "{% for message in messages %}{% if message['role'] not in ('user', 'assistant') %}"
    "{{ raise_exception('only user and assistant are known') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Tools in a system turn, calls as JSON that the template writes.
CALLING = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message.get('tool_calls') or [] %}{{ '<call>' + ({'name': call['function']['name'], "
    "'arguments': call['function']['arguments']} | tojson) + '</call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer(folder: Path, template: str = CHATML) -> Path:
    """Write a byte-level BPE tokenizer of about 400 tokens; it can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["What does the function return? It returns the number of words."] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": template,
        "added_tokens_decoder": {
            str(number): {"content": text, "special": True, "lstrip": False, "rstrip": False, "normalized": False,
                          "single_word": False}
            for number, text in enumerate(SPECIAL)
        },
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@dataclass(frozen=True)
class Outcome:
    """What a prep left."""

    code: int
    result: Result
    progress: list[Progress]
    records: list[dict[str, Any]]
    manifest: dict[str, Any] | None


def run_prep(
    monkeypatch: Any, folder: Path, source: Path | str, target: Path, *, kind: Any = "prompts", **settings: Any
) -> Outcome:
    """Run a prep in this process, its progress in a file, its output in ``folder/out``."""
    progress_file = folder / "progress.jsonl"
    progress_file.unlink(missing_ok=True)
    monkeypatch.setenv(PROGRESS_VARIABLE, str(progress_file))
    given: dict[str, Any] = {
        "dataset": "T1",
        "kind": kind,
        "source": str(source),
        "target": str(target),
        "context_length": 2048,
        "max_new_tokens": 64 if kind == "prompts" else None,
        "out": folder / "out",
        **settings,
    }
    code = run(Settings(**given))
    lines = [line for data in complete_lines(progress_file) if (line := parse_line(data)) is not None]
    out = given["out"]
    manifest = out / "manifest.json"
    result = lines[-1].result
    assert result is not None, "the last line is the result"
    return Outcome(
        code=code,
        result=result,
        progress=[line.progress for line in lines if line.progress is not None],
        records=[json.loads(line) for line in complete_lines(out / "records.jsonl")],
        manifest=json.loads(manifest.read_bytes()) if manifest.exists() else None,
    )


def write_lines(path: Path, rows: list[Any]) -> Path:
    """A JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
