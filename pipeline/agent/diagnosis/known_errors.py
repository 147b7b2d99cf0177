"""Errors that are known by their words: a table of what is found in a message, what to call it, what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Cause:
    """A known error: a short key, the words for the screen, the line it was seen in, what to do."""

    key: str
    reason: str
    seen: str
    advice: str


def _says(pattern: str) -> Callable[[str], bool]:
    return lambda text: bool(re.search(pattern, text))


def _hub(pattern: str) -> Callable[[str], bool]:
    """A status of the hub, or of a mirror of it, and not of a server of our own."""
    return lambda text: bool(re.search(pattern, text) and re.search(_HUB, text))


_HUB: Final = r"huggingface|hf\.co|hf-mirror|\b[Hh]ub\b|HTTP Error \d+ thrown while requesting"
_GATED: Final = (
    r"GatedRepoError|[Cc]annot access gated repo|You are trying to access a gated repo"
    r"|is a gated dataset|is gated or private|Access to (model|dataset) \S+ is restricted|awaiting a review"
)
_NO_REVISION: Final = r"RevisionNotFoundError|is not a valid git identifier|Revision '[^']*' doesn't exist"
_MISSING: Final = (
    r"RepositoryNotFoundError|Repository Not Found|DatasetNotFoundError|is not a valid model identifier"
    r"|doesn't exist on the Hub|Couldn't find a dataset|is not on the hub"
)
_GET_ACCESS: Final = "accept its terms on the hub, then store a token: draftdeck secret set HF_TOKEN; or waive the job"
_NO_GPU: Final = (
    r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device|CUDA driver version is insufficient"
    r"|Torch not compiled with CUDA enabled|CUDA driver initialization failed"
)

_KNOWN: Final[tuple[tuple[str, str, Callable[[str], bool], str], ...]] = (
    (
        "disk-full", "disk full",
        _says(r"No space left on device|\bErrno 28\b|Disk quota exceeded|\bErrno 122\b"),
        "free space (old attempts, hidden states, caches), then restart it where it has not: it resumes",
    ),
    (
        "cuda-oom", "CUDA out of memory",
        _says(
            r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
            r"|cudaErrorMemoryAllocation"
        ),
        "nvidia-smi shows who holds the GPU's memory; if it is this job alone, lower mem-fraction-static, the context"
        " length or the batch",
    ),
    (
        "kv-memory", "no GPU memory left for the KV cache",
        _says(r"Please try to increase --mem-fraction-static"),
        "raise mem-fraction-static or tp-size, and see that nothing else holds the GPUs (nvidia-smi)",
    ),
    (
        "gpu-index", "an index out of range on the GPU",
        _says(r"CUDA error: device-side assert"),
        "usually a token id or a label beyond the model's vocabulary: see that tokenizer, data and model belong"
        " together. CUDA_LAUNCH_BLOCKING=1 shows where",
    ),
    (
        "gpu-fault", "GPU fault",
        _says(
            r"uncorrectable ECC|\bXid\b|fallen off the bus|GPU is lost"
            r"|CUDA error: (an illegal memory access|unspecified launch failure|misaligned address)"
        ),
        "look at nvidia-smi -q and dmesg for Xid and ECC errors: a GPU that shows them needs a reset or a ticket. Where"
        " there are none it is a kernel's bug: try another attention-backend or version",
    ),
    (
        "gpu-missing", "fewer GPUs than it asks for",
        _says(r"CUDA error: invalid device ordinal"),
        "compare nvidia-smi -L and CUDA_VISIBLE_DEVICES with tp-size, processes and gpus in the config",
    ),
    (
        "gpu-missing", "no GPU seen",
        _says(_NO_GPU),
        "nvidia-smi must list the GPUs in this container, CUDA_VISIBLE_DEVICES must name them, and this Python's torch"
        " must be a CUDA build",
    ),
    (
        "port-in-use", "port in use",
        _says(
            r"(?i)address already in use|\bErrno 98\b|EADDRINUSE|port \d+ is (already )?(in use|not available|occupied)"
        ),
        "another process holds the port (ss -ltnp shows which): stop it, or give this one another port",
    ),
    (
        "nccl", "NCCL failure",
        _says(
            r"NCCL error|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclRemoteError|DistBackendError"
            r"|[Ww]atchdog caught collective operation timeout"
        ),
        "read the first rank's error: the others wait for it. NCCL_DEBUG=INFO tells more; without NVLink or P2P:"
        " NCCL_P2P_DISABLE=1 and disable-custom-all-reduce",
    ),
    ("gated", "gated", _says(_GATED), _GET_ACCESS),
    (
        "missing", "no such revision on the hub", _says(_NO_REVISION),
        "correct the revision in the config: a branch, a tag or a commit of that repository",
    ),
    (
        "missing", "not found on the hub", _says(_MISSING),
        "check the id in the config; a private one needs a token: draftdeck secret set HF_TOKEN",
    ),
    ("gated", "no access", _hub(r"\b40[13] |Unauthorized|Forbidden|Invalid user token"), _GET_ACCESS),
    (
        "missing", "not found on the hub", _hub(r"\b404 |(?<!Local)EntryNotFoundError"),
        "check the id, configuration, split and revision in the config",
    ),
    (
        "rate-limited", "rate limited by the hub", _hub(r"\b429\b|Too Many Requests|the hub asks to slow down"),
        "wait and restart: it resumes; with a token the limit is higher: draftdeck secret set HF_TOKEN",
    ),
    (
        "hub-down", "the hub is down or overloaded",
        _hub(r"Server error '5\d\d|\b50[0234] Server Error|HTTP Error 5\d\d"),
        "wait and restart: it resumes; status.huggingface.co tells more",
    ),
    (
        "dataset-script", "dataset needs a script",
        _says(r"[Dd]ataset scripts are no longer supported"),
        "use the hub's converted branch: revision = \"refs/convert/parquet\"",
    ),
    (
        "network", "no connection",
        _says(
            r"Max retries exceeded|Name or service not known|Temporary failure in name resolution"
            r"|Network is unreachable|LocalEntryNotFoundError|OfflineModeIsEnabled|[Cc]ouldn't connect to|ConnectError"
            r"|Connection refused|ConnectionRefusedError|No route to host|the hub cannot be reached"
        ),
        "see that the container reaches that address (proxy variables, DNS), or that the server it asks is up",
    ),
    (
        "module", "missing module",
        _says(r"ModuleNotFoundError|ImportError:|No module named|cannot open shared object file"),
        "install it into the Python that runs this job, or point host.python or serve.python to the right one",
    ),
    (
        "shared-memory", "shared memory too small",
        _says(r"insufficient shared memory|out of shared memory|Unexpected bus error encountered in worker"),
        "give the container a larger /dev/shm (--shm-size, --ipc=host)",
    ),
    (
        "allocation", "memory allocation refused",
        _says(r"^MemoryError\b|Cannot allocate memory|\bErrno 12\b|can't allocate memory|std::bad_alloc"),
        "the process asked for more than the machine gives: lower its batch, or start it with less beside it",
    ),
)  # fmt: skip

_REPOSITORY: Final = r"(?:huggingface\.co|hf\.co|(?:[Uu][Rr][Ll]|at):? '?https?://[^/\s]+)/(?!docs/)(?:api/)?(?:datasets/|models/)?([\w.-]+/[\w.-]*\w)"
_SUBJECTS: Final = {
    "module": r"No module named '?([\w.]+)|([\w.+-]+\.so[\w.]*): cannot open",
    "gated": r"(?:model|[Dd]ataset) '?([\w.-]+/[\w.-]*\w)|" + _REPOSITORY,
    "missing": r"[Dd]ataset '?([\w.-]+/[\w.-]*\w)|([\w./-]*\w)'? is not a local folder|" + _REPOSITORY,
    "network": r"connect to '([^']+)'|host='([\w.-]+)'|for url '(https?://[^'/]+)",
    "port-in-use": r"address \('[^']*', (\d+)\)|[Pp]ort:? (\d+)|:(\d{2,5})\b",
    "cuda-oom": r"Tried to allocate ([\d.]+ [KMGT]i?B)(?:\. GPU (\d+) .* of which ([\d.]+ [KMGT]i?B) is free)?",
    "nccl": r"OpType=(\w+)(?:.*?Timeout\(ms\)=(\d+))?|Last error:\n(.+)",
}
"""What an error is about, by the groups of the first match."""


def known(text: str) -> Cause | None:
    """The first known error that an exception's message, or a line, tells of."""
    for key, reason, matches, advice in _KNOWN:
        if matches(text):
            seen = next((line for line in text.splitlines() if matches(line)), text.splitlines()[0])
            return Cause(key, _with_subject(key, reason, text), seen.strip(), advice)
    return None


def _with_subject(key: str, reason: str, text: str) -> str:
    found = re.search(_SUBJECTS[key], text, re.MULTILINE) if key in _SUBJECTS else None
    groups = [group for group in found.groups() if group] if found else []
    if not groups:
        return reason
    if key == "cuda-oom" and len(groups) == 3:
        return f"{reason}: {groups[0]} wanted on GPU {groups[1]}, {groups[2]} free"
    if key == "nccl" and len(groups) == 2:
        return f"{reason}: {groups[0]} not done after {int(groups[1]) / 1000:.0f} s"
    return f"{reason}: {groups[0].rstrip()}"
