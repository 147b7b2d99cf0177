"""What each command of ``draftdeck`` does; every one returns an exit code."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterable, Sequence
from getpass import getpass
from pathlib import Path

from console import clock, headless
from console import demo as demo_run
from console import host as hosts
from console.client import Action, AgentClient
from console.config import Config, load
from console.config.errors import nearest
from console.link.errors import AgentError, LinkError, OutcomeUnknown
from console.plan import build, describe, notify_of
from console.report import exit_code, report_markdown, status_json, status_text
from console.session import operator
from console.view import LinkView, Snapshot, fold
from console.view.format import duration
from console.view.text import clean
from console.watching import Host, session_on, watch
from pipeline.protocol import JobState, NotifyTest

WELL, TROUBLE, USAGE, UNREACHABLE = 0, 1, 2, 3


def check(path: Path) -> int:
    """Validate the config without a host and print the run in numbers."""
    config = load(path)
    print(describe(config, build(config, "not deployed")))
    return WELL


async def apply(host: Host, *, dry_run: bool, confirm: tuple[str, ...]) -> int:
    """Make the host's jobs follow the config; what would discard records has to be confirmed by name."""
    config = load(host.config)
    async with hosts.connected(config, accept_new_host_key=host.accept_new_host_key) as link:
        place = await (hosts.found(link, config) if dry_run else hosts.deployed(link, config))
        reply = await hosts.apply(place, confirm=confirm, dry_run=dry_run)
    for change in reply.changes:
        if change.effect != "nothing":
            detail = f": {clean(change.detail)}" if change.detail else ""
            print(f"{change.job:<24} {change.effect}{detail}")
    for key in reply.settings:
        print(f"{clean(key):<24} live")
    unchanged = sum(change.effect == "nothing" for change in reply.changes)
    if unchanged:
        print(f"{unchanged} of {len(reply.changes)} jobs stay as they are")
    for name in sorted(set(confirm) - {change.job for change in reply.changes}):
        print(f"draftdeck: --confirm {_unknown(name, [change.job for change in reply.changes])}", file=sys.stderr)
    if reply.refused:
        print(f"draftdeck: not applied: {clean(reply.refused)}", file=sys.stderr)
        discarded = [change.job for change in reply.changes if change.effect == "discards"]
        if discarded:
            flags = shlex.join(word for name in discarded for word in ("--confirm", name))
            print(f"to discard them: draftdeck --config {shlex.quote(str(host.config))} apply {flags}", file=sys.stderr)
        return TROUBLE
    return WELL


async def status(host: Host, *, as_json: bool) -> int:
    snapshot = await _look(host)
    print(status_json(snapshot) if as_json else status_text(snapshot), end="")
    return exit_code(snapshot)


async def report(host: Host) -> int:
    snapshot = await _look(host)
    print(report_markdown(snapshot))
    return exit_code(snapshot)


async def act(host: Host, action: Action, jobs: Sequence[str], reason: str = "") -> int:
    """Do one action to each job; the first refusal decides the exit code, the others are tried all the same."""
    config = load(host.config)
    code = WELL
    async with hosts.connected(config, accept_new_host_key=host.accept_new_host_key) as link:
        place = await hosts.found(link, config)
        async with AgentClient(link, place.bridge) as agent:
            known = (await agent.state()).jobs
            for job in jobs:
                if job not in known:
                    print(f"draftdeck: {_unknown(job, known)}", file=sys.stderr)
                    code = USAGE
                    continue
                request = hosts.request(reason)
                try:
                    reply = await agent.action(job, action, request)
                except OutcomeUnknown as unknown:
                    print(f"{job}: {unknown}; told here when the link is back", file=sys.stderr, flush=True)
                    reply = await agent.outcome(request)
                except AgentError as error:
                    print(f"{job}: {clean(str(error))}", file=sys.stderr)
                    code = code or TROUBLE
                    continue
                print(f"{job}: {clean(reply.text)}", file=sys.stdout if reply.done else sys.stderr)
                code = code if reply.done or code else TROUBLE
    return code


def _unknown(job: str, known: Iterable[str]) -> str:
    asked = nearest(job, known)
    return f"no job is called {clean(job)}; {asked or 'the jobs: ' + ', '.join(known)}"


async def secret(host: Host, name: str) -> int:
    """Store what stands on standard input as the value of a secret on the host."""
    config = load(host.config)
    asked = sys.stdin.isatty()
    value = getpass(f"value of {name}: ").encode() if asked else sys.stdin.buffer.read().rstrip(b"\r\n")
    async with hosts.connected(config, accept_new_host_key=host.accept_new_host_key) as link:
        await hosts.set_secret(await hosts.attended(link, config), name, value)
    print(f"{name} is stored on {config.host.address}")
    return WELL


async def doctor(host: Host, *, as_json: bool) -> int:
    """Say line by line what is right and wrong on the host; 1 where anything is wrong, 3 where it was not reached."""
    from console.doctor.examine import examine
    from console.doctor.findings import as_json as to_json
    from console.doctor.findings import as_text, reached, well

    found = await examine(load(host.config), accept_new_host_key=host.accept_new_host_key)
    print(to_json(found) if as_json else as_text(found))
    return UNREACHABLE if not reached(found) else WELL if well(found) else TROUBLE


async def notify_test(host: Host) -> int:
    """Have the host's agent send a test message to where the config says, and show what the servers answered."""
    config = load(host.config)
    async with hosts.connected(config, accept_new_host_key=host.accept_new_host_key) as link:
        place = await hosts.found(link, config)
        async with AgentClient(link, place.bridge) as agent:
            reply = await agent.notify_test(NotifyTest(notify_of(config), config.run.name, operator()))
    for line in clean(reply.text).split("; "):
        print(line, file=sys.stdout if reply.done else sys.stderr)
    return WELL if reply.done else TROUBLE


async def demo(places: demo_run.Folders, *, size: int, headless_run: bool, fresh: bool, broken: str) -> int:
    """Prepare the demo, apply its plan, and open the console on it or follow it to its end."""
    if fresh and places.root.exists():
        demo_run.require_demo(places)
        await demo_stop(places)
        demo_run.remove(places)
    demo_run.prepare(places, size, broken)
    code = await apply(Host(places.config), dry_run=False, confirm=())
    if code != WELL:
        return code
    if places.ended.exists():
        await _start_stopped(load(places.config))
        places.ended.unlink()
    if not headless_run:
        return await watch(Host(places.config))
    snapshot = await _follow(load(places.config))
    await demo_stop(places)
    print(report_markdown(snapshot))
    print("wall time by stage")
    for stage, start, end in headless.wall_times(snapshot):
        print(f"  {stage:<10} {duration(start):>10} to {duration(end):>10}: {duration(end - start)}")
    return exit_code(snapshot)


async def demo_stop(places: demo_run.Folders) -> int:
    """End the demo's jobs and agent, then its container. What it made stays."""
    demo_run.require_demo(places)
    if not places.container.exists():
        raise demo_run.DemoError(f"there is no demo in {places.root}: nothing was ended; name its folder with --dir")
    if places.config.exists() and demo_run.container_runs(places):
        config = load(places.config)
        try:
            async with hosts.connected(config) as link:
                await hosts.end(await hosts.found(link, config))
            places.ended.touch()
        except LinkError as error:
            print(f"the demo's agent was not reached: {error}", file=sys.stderr)
    demo_run.stop_container(places)
    return WELL


async def _start_stopped(config: Config) -> None:
    async with hosts.connected(config) as link:
        place = await hosts.found(link, config)
        async with AgentClient(link, place.bridge) as agent:
            for name, job in (await agent.state()).jobs.items():
                if job.state is JobState.STOPPED:
                    print(f"{name}: {clean((await agent.action(name, 'start', hosts.request())).text)}")


async def _follow(config: Config) -> Snapshot:
    async with hosts.connected(config) as link:
        session = session_on(config, lambda: contextlib.nullcontext(link), read_only=True)
        return await headless.follow(session)


async def _look(host: Host) -> Snapshot:
    """One look at the host's agent, through its read-only socket."""
    config = load(host.config)
    async with hosts.connected(config, accept_new_host_key=host.accept_new_host_key) as link:
        place = await hosts.found(link, config)
        async with AgentClient(link, place.read_only_bridge) as agent:
            now = clock.now()
            empty = Snapshot(run=config.run.name, host_label=config.host.address, link=LinkView("live", now))
            return fold(empty, await agent.state(), now)
