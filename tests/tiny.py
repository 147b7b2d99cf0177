"""A tiny target with random weights, and servers as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.waiting import free_port, wait_until

ROOT = Path(__file__).parent.parent
WORDS = ("<unk>", "<s>", "</s>", *(f"w{number}" for number in range(29)), *(str(number) for number in range(64)))
VOCABULARY = len(WORDS)
END = 2


def make_target(folder: Path, *, layers: int = 2, positions: int = 256) -> Path:
    """A Llama with random weights in float32 and a word tokenizer, saved under ``folder``."""
    import tokenizers
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=1,
        eos_token_id=END,
        pad_token_id=END,
        tie_word_embeddings=False,
    )
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            # Random weights of the usual size always repeat one token.
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    model.save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    return folder


@dataclass
class Process:
    """A running server: where it listens, where its output goes."""

    process: subprocess.Popen[bytes]
    url: str
    port: int
    log: Path

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def healthy(self) -> bool:
        assert self.process.poll() is None, self.output()
        try:
            return httpx.get(f"{self.url}/health", timeout=30, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def wait_healthy(self) -> None:
        wait_until(self.healthy, f"{self.url}/health", timeout_s=60)


@contextmanager
def server(module: str, log: Path, *arguments: str, port: int | None = None) -> Iterator[Process]:
    """``python -m MODULE --port P ARGUMENTS`` for as long as the body runs."""
    port = port or free_port()
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--port", str(port), *arguments],
            cwd=ROOT,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )
    try:
        yield Process(process, f"http://127.0.0.1:{port}", port, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def reference_server(folder: Path, log: Path, *arguments: str) -> Iterator[Process]:
    """The reference server on ``folder``, in float32, answering."""
    options = ("--model-path", str(folder), "--dtype", "float32", "--enable-metrics", *arguments)
    with server("pipeline.demo.server", log, *options) as running:
        running.wait_healthy()
        yield running
