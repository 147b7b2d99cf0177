"""What a host's survey means for the configured run. Pure: from config, plan and survey to lines."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from console.config import Config
from console.config.graph import BASELINE, uses_baseline
from console.doctor.findings import Finding, State
from console.view import format as fmt
from pipeline.protocol import Plan, Survey

LEAST_DISK: Final = 10**9
CLOCK_S: Final = 30.0
LEAST_SHARED: Final = 10**9
"""Bytes of shared memory that NCCL needs for several GPUs; Docker's default is 64 MB."""


def judge(config: Config, plan: Plan, survey: Survey, live: Collection[str], ahead_s: float) -> list[Finding]:
    """All lines. ``live`` are the jobs that run there now; ``ahead_s`` is how far the host's clock is ahead of ours."""
    return [
        *_folder(config, survey),
        *_disk(plan, survey),
        *_memory(config, plan, survey),
        *_kernel(survey),
        *_gpus(plan, survey),
        *_agent(survey),
        *_secrets(config, survey),
        *_paths(config, survey),
        *_ports(config, survey, live),
        _clock(ahead_s),
    ]


def _folder(config: Config, survey: Survey) -> Iterator[Finding]:
    disk, workdir = survey.disk, config.host.workdir
    if disk.refused:
        where = workdir if disk.exists else f"{workdir} is not there, and {disk.path}"
        yield Finding(
            "wrong",
            "work directory",
            f"{where} cannot be used: {disk.refused}",
            f"let user {survey.user} write there, or name another folder as host.workdir",
        )
    elif disk.network:
        yield Finding(
            "warning",
            "work directory",
            f"{workdir} lies on {disk.kind}: the journal is kept in the container, under /tmp, not there",
            "a new container starts with an empty journal; records and logs stay",
        )
    else:
        there = "can be written to" if disk.exists else f"is not there yet; apply makes it in {disk.path}"
        yield Finding("ok", "work directory", f"{workdir} {there} ({disk.kind})")
    if disk.no_holes and not disk.refused:
        yield Finding(
            "warning",
            "log caps",
            f"{disk.kind} cannot give space back from the front of a file ({disk.no_holes}): logs grow without a cap",
            "put the work directory on ext4, xfs, btrfs or tmpfs, or watch its free space",
        )
    if survey.runtime:
        yield Finding("wrong", "runtime folder", survey.runtime, "it holds sockets, locks and secrets")


def _disk(plan: Plan, survey: Survey) -> Iterator[Finding]:
    free, total = survey.host.disk_free, survey.host.disk_total
    if free is None or not total:
        yield Finding("warning", "disk", "its free space is not known", "see work directory above")
        return
    state: State = "wrong" if free < LEAST_DISK else "warning" if free < plan.disk.warn_share * total else "ok"
    yield Finding(state, "disk", f"{fmt.size(free)} of {fmt.size(total)} free", "" if state == "ok" else "make room")


def _memory(config: Config, plan: Plan, survey: Survey) -> Iterator[Finding]:
    host = survey.host
    for_jobs = host.memory_limit - plan.reserve_memory
    never = [job for job in plan.jobs if (job.resources.memory or 0) > for_jobs]
    said = f"{fmt.size_of(host.memory_used, host.memory_limit)} used ({host.memory_source})"
    if never:
        names = ", ".join(f"{job.name} ({fmt.size(job.resources.memory)})" for job in never[:4])
        more = f" and {len(never) - 4} more" if len(never) > 4 else ""
        yield Finding(
            "wrong",
            "memory",
            f"{said}; less than what these need beside the reserve: {names}{more}",
            "they would wait for ever: lower their memory or resources.reserve, or raise the container's limit",
        )
    elif config.resources.memory is not None and config.resources.memory > host.memory_limit:
        yield Finding(
            "warning",
            "memory",
            f"{said}; the config reckons with {fmt.size(config.resources.memory)}",
            "write what there is as resources.memory",
        )
    else:
        yield Finding("ok", "memory", said)
    if host.oom_kills is None:
        yield Finding(
            "warning",
            "OOM counter",
            "the kernel's kills for memory are not counted here: such a death is told as killed by an unknown sender",
            "mount the container's memory cgroup at /sys/fs/cgroup",
        )
    else:
        yield Finding("ok", "OOM counter", f"stands at {host.oom_kills}")
    if survey.cgroup:
        yield Finding(
            "warning",
            "cgroups",
            f"jobs get no memory cgroup of their own: {survey.cgroup}. Their memory is summed up over their processes",
            "start the container with /sys/fs/cgroup writable, if you may",
        )
    else:
        yield Finding("ok", "cgroups", "each job gets a memory cgroup of its own")


def _kernel(survey: Survey) -> Iterator[Finding]:
    if survey.pidfd:
        advice = "a kernel of 5.3 or later, and a seccomp profile that allows pidfd_open"
        yield Finding("wrong", "pidfd", f"processes cannot be held on to: {survey.pidfd}", advice)
    if survey.ptrace:
        advice = "start the container with --cap-add SYS_PTRACE to look into one that hangs (py-spy, gdb)"
        yield Finding("warning", "ptrace", f"no debugger can look into a job: {survey.ptrace}", advice)
    if not survey.pidfd and not survey.ptrace:
        yield Finding("ok", "processes", "pidfd and ptrace work")
    if survey.first_environment:
        yield Finding("ok", "environment", "jobs get the environment of pid 1")
    else:
        yield Finding(
            "warning",
            "environment",
            "the environment of pid 1 cannot be read: jobs get the login shell's, without the image's variables",
            "log in as the user of pid 1, or name what is needed in [environment.variables]",
        )


def _gpus(plan: Plan, survey: Survey) -> Iterator[Finding]:
    seen = survey.host.gpus
    wanting = max(plan.jobs, key=lambda job: job.resources.gpus)
    need = wanting.resources.gpus
    if need > len(seen):
        why = next((f": {remark}" for remark in survey.host.remarks if "GPU" in remark), "")
        yield Finding(
            "wrong",
            "GPUs",
            f"{wanting.name} needs {need}, {len(seen) or 'none'} seen{why}",
            "start the container with --gpus all, and install nvidia-ml-py for the agent",
        )
    elif seen:
        yield Finding("ok", "GPUs", f"{len(seen)} × {seen[0].name}, {fmt.size(seen[0].memory_total)} each")
    else:
        yield Finding("ok", "GPUs", "none seen, none needed")
    shared = survey.shared_memory
    if need > 1 and (shared is None or shared < LEAST_SHARED):
        size = fmt.size(shared) if shared is not None else "none"
        yield Finding(
            "warning",
            "shared memory",
            f"{size} in all: NCCL may fail",
            "start the container with --shm-size 16g",
        )


def _agent(survey: Survey) -> Iterator[Finding]:
    agent = survey.agent
    if not agent.release and agent.pid is None:
        yield Finding("ok", "agent", "nothing was deployed here yet: draftdeck apply does it")
        return
    if agent.pid is None:
        start = agent.start or "draftdeck apply"
        yield Finding("wrong", "agent", "it does not run: nothing is supervised", f"run {start}")
    elif agent.release and not agent.deployed:
        yield Finding("wrong", "agent", f"its release {agent.release} is not there any more", "draftdeck apply")
    else:
        yield Finding("ok", "agent", f"runs as pid {agent.pid}, release {agent.release}")
    if agent.keeper is not None:
        yield Finding("ok", "keeper", f"runs as pid {agent.keeper}")
    elif agent.pid is not None:
        advice = f"see keeper.log beside the sockets, then run {agent.start or 'draftdeck apply'}"
        yield Finding("wrong", "keeper", "does not run: nobody would start the agent again", advice)
    if not agent.start:
        text = "there is no agent/start that would bring the agent back when the container restarts"
        yield Finding("wrong", "start hook", text, "draftdeck apply writes it")
    elif agent.hook:
        yield Finding("ok", "start hook", f"{agent.start} is called by {agent.hook}")
    else:
        yield Finding(
            "warning",
            "start hook",
            f"nothing was found that calls {agent.start} when the container restarts (pid 1: {agent.first or '?'})",
            f"in the image's entrypoint, before its own command: {agent.start}\n"
            f"or where cron runs: (crontab -l 2>/dev/null; echo '@reboot {agent.start}') | crontab -",
        )


def secret_names(config: Config) -> tuple[str, ...]:
    """All secrets that the config names, each once."""
    named = (*config.environment.secrets, config.notify.webhook, config.notify.heartbeat)
    return tuple(dict.fromkeys(name for name in named if name))


def _secrets(config: Config, survey: Survey) -> Iterator[Finding]:
    for name in secret_names(config):
        match survey.secrets.get(name, ""):
            case "file":
                yield Finding("ok", "secret", f"{name} is stored")
            case "pid 1":
                yield Finding("ok", "secret", f"{name} is in the environment of pid 1")
            case "":
                yield Finding("wrong", "secret", f"{name} is not set there", f"draftdeck secret set {name}")
            case why:
                yield Finding("wrong", "secret", f"{name} is not used: {why}")


def model_paths(config: Config) -> tuple[str, ...]:
    """Folders and files that have to be in the container before anything runs."""
    sources = (dataset.source for dataset in config.datasets.values() if dataset.source.startswith("/"))
    return tuple(dict.fromkeys((*((config.target.path,) if config.target.path else ()), *sources)))


def _paths(config: Config, survey: Survey) -> Iterator[Finding]:
    target = config.target
    if not target.path:
        yield Finding("ok", "target", f"{target.model} is loaded from the hub")
    elif survey.paths.get(target.path) == "model":
        yield Finding("ok", "target", f"{target.path} is there")
    else:
        found = survey.paths.get(target.path) or "nothing"
        text = f"{target.path} is no model's folder: {found} is there, no config.json in it"
        yield Finding("wrong", "target", text, f"put {target.model} there, or leave target.path out to load it")
    local = {name: dataset.source for name, dataset in config.datasets.items() if dataset.source.startswith("/")}
    missing = [name for name, source in local.items() if survey.paths.get(source) not in ("folder", "file", "model")]
    if missing:
        words = ", ".join(f"{local[name]} ({name})" for name in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        yield Finding("wrong", "datasets", f"not there: {words}{more}", "put them there, or name a hub id as source")
    elif local:
        yield Finding("ok", "datasets", f"the files of {', '.join(local)} are there")


def addresses(config: Config) -> tuple[tuple[str, int], ...]:
    """Where the run's servers will listen."""
    return ((config.serve.host, config.serve.baseline.port),) if uses_baseline(config) else ()


def _ports(config: Config, survey: Survey, live: Collection[str]) -> Iterator[Finding]:
    for host, port in addresses(config):
        why = survey.ports.get(f"{host}:{port}", "it was not looked at")
        if not why:
            yield Finding("ok", "port", f"{host}:{port} is free for {BASELINE}")
        elif BASELINE in live:
            yield Finding("ok", "port", f"{host}:{port} is held while {BASELINE} runs")
        else:
            yield Finding(
                "wrong",
                "port",
                f"{BASELINE} could not listen on {host}:{port}: {why}",
                f"end what listens there (ss -ltnp 'sport = :{port}' names it), or set serve.baseline.port",
            )


def _clock(ahead_s: float) -> Finding:
    if abs(ahead_s) < CLOCK_S:
        return Finding("ok", "clock", "agrees with this machine's")
    words = f"{fmt.duration(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    return Finding("warning", "clock", f"is {words}: times of events are the host's", "set one of them right")
