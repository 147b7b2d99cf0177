"""What a run of generate is told: partitions with their sampling, and how it goes about failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pipeline.generate.judge import REASONS, Policy


class SettingsError(ValueError):
    """A setting that cannot be used; the text names it, what was found and what is allowed."""


class Partition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prompts that run together: how many at once on each server, and how they are sampled."""

    name: str
    concurrency: int
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


class Sampling(msgspec.Struct, frozen=True):
    """What is sent with a prompt and stored with its answer. Nothing is left to the server's defaults."""

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Settings:
    """A whole run. Of these only the sampling, the stop ids and the model change what is written."""

    servers: tuple[str, ...]
    prompts: tuple[Path, ...]
    partitions: tuple[Partition, ...]
    out: Path
    dedup: Path | None = None
    pilot: int = 100
    seed: int = 0
    retries: int = 8
    stop_ids: tuple[int, ...] = ()
    model_path: str | None = None
    side_by_side: bool = False
    overlap: bool = False  # the next prompts start while the last of the ones before are still answered
    adaptive: int = 0  # least slots of a server whose slots follow its load; 0: they do not
    timeout_floor_s: float = 120.0
    policy: Policy = field(default_factory=Policy)
    suspect_after: int = 3  # crashes of the server under the same prompt
    max_set_aside_share: float = 0.5  # of the prompts settled lately; above it the run ends

    def partition(self, name: str) -> Partition | None:
        """The partition of that name; with only one, prompts that name none belong to it."""
        if not name and len(self.partitions) == 1:
            return self.partitions[0]
        return next((one for one in self.partitions if one.name == name), None)

    def sampling(self, partition: Partition, budget: int | None) -> Sampling:
        """A prompt may ask for fewer tokens than its partition allows, never for more."""
        return Sampling(
            temperature=partition.temperature,
            top_p=partition.top_p,
            top_k=partition.top_k,
            max_new_tokens=min(budget, partition.max_new_tokens) if budget else partition.max_new_tokens,
            stop_token_ids=self.stop_ids,
        )


def parse_partition(text: str) -> Partition:
    """Read one ``--partition``. Raises SettingsError."""
    try:
        partition = msgspec.json.decode(text, type=Partition)
    except msgspec.MsgspecError as error:
        known = ", ".join(Partition.__struct_fields__)
        raise SettingsError(f"--partition {text}: {error}. Expected a JSON object with {known}") from None
    for wrong, allowed in (
        (not partition.name, "name must not be empty"),
        (partition.concurrency < 1, "concurrency must be 1 or more"),
        (partition.max_new_tokens < 1, "max_new_tokens must be 1 or more"),
        (partition.temperature < 0, "temperature must be 0 or more"),
        (not 0 < partition.top_p <= 1, "top_p must be above 0 and at most 1"),
        (partition.top_k < 1 and partition.top_k != -1, "top_k must be 1 or more, or -1 for all"),
    ):
        if wrong:
            raise SettingsError(f"--partition {text}: {allowed}")
    return partition


def parse_policy(text: str) -> Policy:
    """Read ``--faulty``. Raises SettingsError."""
    try:
        policy = msgspec.json.decode(text, type=Policy)
    except msgspec.MsgspecError as error:
        known = ", ".join(Policy.__struct_fields__)
        raise SettingsError(
            f"--faulty {text}: {error}. Expected a JSON object with {known}; what is wrong with an answer is one of "
            f"{', '.join(REASONS)}"
        ) from None
    if policy.retries < 0:
        raise SettingsError(f"--faulty {text}: retries must be 0 or more")
    if both := set(policy.retry) & set(policy.set_aside):
        raise SettingsError(f"--faulty {text}: {', '.join(sorted(both))} is in retry and in set_aside")
    return policy


def check_names(partitions: tuple[Partition, ...]) -> None:
    """Raises SettingsError for a name given twice."""
    names = [one.name for one in partitions]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"--partition {name} is given twice")
