"""Datasets on the hub: which files a configuration and split are, and why they cannot be had.

The files are resolved by the datasets library and read by our own readers, which go on where a row is broken. The
libraries are imported here alone: local files do not need them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import httpx

from pipeline.prep.download import BUSY, DamagedError, fetch, pause
from pipeline.prep.packed import stem
from pipeline.prep.roles import printable
from pipeline.prep.sources import KINDS, READ_HERE, DataFile, FileSource, SourceError, chosen_by

T = TypeVar("T")

CONVERTED: Final = "give revision refs/convert/parquet, where the hub has converted it, or a local copy"
QUESTIONS: Final = 4  # times that one is asked; the job's own restarts come on top
ASKED_AT_ONCE: Final = 500  # files whose size and hash are asked for in one request
NETWORK: Final = ("Connection", "Connect", "Timeout", "MaxRetry", "ProtocolError", "ReadError", "LocalEntryNotFound")


def open_hub(
    name: str,
    config: str | None,
    split: str | None,
    revision: str | None,
    patterns: Sequence[str],
    tell: Callable[[str], None],
) -> HubSource:
    """A hub dataset at one commit, whichever name the revision was given by. Raises SourceError."""
    from huggingface_hub import HfApi

    def ask(question: Callable[[], T]) -> T:
        return _patiently(question, name, tell)

    commit = str(ask(lambda: HfApi().dataset_info(name, revision=revision)).sha)
    if not re.fullmatch(r"[0-9a-f]{40}", commit):  # it becomes a folder here
        raise SourceError(f'{name}: the hub gives no commit but "{printable(commit, 60)}": check HF_ENDPOINT')
    rows: float | None = None
    if patterns and not config and not split:
        names = sorted(ask(lambda: HfApi().list_repo_files(name, repo_type="dataset", revision=commit)))
        names = [each for each in names if stem(each).endswith(KINDS)]
    else:
        split, names, rows = ask(lambda: _resolve(name, config, split, commit))
    chosen = chosen_by(names, patterns)
    if not chosen:
        shown = printable(", ".join(names[:5]) or "none that is read here", 300)
        raise SourceError(f"{name}: no file like {', '.join(patterns)}; there are: {shown}")
    if strange := [each for each in chosen if not stem(each).endswith(KINDS)]:
        raise SourceError(f"{name}: {printable(strange[0])} is not read here ({READ_HERE}): {CONVERTED}")
    if outside := [each for each in chosen if _leads_away(each)]:
        raise SourceError(f'{name}: the hub lists "{printable(outside[0], 120)}", a path out of the dataset\'s folder')
    found = {
        each.path: each
        for start in range(0, len(chosen), ASKED_AT_ONCE)
        for each in ask(_details(name, commit, chosen[start : start + ASKED_AT_ONCE]))
    }
    if missing := [each for each in chosen if each not in found]:
        raise SourceError(f"{name}: the hub lists a file that it does not have: {printable(missing[0], 120)}")
    details = [found[each] for each in chosen]  # the hub answers in any order
    digests = [each.lfs.sha256 if each.lfs else each.blob_id for each in details]
    files = [
        DataFile(each.path, each.size, partial(_here, name, commit, each.path, digest, tell))
        for each, digest in zip(details, digests, strict=True)
    ]
    return HubSource({"hub": name, "config": config, "split": split, "commit": commit, "files": chosen}, files, rows)


class HubSource(FileSource):
    """The files of a hub dataset, each brought when it is its turn."""

    def __init__(self, identity: dict[str, Any], files: Sequence[DataFile], rows: float | None) -> None:
        self._identity = identity
        super().__init__(files, rows)

    def fingerprint(self) -> Any:
        """The id, configuration, split and files, and the commit they are of."""
        return self._identity


def _here(name: str, commit: str, path: str, digest: str, tell: Callable[[str], None]) -> Path:
    """A file on this host: from the library's cache, or kept beside it. Raises SourceError."""
    from huggingface_hub import constants, get_token, hf_hub_url, try_to_load_from_cache

    cached = try_to_load_from_cache(name, path, revision=commit, repo_type="dataset")
    if isinstance(cached, str):
        return Path(cached)
    target = Path(constants.HF_HOME, "draftdeck", name.replace("/", "--"), commit, path)
    url = hf_hub_url(name, path, repo_type="dataset", revision=commit)
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    for left in (1, 0):
        try:
            fetch(url, target, headers=headers, digest=digest, tell=tell)
            break
        except DamagedError as error:
            if not left:
                raise SourceError(f"{name}: {error}; what came was thrown away", final=False) from error
        except OSError as error:
            raise SourceError(f"{target}: {printable(error, 200)}", final=False) from error
        except httpx.HTTPError as error:
            raise _refused(error, name) from error
    return target


def _resolve(name: str, config: str | None, split: str | None, commit: str) -> tuple[str, list[str], float | None]:
    """The split, its files, and its rows where the dataset says how many."""
    import datasets

    builder = datasets.load_dataset_builder(name, config, revision=commit)
    found = builder.config.data_files
    if not found:
        raise SourceError(f"{name}: the hub did not say which files it has; try again", final=False)
    names = [str(each) for each in found]
    chosen = split or ("train" if "train" in names else names[0] if len(names) == 1 else None)
    if chosen is None or chosen not in names:
        raise SourceError(f'{name} has no split "{chosen or "train"}"; there are: {", ".join(names)}')
    base = f"hf://datasets/{name}@{commit}/"
    files = [str(each) for each in found[chosen]]
    if far := [each for each in files if not each.startswith(base)]:
        raise SourceError(f"{name}: its files are elsewhere ({printable(far[0], 120)}): {CONVERTED}")
    rows = getattr((builder.info.splits or {}).get(chosen), "num_examples", None)
    return chosen, [each.removeprefix(base) for each in files], float(rows) if rows else None


def _leads_away(path: str) -> bool:
    return path.startswith("/") or ".." in PurePosixPath(path).parts


def _details(name: str, commit: str, paths: list[str]) -> Callable[[], list[Any]]:
    from huggingface_hub import HfApi

    return lambda: list(HfApi().get_paths_info(name, paths, repo_type="dataset", revision=commit))


def _patiently(question: Callable[[], T], name: str, tell: Callable[[str], None]) -> T:
    """Ask the hub, again where it is busy or away. Raises SourceError."""
    tries = 0
    while True:
        try:
            return question()
        except SourceError:
            raise
        except Exception as error:  # the libraries and their networks each raise their own
            refused = _refused(error, name)
            tries += 1
            if refused.final or _switched_off(error) or tries >= QUESTIONS:
                raise refused from error
            response = _response(error)
            seconds = pause(response, tries)
            what = type(error).__name__ if response is None else str(response.status_code)
            tell(f"{name}: the hub gives {what}, asked again in {seconds:.0f} s")
            time.sleep(seconds)


def _refused(error: BaseException, name: str) -> SourceError:
    status = getattr(_response(error), "status_code", None)
    kinds = {type(each).__name__ for each in _chain(error)}
    passing = status in BUSY or any(word in kind for word in NETWORK for kind in kinds)
    return SourceError(reason(error, name), final=not passing)


def reason(error: BaseException, name: str) -> str:
    """Why a hub dataset cannot be read, in one line with what to do."""
    text = str(error)
    lower = text.lower()
    kind = type(error).__name__
    status = getattr(_response(error), "status_code", None)
    if "invalid credentials" in lower:
        return f"{name}: the hub refuses the token in HF_TOKEN: store a valid one"
    gated = kind == "GatedRepoError" or "is a gated dataset" in lower
    if kind in {"DatasetNotFoundError", "RepositoryNotFoundError"} and not gated:
        return (
            f"{name} is not on the hub, nor a file or folder on this host; without a token a private one looks the same"
        )
    if gated or status in (401, 403):
        return f"{name} is gated or private: accept its terms on the hub and give HF_TOKEN to the job"
    if _switched_off(error):
        return (
            f"{name} is not in the cache and the hub is switched off (HF_HUB_OFFLINE): fetch it first or switch it on"
        )
    if "scripts are no longer supported" in lower:
        return f"{name} is a dataset script, which is not run: name its data files with files, or {CONVERTED}"
    if "config name is missing" in lower or kind == "BuilderConfigNotFoundError" or "not found. available" in lower:
        return f"{name}: {printable(text, 300)}; choose with config"
    if kind == "RevisionNotFoundError":
        return f"{name} has no such revision: check revision"
    if kind in {"DataFilesNotFoundError", "EmptyDatasetError"}:
        return f"{name} has no data files that are read here ({READ_HERE}): {CONVERTED}"
    if status == 429:
        return f"{name}: the hub asks to slow down (429); what has come is kept, and it goes on when started again"
    if status == 404:
        return f"{name}: the hub lists a file that it does not have: {printable(text, 200)}"
    if status in BUSY:
        return f"{name}: the hub is out of order ({status}); what has come is kept, and it goes on when started again"
    if isinstance(error, ConnectionError) or any(word in kind for word in NETWORK):
        return f"{name}: the hub cannot be reached ({kind}): check this host's network, proxy and HF_ENDPOINT"
    return f"{name}: {kind}: {printable(text, 300)}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _response(error: BaseException) -> Any:
    return next((found for each in _chain(error) if (found := getattr(each, "response", None)) is not None), None)


def _switched_off(error: BaseException) -> bool:
    return "offline" in str(error).lower() or any(
        type(each).__name__ == "OfflineModeIsEnabled" for each in _chain(error)
    )
