"""The readiness ladder against the reference server, and against servers that are up but wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.protocol import Readiness
from pipeline.serve import ladder
from tests.tiny import Process
from tests.waiting import free_port


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False) as one:
        yield one


def plan(server: Process, target: Path, **changes: Any) -> Readiness:
    return replace(Readiness(server.url, str(target)), **changes)


async def test_the_planned_server_answers(client: httpx.AsyncClient, tiny_server: Process, tiny_target: Path) -> None:
    rung = await ladder.climb(client, plan(tiny_server, tiny_target))
    assert rung == ladder.Rung("answers", ready=True, max_running=4)


async def test_another_model_is_wrong(client: httpx.AsyncClient, tiny_server: Process) -> None:
    rung = await ladder.climb(client, plan(tiny_server, Path("/models/other")))
    assert not rung.ready
    assert rung.step == "health 200"
    assert "the plan says /models/other" in rung.wrong


async def test_missing_speculation_is_wrong(client: httpx.AsyncClient, tiny_server: Process, tiny_target: Path) -> None:
    rung = await ladder.climb(client, plan(tiny_server, tiny_target, speculative_algorithm="EAGLE3"))
    assert rung.wrong == "speculative algorithm is off, the plan says EAGLE3"


async def test_nothing_listens(client: httpx.AsyncClient) -> None:
    rung = await ladder.climb(client, Readiness(f"http://127.0.0.1:{free_port()}", "m"))
    assert (rung.step, rung.ready, rung.wrong) == ("waits for the port", False, "")


class Odd:
    """A server that says whatever a test wants it to."""

    def __init__(self) -> None:
        self.health = 200
        self.model: Any = {"model_path": "m"}
        self.info: Any = {"speculative_algorithm": "EAGLE3"}
        self.meta: Any = {"completion_tokens": 64, "spec_accept_length": 2.1}
        self.delay_s = 0.0

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        if path == "/health":
            return Response(status_code=self.health)
        if path == "/model_info":
            return Response(status_code=404)
        if path == "/get_model_info":
            return JSONResponse(self.model)
        if path == "/server_info":
            return JSONResponse(self.info)
        if path == "/generate":
            await asyncio.sleep(self.delay_s)
            return JSONResponse({"meta_info": self.meta})
        return Response(status_code=404)


@asynccontextmanager
async def serving(odd: Odd) -> AsyncIterator[str]:
    port = free_port()
    app = Starlette(routes=[Route("/{path:path}", odd.answer, methods=["GET", "POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


async def test_rungs_and_mismatches(client: httpx.AsyncClient) -> None:
    odd = Odd()
    async with serving(odd) as url:
        planned = Readiness(
            url, "m", speculative_algorithm="EAGLE3", checks=replace(Readiness(url, "m").checks, timeout_s=1.0)
        )
        assert (await ladder.climb(client, planned)).ready

        odd.meta = {"completion_tokens": 64, "spec_accept_length": 1.0}
        rung = await ladder.climb(client, planned)
        assert rung.step == "model ok"
        assert "accept length 1.00 on the canned prompt, at least 1.05" in rung.wrong
        assert (await ladder.climb(client, replace(planned, min_accept_length=0.9))).ready

        odd.info = {"speculative_algorithm": "EAGLE"}
        rung = await ladder.climb(client, planned)
        assert rung.wrong == "speculative algorithm is EAGLE, the plan says EAGLE3"

        odd.info = {"speculative_algorithm": "EAGLE3"}
        odd.meta = {"completion_tokens": 0}
        rung = await ladder.climb(client, planned)
        assert (rung.step, rung.wrong) == ("model ok", "")
        assert "without a token" in rung.detail

        odd.model = ["not an object"]
        rung = await ladder.climb(client, planned)
        assert (rung.step, rung.wrong) == ("health 200", "")
        odd.health = 503
        rung = await ladder.climb(client, planned)
        assert (rung.step, rung.detail) == ("port open", "/health answers 503")
