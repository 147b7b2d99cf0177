"""The wire types that the console and the agent share.

Everything here is frozen and travels as JSON through msgspec. Times called ``at`` are wall-clock seconds since the
epoch on the container; durations end in ``_s`` and are seconds; memory is bytes. A reader ignores keys it does not
know, so a console and an agent of different releases understand each other as long as no key changes its meaning.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, Literal

PROTOCOL: Final = 1
"""Raised when a key changes its meaning; the console refuses an agent that speaks another number."""

BEAT_S: Final = 2.0
"""The agent sends a beat at least this often on every event stream."""

STALE_S: Final = 6.0
"""Data older than this is shown as stale."""


class JobState(enum.StrEnum):
    """Where a job stands. ``empty`` (exit 0 with zero records) and ``lost`` (its end was not seen) are failures."""

    WAITING = "waiting"  # a need is not met yet
    QUEUED = "queued"  # needs are met, memory or GPUs are not free
    STARTING = "starting"  # an attempt is journaled, its process is not seen yet
    RUNNING = "running"
    READY = "ready"  # a service that answers
    STALLED = "stalled"  # alive, but without progress for longer than the job allows
    STOPPING = "stopping"  # asked to end, tree not empty yet
    BACKOFF = "backoff"  # failed, starts again by itself
    DONE = "done"
    EMPTY = "empty"
    FAILED = "failed"
    STOPPED = "stopped"  # ended because somebody asked for it
    LOST = "lost"


LIVE: Final = frozenset({JobState.STARTING, JobState.RUNNING, JobState.READY, JobState.STALLED, JobState.STOPPING})
"""States in which a process of the job may exist."""

CRASHED: Final = frozenset({JobState.FAILED, JobState.EMPTY, JobState.LOST, JobState.BACKOFF})
"""States that ``R`` (restart all that crashed) acts on."""


# --- The plan -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """What must hold before a job starts: another job, by its exact name, is ``done`` or ``ready``."""

    job: str
    condition: Literal["done", "ready"] = "done"


@dataclass(frozen=True)
class Resources:
    """What admission sets aside. ``memory`` None: the peak measured before, or nothing."""

    memory: int | None = None
    gpus: int = 0


@dataclass(frozen=True)
class RestartPolicy:
    """When a job that ended starts again. The first restart is immediate, later ones back off exponentially."""

    when: Literal["never", "on-failure", "always"] = "on-failure"
    limit: int = 5  # restarts within window_s, then the job is failed: gave up
    window_s: float = 600.0
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    healthy_s: float = 300.0  # after so long a run the count starts anew; a server's begins when it is ready
    no_retry: tuple[int, ...] = (3,)  # exit codes that are final; 3 is a stage's own verdict on its input


@dataclass(frozen=True)
class Checks:
    """How a server is looked at again and again: every ``interval_s``, for ``timeout_s`` at most.

    ``threshold`` failures in a row count as one; none counts before ``start_s`` are over.
    """

    start_s: float
    interval_s: float
    timeout_s: float
    threshold: int


@dataclass(frozen=True)
class Readiness:
    """How a model server proves that it is the planned one and answers; ``pipeline.serve.ladder`` climbs it.

    ``checks.start_s`` is how long it may load. Once it has answered, its ``liveness`` says whether it goes on to.
    """

    url: str  # http://127.0.0.1:30000
    model_path: str  # must equal /model_info's
    speculative_algorithm: str | None = None  # must equal /server_info's; None: must be off
    min_accept_length: float | None = None  # on a canned prompt, with a draft
    checks: Checks = Checks(start_s=3600.0, interval_s=2.0, timeout_s=30.0, threshold=2)


@dataclass(frozen=True)
class JobSpec:
    """One job of the plan. ``argv`` is never a shell string; ``{release}`` in it is the job's release folder."""

    name: str  # "prep:B5", "serve:baseline", "generate"
    stage: str  # "prep", "serve", "generate", "merge", …
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # variable names; values are read on the container at job start
    needs: tuple[Need, ...] = ()
    resources: Resources = Resources()
    restart: RestartPolicy = RestartPolicy()
    service: bool = False  # runs until it is stopped; ready instead of done
    readiness: Readiness | None = None
    liveness: Checks = Checks(start_s=60.0, interval_s=30.0, timeout_s=30.0, threshold=10)  # of a server, once ready
    stop_grace_s: float = 15.0  # TERM, then this long, then KILL
    stall_s: float | None = None  # without progress for so long: stalled
    on_stall: Literal["tell", "restart"] = "tell"  # what follows when it is stalled; a restart counts as after a crash
    oom_score_adj: int = 500
    content_hash: str = ""  # of its own settings that change what is written
    inputs_hash: str = (
        ""  # of the settings its inputs are made with: when they change it runs again, and keeps what fits
    )
    autostart: bool = True  # False: started by the operator only


NotifyFormat = Literal["auto", "ntfy", "slack", "discord", "json"]


@dataclass(frozen=True)
class Notify:
    """Who is told when nobody looks: names of the secrets that hold the URLs; "": nobody."""

    webhook: str = ""
    heartbeat: str = ""
    format: NotifyFormat = "auto"  # what the webhook takes; "auto": told by its host


@dataclass(frozen=True)
class DiskPolicy:
    """What the agent does with the disk of the work directory. Takes effect at once."""

    log: int = 2 * 10**9  # bytes a running job's log takes; the front of a longer one is given back
    old_logs: int = 4 * 10**9  # bytes the logs of a job's earlier attempts take together
    old_attempts: int = 100  # earlier attempts of a job whose files are kept
    warn_left_s: float = 6 * 3600.0  # a disk that is full sooner at the present rate is worth a warning
    warn_share: float = 0.05  # so is one with less than this share free


@dataclass(frozen=True)
class Plan:
    """The graph of jobs that the agent makes real, and the release its jobs start with."""

    run: str  # the run's name
    release: str  # content hash of the deployed pipeline
    jobs: tuple[JobSpec, ...]
    reserve_memory: int = 0  # bytes admission leaves free
    notify: Notify = Notify()
    disk: DiskPolicy = DiskPolicy()


@dataclass(frozen=True)
class Change:
    """What applying a plan does to one job."""

    job: str
    effect: Literal["new", "nothing", "live", "restarts", "discards", "removed"]
    detail: str = ""
    records: int = 0  # that "discards" would throw away


@dataclass(frozen=True)
class ApplyRequest:
    """Body of ``PUT /v1/plan``. Every job that would discard records must be named in ``confirm``."""

    plan: Plan
    by: str
    confirm: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class ApplyReply:
    changes: tuple[Change, ...]
    applied: bool
    refused: str = ""  # why not applied, in words
    settings: tuple[str, ...] = ()  # keys of the config that change for the agent itself: "disk.log"; used at once


@dataclass(frozen=True)
class ActionRequest:
    """Body of ``POST /v1/jobs/NAME/ACTION``. ``request`` makes it idempotent.

    Actions: start, stop, restart, restart-with-dependents, kill, waive.
    """

    by: str
    request: str  # unique per key press; a repeated one is answered again, not done again
    reason: str = ""  # needed for waive


@dataclass(frozen=True)
class NotifyTest:
    """Body of ``POST /v1/notify/test``: send a test message there now, and say what the server answers."""

    notify: Notify
    run: str
    by: str


@dataclass(frozen=True)
class ActionReply:
    done: bool
    text: str  # what was done, or why not


# --- What a job reports ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DatasetCount:
    """Rows of one dataset: ``read == kept + sum(dropped.values())`` holds whenever a row is not in hand."""

    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # reason in words to rows
    tokens: int = 0
    total: int | None = None  # rows expected, where known
    faulty: dict[str, int] = field(default_factory=dict)  # of the kept: what is wrong in words to rows


@dataclass(frozen=True)
class Eta:
    """Seconds left, an interval (10 to 90 % of generate, else 5 to 95 %), and what the figure rests on."""

    seconds: float
    low: float
    high: float
    basis: str = ""


@dataclass(frozen=True)
class Progress:
    """One line of a job's progress file. ``done`` of ``total`` in ``unit``; ``figures`` are the stage's own numbers.

    Figures of generate: tok_s, req_s, mean_tokens, in_flight, errors, retries, and "retries: KIND" of each kind.
    Figures of prep: rows_s.
    """

    at: float
    phase: str
    done: float = 0.0
    total: float | None = None
    unit: str = "records"
    datasets: dict[str, DatasetCount] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    note: str = ""
    eta: Eta | None = None
    monotonic: float | None = None  # as ``at``, by the clock that nobody sets: rates are taken from it


@dataclass(frozen=True)
class Result:
    """The last line of a job's progress file. Zero ``records`` with exit code 0 makes the job ``empty``."""

    at: float
    records: int
    message: str  # one line: what was made, or why nothing was
    manifest: str = ""  # path, relative to the work directory
    datasets: dict[str, DatasetCount] = field(default_factory=dict)


@dataclass(frozen=True)
class ProgressLine:
    """A line of the progress file: exactly one of the two."""

    progress: Progress | None = None
    result: Result | None = None


# --- What the agent knows -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diagnosis:
    """What ended a job, on what evidence, and what to do."""

    cause: str  # short key: "oom", "sigkill", "traceback", "empty", …
    summary: str  # one line
    evidence: tuple[str, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class JobStatus:
    """Everything about a job that changes with an event."""

    name: str
    state: JobState
    reason: str = ""  # in words; empty where the state says all
    since: float = 0.0  # wall time of entering the state
    attempt: int = 0  # 0: never started
    restarts: int = 0
    pid: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    diagnosis: Diagnosis | None = None
    result: Result | None = None
    release: str = ""  # of the current or last attempt
    waived: str = ""  # why a failed need of others was waived


@dataclass(frozen=True)
class ServerSample:
    """A model server's own figures, from /metrics and /server_info. None: not known."""

    step: str  # rung of the readiness ladder reached, in words
    ready: bool = False
    running: int | None = None
    queued: int | None = None
    kv_use: float | None = None  # 0 to 1
    tok_s: float | None = None
    accept_length: float | None = None
    generated_tokens: int | None = None
    max_running: int | None = None


@dataclass(frozen=True)
class JobSample:
    """What a beat says of one job. Not numbered, never replayed: only the newest counts."""

    cpu_percent: float | None = None  # of one core
    memory: int | None = None
    processes: int = 0
    progress: Progress | None = None
    rate: float | None = None  # progress units per second
    eta: Eta | None = None
    server: ServerSample | None = None
    last_line: str = ""
    log_bytes: int = 0
    up_s: float | None = None  # since its process was made, by a clock that nobody sets


@dataclass(frozen=True)
class GpuSample:
    index: int
    name: str
    memory_used: int
    memory_total: int
    utilisation: float  # per cent
    temperature: float | None = None
    power: float | None = None  # watts
    uuid: str = ""


@dataclass(frozen=True)
class HostSample:
    """The container's own state. ``memory_limit`` is the lowest on the cgroup path, else the machine's."""

    at: float
    cpus: int
    cpu_percent: float  # of all cores, 0 to 100
    memory_used: int  # without inactive file cache and reclaimable slab
    memory_limit: int
    memory_source: str  # "cgroup v2", "cgroup v1", "MemAvailable"
    memory_some: float | None = None  # PSI: per cent of the last 10 s in which something waited for memory
    oom_kills: int | None = None
    disk_free: int | None = None  # of the work directory's file system
    disk_total: int | None = None
    disk_left_s: float | None = None  # until it is full at the rate of the last minutes; None: does not fill
    disk_short: bool = False  # less than the plan's policy wants, or full sooner
    inodes_free: int | None = None  # files that can still be made there; None: as many as there is space for
    inodes_total: int | None = None
    gpus: tuple[GpuSample, ...] = ()
    remarks: tuple[str, ...] = ()  # what could not be read, in words


@dataclass(frozen=True)
class Event:
    """A numbered entry of the journal. ``status`` is the job's whole status after it."""

    seq: int
    at: float
    kind: str  # "state", "plan", "action", "agent", "host"; "reason": what a job waits for, not worth a line
    text: str  # one line for the operator
    job: str = ""
    by: str = ""  # who asked, where somebody did
    status: JobStatus | None = None


@dataclass(frozen=True)
class Beat:
    """Sent on every event stream at least every ``BEAT_S`` seconds, and at once after a change."""

    at: float
    seq: int  # of the newest event
    host: HostSample | None
    jobs: dict[str, JobSample]


@dataclass(frozen=True)
class Pruned:
    """Events numbered after ``after`` and before ``before`` are not in the journal any more: they were too old.

    The newest event of each job is always kept, so that the statuses are right after all events that are left.
    """

    after: int
    before: int


@dataclass(frozen=True)
class StreamLine:
    """A line of ``GET /v1/events?since=N``: exactly one of the three."""

    event: Event | None = None
    beat: Beat | None = None
    pruned: Pruned | None = None  # comes before the event that follows on the missing ones


@dataclass(frozen=True)
class AgentInfo:
    pid: int
    started_at: float
    release: str
    workdir: str
    container: str  # identity: boot id, pid namespace, start of pid 1
    keeper: bool  # seen alive
    protocol: int = PROTOCOL
    journal: str = ""  # identity: event numbers are of one journal


@dataclass(frozen=True)
class State:
    """``GET /v1/state``: everything a console needs to draw; the stream goes on from ``seq``."""

    agent: AgentInfo
    at: float
    seq: int
    plan: Plan | None
    jobs: dict[str, JobStatus]
    beat: Beat
    events: tuple[Event, ...] = ()  # the newest, in order


@dataclass(frozen=True)
class Attempt:
    number: int
    release: str
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    state: str = ""
    reason: str = ""
    peak_memory: int | None = None
    log_bytes: int = 0


@dataclass(frozen=True)
class JobDetail:
    """``GET /v1/jobs/NAME``. The environment's secret values are replaced by ``***``."""

    spec: JobSpec
    status: JobStatus
    attempts: tuple[Attempt, ...]
    environment: dict[str, str]
    folder: str  # of the newest attempt


@dataclass(frozen=True)
class LogPage:
    """``GET /v1/jobs/NAME/log?attempt=&offset=&limit=``. A negative offset counts from the end."""

    attempt: int
    offset: int  # of the first byte of data
    size: int  # of the whole file now
    data: bytes
    first: int = 0  # of the first byte kept: what was before was given back to the disk


@dataclass(frozen=True)
class LogHits:
    """``GET /v1/jobs/NAME/log/search?attempt=&text=&offset=&limit=``: byte offsets of lines that hold the text."""

    attempt: int
    offsets: tuple[int, ...]
    scanned_to: int  # where the search ended; less than size: ask again from here
    size: int


@dataclass(frozen=True)
class History:
    """``GET /v1/history?job=&figure=&points=``: a figure over the run, oldest first. Job "" is the host."""

    job: str
    figure: str
    at: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Problem:
    """Body of every answer that is not 2xx."""

    error: str  # one line a person can act on


# --- What doctor asks of a host -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SurveyQuestion:
    """What the config names on the host."""

    workdir: str
    secrets: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()  # relative ones are in the work directory
    ports: tuple[tuple[str, int], ...] = ()  # addresses to listen on


@dataclass(frozen=True)
class SurveyedDisk:
    """The work directory's file system. What cannot be done there says why; "": it can."""

    path: str  # the work directory, or the deepest folder above it that is there
    exists: bool  # the work directory itself
    kind: str  # "ext4", "nfs4"
    network: bool = False
    refused: str = ""  # writing
    no_holes: str = ""  # giving space back from the front of a file


@dataclass(frozen=True)
class SurveyedAgent:
    """What stands of an agent. Pids are those of processes that live."""

    pid: int | None = None
    keeper: int | None = None
    release: str = ""  # that it starts with
    deployed: bool = False  # that release is there
    start: str = ""  # the script that brings it back after a restart of the container, where it is there
    hook: str = ""  # what calls that script then; "": nothing was found that does
    first: str = ""  # pid 1's command line


@dataclass(frozen=True)
class Survey:
    """What a host is like. Texts that say why something cannot be are "" where it can."""

    at: float
    user: str  # its number
    python: str  # path of the interpreter
    host: HostSample
    disk: SurveyedDisk
    agent: SurveyedAgent
    runtime: str = ""  # using the runtime directory
    cgroup: str = ""  # giving each job a memory cgroup
    pidfd: str = ""
    ptrace: str = ""
    first_environment: bool = True  # pid 1's environment can be read
    shared_memory: int | None = None  # bytes of /dev/shm
    secrets: dict[str, str] = field(default_factory=dict)  # "file", "pid 1", "": nowhere; else why it is refused
    paths: dict[str, str] = field(default_factory=dict)  # "model" (with a config.json), "folder", "file", "": nothing
    ports: dict[str, str] = field(default_factory=dict)  # by "host:port": why nothing could listen there
