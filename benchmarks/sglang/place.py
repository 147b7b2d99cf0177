"""Where a run lives: a loopback container, questions, and a config that grows by a dataset from one run to the next."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import tomlkit

from console.demo import _free_port, cache
from console.demo_config import demo_config
from pipeline.demo import container, target
from pipeline.demo.questions import questions
from pipeline.files import write_atomically

FLAGS: Final[dict[str, str | int | bool]] = {
    "context-length": 2048,
    "cuda-graph-max-bs-decode": 160,
    "enable-metrics": True,
    # The kernels that every build has; and a start without the capture of prefill graphs, half of its time.
    "attention-backend": "triton",
    "sampling-backend": "pytorch",
    "grammar-backend": "none",
    "cuda-graph-backend-prefill": "disabled",
}
REFERENCE_FLAGS: Final[dict[str, str | int | bool]] = {
    "context-length": 1024,
    "enable-metrics": True,
    "max-running-requests": 8,
}
CARRIED: Final = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME")
"""What an SSH session may lack of this shell's environment and SGLang needs."""


@dataclass(frozen=True)
class Scale:
    """How much is asked. ``warm`` prompts go before what is measured."""

    engine: Literal["sglang", "reference"]
    warm: int
    prompts: int
    concurrency: int
    max_new_tokens: int
    temperature: float = 0.7


FULL: Final = Scale("sglang", 600, 5000, 150, 512)
QUICK: Final = Scale("sglang", 100, 600, 150, 512)
REFERENCE: Final = Scale("reference", 4, 12, 8, 16)


@dataclass(frozen=True)
class Place:
    """Everything of one benchmark under ``root``."""

    root: Path
    scale: Scale
    model: Path
    server_port: int

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def workdir(self) -> Path:
        return self.root / "work"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def sources(self, dataset: str) -> Path:
        return self.root / "sources" / dataset

    def records(self, dataset: str) -> Path:
        return self.workdir / "data" / "prompts" / dataset / "records.jsonl"

    def answers(self, dataset: str) -> Path:
        return self.workdir / "data" / "responses" / f"{dataset}.jsonl"


def prepare(root: Path, scale: Scale) -> Place:
    """Make the model where it is missing, the questions and the container."""
    place = Place(root, scale, cache() / "models" / "smollm2-135m-instruct", _free_port())
    target.make_target(place.model)
    asked = questions(scale.warm + scale.prompts)
    rows = [msgspec.json.encode({"messages": [{"role": "user", "content": one}]}) + b"\n" for one in asked]
    for dataset, part in (
        ("warm", rows[: scale.warm]),
        ("first", rows[scale.warm :]),
        ("second", rows[scale.warm :]),
        ("killed", rows[scale.warm :]),
    ):
        place.sources(dataset).mkdir(parents=True)
        write_atomically(place.sources(dataset) / "train.jsonl", b"".join(part))
    container.start(root / "container")
    return place


def write_config(place: Place, *datasets: str) -> None:
    """The demo's config with these datasets, and the server that is measured."""
    reached = container.read(place.root / "container")
    assert reached is not None
    text = demo_config(
        port=reached.port,
        user=reached.user,
        key=reached.key,
        known_hosts=reached.known_hosts,
        workdir=str(place.workdir),
        python=sys.executable,
        model_dir=str(place.model),
        sources={},
        size=1,
        server_port=place.server_port,
    )
    config: dict[str, Any] = tomlkit.parse(text).unwrap()
    scale, real = place.scale, place.scale.engine == "sglang"
    config["run"]["name"] = "sglang"
    config["datasets"] = {
        name: {"kind": "prompts", "source": str(place.sources(name)), "shape": "messages", "partition": "short"}
        for name in datasets
    }
    config["prep"]["heldout_share"] = 0.0
    config["serve"]["engine"] = scale.engine
    config["serve"]["flags"] = FLAGS if real else REFERENCE_FLAGS
    config["serve"]["readiness"]["start"] = "10 m"
    config["generate"]["pilot"] = 100
    config["generate"]["partitions"] = {
        "short": {
            "concurrency": scale.concurrency,
            "max_new_tokens": scale.max_new_tokens,
            "temperature": scale.temperature,
        }
    }
    if real:
        config["resources"]["serve"] = {"gpus": 1}
        variables = config["environment"]["variables"]
        del variables["OMP_NUM_THREADS"]
        variables.update({name: os.environ[name] for name in CARRIED if name in os.environ})
    place.config.write_text(tomlkit.dumps(config))
