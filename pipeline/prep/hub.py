"""Rows of a dataset on the hub, streamed. The libraries are imported here alone: local files do not need them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from pipeline.prep.roles import printable
from pipeline.prep.sources import Row, SourceError

COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class HubSource:
    """A hub dataset at one commit, whichever name the revision was given by."""

    def __init__(self, name: str, config: str | None, split: str | None, revision: str | None) -> None:
        self._name = name
        self._config = config
        self._revision = revision if revision and COMMIT.fullmatch(revision) else _commit(name, revision)
        self._split, self._total = self._choose(split)

    def fingerprint(self) -> Any:
        """The id, configuration and split, and the commit they were read at."""
        return {"hub": self._name, "config": self._config, "split": self._split, "commit": self._revision}

    def total(self) -> float | None:
        """Rows of the split, where the dataset says it."""
        return self._total

    def rows(self) -> Iterator[Row]:
        """Every row. Raises SourceError when the hub stops to answer."""
        import datasets

        try:
            stream = datasets.load_dataset(
                self._name, self._config, split=self._split, revision=self._revision, streaming=True
            )
            for position, row in enumerate(stream):
                yield Row(position, _given(row))
        except Exception as error:  # the library, its readers and its network each raise their own
            raise SourceError(reason(error, self._name)) from error

    def _choose(self, split: str | None) -> tuple[str, float | None]:
        import datasets

        try:
            builder = datasets.load_dataset_builder(self._name, self._config, revision=self._revision)
            splits = builder.info.splits or {}
            names = list(splits) or datasets.get_dataset_split_names(self._name, self._config, revision=self._revision)
        except Exception as error:
            raise SourceError(reason(error, self._name)) from error
        chosen = split or ("train" if "train" in names else names[0] if len(names) == 1 else None)
        if chosen is None or chosen not in names:
            raise SourceError(f'{self._name} has no split "{chosen or "train"}"; there are: {", ".join(names)}')
        rows = getattr(splits.get(chosen), "num_examples", None) if splits else None
        return chosen, float(rows) if rows else None


def reason(error: BaseException, name: str) -> str:
    """Why a hub dataset cannot be read, in one line with what to do."""
    text = str(error)
    lower = text.lower()
    kind = type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    if "gated" in lower or status in (401, 403):
        return f"{name} is gated or private: accept its terms on the hub and give HF_TOKEN to the job"
    if "offline" in lower or kind == "OfflineModeIsEnabled":
        return (
            f"{name} is not in the cache and the hub is switched off (HF_HUB_OFFLINE): fetch it first or switch it on"
        )
    if "scripts are no longer supported" in lower:
        return f"{name} is a dataset script, which is not run: give --revision refs/convert/parquet or a local copy"
    if "config name is missing" in lower or kind == "BuilderConfigNotFoundError" or "not found. available" in lower:
        return f"{name}: {printable(text, 300)}; choose with --config"
    if kind in {"DatasetNotFoundError", "RepositoryNotFoundError"} or status == 404:
        return (
            f"{name} is not on the hub, nor a file or folder on this host; without a token a private one looks the same"
        )
    if kind == "RevisionNotFoundError":
        return f"{name} has no such revision: check --revision"
    if status == 429:
        return f"{name}: the hub asks to slow down (429); it goes on when the job is started again later"
    if isinstance(error, ConnectionError) or any(
        word in kind for word in ("Connection", "Connect", "Timeout", "MaxRetry", "ProtocolError", "ReadError")
    ):
        return f"{name}: the hub cannot be reached ({kind}): check this host's network, proxy and HF_ENDPOINT"
    return f"{name}: {kind}: {printable(text, 300)}"


def _commit(name: str, revision: str | None) -> str:
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(name, revision=revision).sha)
    except Exception as error:
        raise SourceError(reason(error, name)) from error


def _given(row: Any) -> Callable[[], Any]:
    return lambda: row
