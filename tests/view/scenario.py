"""The real run as protocol objects, at the moments an operator may look at it."""

from __future__ import annotations

import math
from dataclasses import replace

from console.view import LinkView, Snapshot, fold
from pipeline.protocol import (
    AgentInfo,
    Attempt,
    Beat,
    DatasetCount,
    Diagnosis,
    Eta,
    Event,
    GpuSample,
    History,
    HostSample,
    JobDetail,
    JobSample,
    JobSpec,
    JobState,
    JobStatus,
    Need,
    Plan,
    Progress,
    Result,
    ServerSample,
    State,
    StreamLine,
)

AT = 1_790_000_000.0
HOUR = 3600.0
GB = 10**9
MODEL = "moonshotai/Kimi-K2.5"
KEPT = {"A1": 2800, "A2": 2000, "B1": 20000, "B2": 15000, "B3": 12000, "B6": 9000, "B7": 8000, "B8": 4288}


def spec(name: str, *needs: str, service: bool = False) -> JobSpec:
    """A job of the plan; a need on a server means that it is ready."""
    return JobSpec(
        name=name,
        stage=name.partition(":")[0],
        argv=("python", "-m", f"pipeline.{name.partition(':')[0]}", "--target", MODEL, "--note", "two words"),
        needs=tuple(Need(need, "ready" if need.startswith("serve") else "done") for need in needs),
        service=service,
    )


PREPS = tuple(f"prep:{name}" for name in ("A1", "A2", "B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8"))
PLAN = Plan(
    run="kimi-k2.5-eagle3",
    release="5f0c2d9a71b34e88",
    jobs=(
        *(spec(name) for name in PREPS),
        spec("serve:baseline", service=True),
        spec("generate", *(name for name in PREPS if ":B" in name), "serve:baseline"),
        spec("merge", "generate", *PREPS),
        spec("extract", "merge"),
        spec("train", "extract"),
        spec("serve:draft", "train", service=True),
        spec("bench", "serve:draft"),
    ),
)
AGENT = AgentInfo(
    pid=412,
    started_at=AT - 31 * HOUR,
    release=PLAN.release,
    workdir="/data/eagle3",
    container="boot/4026532/1",
    keeper=True,
)
HOST = HostSample(
    at=AT,
    cpus=192,
    cpu_percent=34.0,
    memory_used=812 * GB,
    memory_limit=960 * GB,
    memory_source="cgroup v2",
    memory_some=3.0,
    oom_kills=1,
    disk_free=1900 * GB,
    disk_total=7000 * GB,
    disk_left_s=61 * 3600.0,
    gpus=tuple(
        GpuSample(
            index, "NVIDIA H200", (136 + index % 3) * GB, 141 * GB, 90.0 + index % 7, 66.0 + index, 560.0 + 7 * index
        )
        for index in range(8)
    ),
)


def done(name: str, kept: int) -> tuple[JobStatus, JobSample]:
    dataset = name.partition(":")[2]
    counts = {dataset: DatasetCount(kept + 9, kept, {"longer than the context": 9}, kept * 800, kept + 9)}
    result = Result(
        AT - 30 * HOUR, kept, f"{kept:,} of {kept + 9:,} kept", f"data/prompts/{dataset}/manifest.json", counts
    )
    status = JobStatus(
        name,
        JobState.DONE,
        attempt=1,
        started_at=AT - 31 * HOUR,
        ended_at=AT - 30.4 * HOUR,
        exit_code=0,
        result=result,
        release=PLAN.release,
    )
    return status, JobSample(log_bytes=48_211)


def running_jobs() -> tuple[dict[str, JobStatus], dict[str, JobSample]]:
    """Hour 31: generation runs, one dataset came out empty, one prep was killed for memory."""
    statuses: dict[str, JobStatus] = {}
    samples: dict[str, JobSample] = {}
    for dataset, kept in KEPT.items():
        statuses[f"prep:{dataset}"], samples[f"prep:{dataset}"] = done(f"prep:{dataset}", kept)
    reason = "0 of 114,000: no user turn; roles seen: human, gpt; expected user, assistant"
    counts = {"B5": DatasetCount(114_000, 0, {"no user turn": 113_200, "text is null": 800}, 0, 114_000)}
    statuses["prep:B5"] = JobStatus(
        "prep:B5",
        JobState.EMPTY,
        reason,
        attempt=2,
        restarts=1,
        started_at=AT - 31 * HOUR,
        ended_at=AT - 30.8 * HOUR,
        exit_code=0,
        diagnosis=Diagnosis(
            "empty",
            "No row was kept: 113,200 of 114,000 have no user turn",
            ("roles seen: human, gpt", "roles expected: user, assistant", "exit code 0 with zero records"),
            'Set shape = "conversations" for B5 in config.toml, or name its role labels, and apply.',
        ),
        result=Result(AT, 0, reason, "", counts),
        release=PLAN.release,
    )
    statuses["prep:B4"] = JobStatus(
        "prep:B4",
        JobState.QUEUED,
        "needs 92 GB, 61 GB left",
        attempt=1,
        restarts=1,
        started_at=AT - 31 * HOUR,
        ended_at=AT - 2 * HOUR,
        signal=9,
        diagnosis=Diagnosis(
            "oom", "The kernel killed it for memory at 61 GB", ("cgroup oom_kill 0 → 1",), "It asks for 92 GB now."
        ),
    )
    samples["prep:B4"] = JobSample(
        progress=Progress(
            AT, "tokenizing", 2400, 20000, datasets={"B4": DatasetCount(2500, 2400, {"duplicate": 100}, 0, 20000)}
        )
    )
    statuses["serve:baseline"] = JobStatus(
        "serve:baseline", JobState.READY, attempt=1, started_at=AT - 28 * HOUR, pid=2210, release=PLAN.release
    )
    samples["serve:baseline"] = JobSample(
        cpu_percent=412.0,
        memory=690 * GB,
        processes=11,
        server=ServerSample("answers a canned prompt", True, 150, 12, 0.71, 828.0, None, 81_000_000, 150),
        last_line="Decode batch. #running-req: 150, #token: 1182211, token usage: 0.71, throughput (token/s): 828.4",
        log_bytes=612_000_000,
    )
    statuses["generate"] = JobStatus("generate", JobState.RUNNING, attempt=1, started_at=AT - 26 * HOUR, pid=3011)
    answers = {"B1": DatasetCount(20000, 20000, total=20000), "B2": DatasetCount(15000, 15000, total=15000)}
    answers["B3"] = DatasetCount(4900, 4900, total=12000)
    figures = {"tok_s": 828.0, "req_s": 1.05, "mean_tokens": 788.0, "in_flight": 150.0, "errors": 0.0, "retries": 3.0}
    eta = Eta(29 * HOUR, 24 * HOUR, 36 * HOUR, "tokens answered, by length of prompt")
    samples["generate"] = JobSample(
        cpu_percent=88.0,
        memory=2 * GB,
        processes=1,
        progress=Progress(
            AT, "answers", 36120, 83288, "prompts", answers, figures, "B3: answers 1.4 × as long as the pilot's"
        ),
        rate=1.05,
        eta=eta,
        last_line="36120 of 83288 answered",
        log_bytes=2_100_000,
    )
    for waiting in ("merge", "extract", "train", "serve:draft", "bench"):
        needs = next(job.needs for job in PLAN.jobs if job.name == waiting)
        statuses[waiting] = JobStatus(waiting, JobState.WAITING, f"needs {needs[0].job} {needs[0].condition}")
    return statuses, samples


EVENTS = (
    Event(1, AT - 31 * HOUR, "plan", "plan applied: 17 jobs", by="ana@laptop"),
    Event(2, AT - 30.8 * HOUR, "state", "prep:B5 empty: 0 of 114,000: no user turn", "prep:B5"),
    Event(3, AT - 26 * HOUR, "state", "generate running", "generate"),
    Event(4, AT - 2 * HOUR, "state", "prep:B4 OOM-killed (cgroup oom_kill 0→1)", "prep:B4"),
    Event(5, AT - 2 * HOUR + 1, "state", "prep:B4 queued, need 61→92 GB", "prep:B4"),
    Event(6, AT - 900, "action", "restart prep:B5", "prep:B5", by="ana@laptop"),
)


def state_of(statuses: dict[str, JobStatus], samples: dict[str, JobSample], plan: Plan | None = PLAN) -> State:
    events = tuple(replace(event, status=statuses.get(event.job)) for event in EVENTS) if plan else ()
    return State(AGENT, AT, len(EVENTS), plan, statuses, Beat(AT, len(EVENTS), HOST, samples), events)


def curve(job: str = "generate") -> History:
    """26 hours of speed: a ramp, a dip, noise."""
    at = tuple(AT - 26 * HOUR + minute * 312 for minute in range(300))
    values = tuple(
        max(0.0, 828 * min(1.0, (index + 1) / 30) + 40 * math.sin(index / 7) - (500 if 140 < index < 150 else 0))
        for index in range(300)
    )
    return History(job, "tok_s", at, values)


def started(now: float) -> Snapshot:
    """A snapshot before the first word from the agent."""
    return Snapshot(run="kimi-k2.5-eagle3", host_label="gpu-3", link=LinkView("connecting", now, "10.0.0.3 port 22"))


def live(now: float) -> Snapshot:
    """Hour 31 over a live link."""
    snapshot = fold(started(now), LinkView("live", now), now)
    return fold(fold(snapshot, state_of(*running_jobs()), now), curve(), now)


def empty_run(now: float) -> Snapshot:
    """An agent without a plan."""
    return fold(fold(started(now), LinkView("live", now), now), state_of({}, {}, None), now)


def all_crashed(now: float) -> Snapshot:
    """Everything that can fail has failed."""
    statuses = {
        job.name: JobStatus(
            job.name,
            (JobState.FAILED, JobState.EMPTY, JobState.LOST)[index % 3],
            "exit code 1: CUDA [rank0] out of memory, see [/tmp/x.log]",
            attempt=5,
            restarts=4,
            started_at=AT - 300,
            ended_at=AT - 200,
            exit_code=1,
        )
        for index, job in enumerate(PLAN.jobs)
    }
    return fold(fold(started(now), LinkView("live", now), now), state_of(statuses, {}), now)


def all_well(now: float) -> Snapshot:
    """The same hour without anything wrong."""
    statuses, samples = running_jobs()
    for name, kept in (("prep:B4", 5000), ("prep:B5", 8000)):
        statuses[name], samples[name] = done(name, kept)
    snapshot = fold(started(now), LinkView("live", now), now)
    return fold(fold(snapshot, state_of(statuses, samples), now), curve(), now)


def came_back(now: float, since_s: float = 120.0) -> Snapshot:
    """All well, but generate was killed and started again ``since_s`` ago; it has not reported since."""
    snapshot = all_well(now)
    status = replace(
        snapshot.statuses["generate"],
        attempt=2,
        restarts=1,
        started_at=AT - since_s,
        diagnosis=Diagnosis("sigkill", "SIGKILL, sender unknown"),
    )
    snapshot = fold(
        snapshot, StreamLine(event=Event(7, AT, "state", "generate running", "generate", status=status)), now
    )
    samples = {**(snapshot.beat.jobs if snapshot.beat else {}), "generate": JobSample(cpu_percent=90.0, memory=GB)}
    return fold(snapshot, StreamLine(beat=Beat(AT, 7, HOST, samples)), now)


def detail_of(name: str) -> JobDetail:
    """The agent's answer for one job, with two attempts."""
    statuses, _ = running_jobs()
    return JobDetail(
        spec=next(job for job in PLAN.jobs if job.name == name),
        status=statuses[name],
        attempts=(
            Attempt(
                1,
                PLAN.release,
                AT - 31 * HOUR,
                AT - 30.9 * HOUR,
                None,
                9,
                "failed",
                "killed for memory",
                61 * GB,
                48_000,
            ),
            Attempt(
                2, PLAN.release, AT - 30.9 * HOUR, AT - 30.8 * HOUR, 0, None, "empty", "zero records", 12 * GB, 9_100
            ),
        ),
        environment={"HF_TOKEN": "***", "NCCL_IB_DISABLE": "0", "PATH": "/usr/local/bin:/usr/bin"},
        folder=f"jobs/{name}/2",
    )


def emptying(now: float, read: int = 12_000) -> Snapshot:
    """prep:B5 runs, and drops every row it reads."""
    statuses, samples = running_jobs()
    dropped = {"no user turn": read - 10, "not sampled": 10}
    counted = DatasetCount(read=read, kept=0, dropped=dropped, total=114_000)
    statuses["prep:B5"] = JobStatus("prep:B5", JobState.RUNNING, started_at=AT - 9)
    progress = Progress(at=AT, phase="reading", done=read, total=114_000, datasets={"B5": counted})
    samples["prep:B5"] = JobSample(progress=progress)
    return fold(fold(started(now), LinkView("live", now), now), state_of(statuses, samples), now)
