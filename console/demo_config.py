"""The demo's config.toml: the same run on a small target, local files and the reference server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import tomlkit


@dataclass(frozen=True)
class _Source:
    kind: str
    shape: str
    partition: str = ""
    split: str = ""
    group: str = ""
    schema: str = ""


SOURCES: Final[Mapping[str, _Source]] = {
    "A1": _Source("answers", "messages", schema="messages with tool output under the role user"),
    "A2": _Source("answers", "auto", schema="messages with thinking in the answers"),
    "B1": _Source("prompts", "dialogue", "short", schema="one string with USER: and ASSISTANT: in it"),
    "B2": _Source("prompts", "pair", "short", schema="columns input and output; the largest set, sampled"),
    "B3": _Source("prompts", "auto", "short", schema="columns problem and solution"),
    "B4": _Source("prompts", "auto", "short", split="train_sft", schema="messages; there is no split train"),
    "B5": _Source("prompts", "conversations", "short", schema="from/value with the roles user and assistant"),
    "B6": _Source("prompts", "auto", "short", schema="from/value with the roles human and gpt"),
    "B7": _Source("prompts", "auto", "short", schema="messages as a JSON string"),
    "B8": _Source("prompts", "trajectory", "long", group="instance_id", schema="nested turns, role ai, text null"),
}
"""The ten datasets in the schemas of the public ones."""

FIRST_LINE: Final = "# The demo: the whole pipeline on a small model, in a container on this machine.\n"
"""What tells a demo's config from another one."""

_TEMPLATE: Final = """\

[run]
name = "demo"

[host]
address = "127.0.0.1"
port = {port}
user = {user}
workdir = {workdir}
python = {python}
known_hosts = {known_hosts}
identity_files = [{key}]
ssh_config = ""                       # the demo's server is in nobody's ssh_config

[target]
model = "HuggingFaceTB/SmolLM2-135M-Instruct"
path = {model_dir}
family = "llama"
hidden_size = 576
layers = 30
vocab_size = 49152
context_length = 8192
stop_ids = [2]                        # <|im_end|>

[draft]
path = "models/draft"
aux_layers = [2, 15, 27]
draft_vocab_size = 8192
intermediate_size = 1536
attention_heads = 9
key_value_heads = 3
head_dim = 64
rms_norm_eps = 1e-5
rope_theta = 100000.0

[environment.variables]
OMP_NUM_THREADS = "1"                 # with more, threads of ten jobs spin at each other's barriers
TOKENIZERS_PARALLELISM = "false"
HF_HUB_OFFLINE = "1"                  # everything is here already

{datasets}
[prep]
heldout_share = 0.1

[serve]
engine = "reference"
readiness.start = "5 m"

[serve.flags]
max-running-requests = 10             # both partitions together
context-length = 2048
enable-metrics = true

[serve.baseline]
port = {server_port}

[generate]
pilot = {pilot}
side_by_side = true
retries = 8

[generate.partitions.short]
concurrency = 8
max_new_tokens = 48
temperature = 0.7

[generate.partitions.long]
concurrency = 2
max_new_tokens = 96
temperature = 0.7

[merge]
max_lost_share = 0.05

[extract]
engine = "transformers"
disk_budget = "2 GB"
shard_size = "64 MB"
mean_tokens = 200

[train]
max_length = 1024

[resources]
reserve = "500 MB"

[resources.prep]
memory = "500 MB"

[resources.dedup]
memory = "300 MB"

[resources.serve]
memory = "2.5 GB"

[resources.generate]
memory = "300 MB"

[resources.merge]
memory = "500 MB"

[policy.prep]
restart = "never"                     # so that a killed one is seen, and r brings it back
stall = "2 m"

[policy.dedup]
stall = "2 m"

[policy.serve]
restart = "always"
grace = "10 s"

[policy.generate]
restart = "on-failure"
limit = 20
window = "10 m"
grace = "10 s"
stall = "3 m"

[policy.merge]
stall = "2 m"
"""

_DATASET: Final = """\
[datasets.{name}]
kind = "{kind}"
source = {source}
shape = "{shape}"
take = {take}
{more}note = {note}
"""


def demo_config(
    *,
    port: int,
    user: str,
    key: str,
    known_hosts: str,
    workdir: str,
    python: str,
    model_dir: str,
    sources: Mapping[str, str],
    size: int,
    server_port: int,
) -> str:
    """The text of the demo's config.toml.

    ``port``, ``user``, ``key`` and ``known_hosts`` are the loopback container's; ``sources`` maps the names of
    ``SOURCES`` to local files; ``size`` is the number of rows kept of every dataset. Raises KeyError for another name.
    """
    datasets = "\n".join(_dataset(name, source, size) for name, source in sources.items())
    return FIRST_LINE + _TEMPLATE.format(
        port=port,
        user=_text(user),
        key=_text(key),
        known_hosts=_text(known_hosts),
        workdir=_text(workdir),
        python=_text(python),
        model_dir=_text(model_dir),
        datasets=datasets,
        server_port=server_port,
        pilot=max(1, min(5, size // 4)),
    )


def _dataset(name: str, source: str, size: int) -> str:
    what = SOURCES[name]
    named = {"split": what.split, "partition": what.partition, "group": what.group}
    return _DATASET.format(
        name=name,
        kind=what.kind,
        source=_text(source),
        shape=what.shape,
        take=size,
        more="".join(f"{key} = {_text(value)}\n" for key, value in named.items() if value),
        note=_text(what.schema),
    )


def _text(value: str) -> str:
    return tomlkit.item(value).as_string()
