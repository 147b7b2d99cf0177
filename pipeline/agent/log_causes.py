"""What the end of a log says about why a job ended: its tracebacks, and a table of known errors. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pipeline.agent.logs import plain

_HEADER: Final = "Traceback (most recent call last):"
_CHAINED: Final = ("The above exception was the direct cause", "During handling of the above exception")
_FRAME: Final = re.compile(r'^\s+File "')
_CONTINUED: Final = 12
"""Lines of an exception's message looked at beyond its first."""
_LAST: Final = 40
"""Lines at the end of a log in which an error without a traceback is looked for."""


@dataclass(frozen=True)
class Traceback:
    """A Python traceback: the line it begins in, and its exception, first line and whole message."""

    line: int
    error: str
    message: str
    place: str = ""  # 'File "…", line …, in …' of the innermost frame


@dataclass(frozen=True)
class Cause:
    """A known error: a short key, the words for the screen, the line it was seen in, what to do."""

    key: str
    reason: str
    seen: str
    advice: str


@dataclass(frozen=True)
class LogEnd:
    """The end of a log as plain lines, none of them blank."""

    lines: tuple[str, ...]
    tracebacks: tuple[Traceback, ...]

    def find(self, pattern: str) -> tuple[int, str] | None:
        """The first line that matches, with its number."""
        compiled = re.compile(pattern)
        return next(((number, line) for number, line in enumerate(self.lines) if compiled.search(line)), None)

    @property
    def last(self) -> str:
        return self.lines[-1].strip() if self.lines else ""


def read_log_end(data: bytes) -> LogEnd:
    """Split and clean the tail of a log, blank lines left out. A progress bar's carriage returns end lines."""
    text = plain(data.decode(errors="replace"), keep="\r\n")
    lines = tuple(line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip())
    if "Exception Group Traceback" in text:  # its lines are drawn as a tree
        lines = tuple(re.sub(r"^ {2,}[|+] ", "", line) for line in lines)
    return LogEnd(lines, tuple(_tracebacks(lines)))


def cause_in(log: LogEnd, root: Traceback | None = None) -> Cause | None:
    """The known error of ``root``, else of the last traceback and what that was raised from, else of the last lines.

    Where there is a traceback, other lines do not count: they may tell of troubles that were overcome.
    """
    if root is None and log.tracebacks:
        root = log.tracebacks[-1]
    if root is not None:
        return known(root.message) or known(_raised_from(log, root).message)
    return next((cause for line in log.lines[-_LAST:] if (cause := known(line))), None)


def _raised_from(log: LogEnd, root: Traceback) -> Traceback:
    """The traceback that ``root`` was raised from, if the log says so directly above it; else ``root``."""
    before = [found for found in log.tracebacks if found.line < root.line]
    if before and any(line.startswith(_CHAINED) for line in log.lines[max(0, root.line - 3) : root.line]):
        return before[-1]
    return root


def _tracebacks(lines: tuple[str, ...]) -> list[Traceback]:
    found = []
    number = 0
    while number < len(lines):
        header = lines[number].find(_HEADER)
        if header < 0 and not _FRAME.match(lines[number]):
            number += 1
            continue
        began, prefix = number, lines[number][:header] if header > 0 else ""
        place = ""
        number += header >= 0
        # Launchers put "[rank0]: " before every line of a traceback, loggers their time before the first.
        while number < len(lines) and (line := lines[number].removeprefix(prefix))[:1] in (" ", "\t"):
            if _FRAME.match(line):
                place = line.strip()
            number += 1
        if number < len(lines):
            message = [line.removeprefix(prefix) for line in lines[number : number + _CONTINUED]]
            ends = (at for at, line in enumerate(message) if at and (_HEADER in line or line.startswith(_CHAINED)))
            end = next(ends, len(message))
            found.append(Traceback(began, message[0], "\n".join(message[:end]), place))
            number += 1
    return found


# --- Known errors ---------------------------------------------------------------------------------------------------


def _says(pattern: str) -> Callable[[str], bool]:
    return lambda text: bool(re.search(pattern, text))


def _hub(pattern: str) -> Callable[[str], bool]:
    """A status of the hub, not one of a server of our own."""
    return lambda text: bool(re.search(pattern, text) and re.search(r"huggingface|hf\.co|\bHub\b", text))


_GATED: Final = (
    r"GatedRepoError|[Cc]annot access gated repo|You are trying to access a gated repo"
    r"|is a gated dataset|Access to (model|dataset) \S+ is restricted|awaiting a review"
)
_MISSING: Final = (
    r"RepositoryNotFoundError|RevisionNotFoundError|Repository Not Found|DatasetNotFoundError"
    r"|is not a valid model identifier|is not a valid git identifier|doesn't exist on the Hub|Couldn't find a dataset"
)
_GET_ACCESS: Final = "accept its terms on the hub, then store a token: draftdeck secret set HF_TOKEN; or waive the job"

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
            r"|cudaErrorMemoryAllocation|Please try to increase --mem-fraction-static"
        ),
        "see that nothing else holds the GPUs; then lower mem-fraction-static, the context length or the batch",
    ),
    (
        "gpu-fault", "GPU fault",
        _says(
            r"uncorrectable ECC|\bXid\b|fallen off the bus|GPU is lost"
            r"|CUDA error: (an illegal memory access|unspecified launch failure|misaligned address|device-side assert)"
        ),
        "look at nvidia-smi -q and dmesg for Xid and ECC errors; a GPU that shows them needs a reset or a ticket",
    ),
    (
        "nccl", "NCCL failure",
        _says(
            r"NCCL error|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclRemoteError|DistBackendError"
            r"|[Ww]atchdog caught collective operation timeout"
        ),
        "read the first rank's error; NCCL_DEBUG=INFO tells more. Without NVLink or P2P: NCCL_P2P_DISABLE=1 and"
        " disable-custom-all-reduce",
    ),
    (
        "port-in-use", "port in use",
        _says(r"(?i)address already in use|\bErrno 98\b|port \d+ is (already )?(in use|not available|occupied)"),
        "another server holds the port (ss -ltnp shows it): stop it, or give this one another port",
    ),
    ("gated", "gated", _says(_GATED), _GET_ACCESS),
    (
        "missing", "not found on the hub", _says(_MISSING),
        "check the id and revision in the config; a private one needs a token: draftdeck secret set HF_TOKEN",
    ),
    ("gated", "no access", _hub(r"\b40[13]\b|Unauthorized|Forbidden|Invalid user token"), _GET_ACCESS),
    (
        "missing", "not found on the hub", _hub(r"\b404\b|EntryNotFoundError"),
        "check the id, configuration, split and revision in the config",
    ),
    (
        "rate-limited", "rate limited by the hub", _hub(r"\b429\b|Too Many Requests"),
        "wait and restart: it resumes; with a token the limit is higher: draftdeck secret set HF_TOKEN",
    ),
    (
        "dataset-script", "dataset needs a script",
        _says(r"[Dd]ataset scripts are no longer supported"),
        "use the hub's converted branch: revision = \"refs/convert/parquet\"",
    ),
    (
        "network", "no network",
        _says(
            r"Max retries exceeded|Name or service not known|Temporary failure in name resolution"
            r"|Network is unreachable|LocalEntryNotFoundError|OfflineModeIsEnabled|[Cc]ouldn't connect to|ConnectError"
            r"|Connection refused|ConnectionRefusedError|No route to host"
        ),
        "see that the container reaches that address (proxy variables, DNS), or that the server it asks is up",
    ),
    (
        "module", "missing module",
        _says(r"ModuleNotFoundError|ImportError:|No module named|cannot open shared object file"),
        "install it into the Python that runs this job, or point the config to the right Python",
    ),
    (
        "shared-memory", "shared memory too small",
        _says(r"insufficient shared memory|out of shared memory|Unexpected bus error encountered in worker"),
        "give the container a larger /dev/shm (--shm-size, --ipc=host)",
    ),
    (
        "allocation", "memory refused",
        _says(r"^MemoryError\b|Cannot allocate memory|\bErrno 12\b|can't allocate memory|std::bad_alloc"),
        "the process asked for more than the machine gives: lower its batch, or start it with less beside it",
    ),
)  # fmt: skip

_REPOSITORY: Final = r"(?:huggingface\.co|hf\.co)/(?:api/)?(?:datasets/|models/)?([\w.-]+/[\w.-]*\w)"
_SUBJECTS: Final = {
    "module": r"No module named '?([\w.]+)|([\w.+-]+\.so[\w.]*): cannot open",
    "gated": r"(?:model|[Dd]ataset) '?([\w.-]+/[\w.-]*\w)|" + _REPOSITORY,
    "missing": r"[Dd]ataset '?([\w.-]+/[\w.-]*\w)|([\w./-]*\w)'? is not a local folder|" + _REPOSITORY,
    "port-in-use": r"address \('[^']*', (\d+)\)|[Pp]ort (\d+)|:(\d{2,5})\b",
    "cuda-oom": r"Tried to allocate ([\d.]+ [KMGT]i?B)",
}
"""What an error is about, by the first group that matches."""


def known(text: str) -> Cause | None:
    """The first known error that an exception's message, or a line, tells of."""
    for key, reason, matches, advice in _KNOWN:
        if matches(text):
            seen = next((line for line in text.splitlines() if matches(line)), text.splitlines()[0])
            return Cause(key, _with_subject(key, reason, text), seen.strip(), advice)
    return None


def _with_subject(key: str, reason: str, text: str) -> str:
    found = re.search(_SUBJECTS[key], text, re.MULTILINE) if key in _SUBJECTS else None
    subject = next((group for group in found.groups() if group), "") if found else ""
    return f"{reason}: {subject}" if subject else reason
