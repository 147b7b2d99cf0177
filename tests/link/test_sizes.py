"""What the panes fetch stays under a MiB; what is larger has a connection of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from console.link.channel import AgentChannel, bridge_argv
from console.link.errors import AgentError
from console.link.reconnect import LARGE, Link
from pipeline.agent.attempts.logs import PAGE_LIMIT
from pipeline.protocol import ApplyRequest, JobSpec, Need, Plan, Readiness
from tests.link.conftest import Server
from tests.link.test_client import agent_of, plan, until

PYTHON = sys.executable


async def test_a_page_of_a_log_is_under_a_mib_as_it_travels(one_server: Server, workdir: Path) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' x; exec sleep 600"
    async with Link(one_server.endpoint) as link, agent_of(link, workdir) as (agent, release):
        await agent.apply(ApplyRequest(plan(release, script), by="test"))
        await until(agent, lambda state: state.beat.jobs["prep:B5"].log_bytes == 3_000_000, "the log")
        page = await agent.log("prep:B5", 1, 0, PAGE_LIMIT)
        assert len(page.data) == PAGE_LIMIT
        assert LARGE / 2 < len(msgspec.json.encode(page)) <= LARGE
        with pytest.raises(AgentError, match="limit"):
            await agent.log("prep:B5", 1, 0, PAGE_LIMIT + 1)


def planned(release: str, number: int) -> Plan:
    """Jobs as long-winded as those of a real run."""
    argv = [
        f"--{word}=/data/draftdeck/a/rather/long/path/of/{word}"
        for word in ("model", "dataset", "out", "template", "cache", "tokenizer", "manifest", "log")
    ]
    environment = {f"NCCL_SETTING_{index}": "a value of some length" for index in range(12)}
    ready = Readiness("http://127.0.0.1:30000", "/models/Kimi-K2.5")
    jobs = tuple(
        JobSpec(
            f"serve:replica-{index:03}", "serve", (PYTHON, "-m", "sglang.launch_server", *argv), env=environment,
            needs=tuple(Need(f"serve:replica-{other:03}", "ready") for other in range(max(0, index - 3), index)),
            readiness=ready, service=True, autostart=False, content_hash="0" * 64, inputs_hash="0" * 64,
        )
        for index in range(number)
    )  # fmt: skip
    return Plan("many", release, jobs)


async def test_the_state_of_two_hundred_jobs_is_under_a_mib(one_server: Server, workdir: Path) -> None:
    async with Link(one_server.endpoint) as link, agent_of(link, workdir) as (agent, release):
        assert (await agent.apply(ApplyRequest(planned(release, 200), by="test"))).applied
        async with AgentChannel(link, bridge_argv(str(workdir), PYTHON, release)) as channel, channel.http() as http:
            size = len((await http.get("/v1/state")).content)
        assert LARGE / 4 < size < LARGE
