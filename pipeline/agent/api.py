"""The agent's HTTP routes. What changes something does not exist on the read-only socket."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive

from pipeline.agent import actions, launch, paths
from pipeline.agent.applying import apply
from pipeline.agent.attempts import logs
from pipeline.agent.attempts.environment import MASKED
from pipeline.agent.attempts.plain_files import SPEC_LIMIT, read_plain
from pipeline.agent.board import Job
from pipeline.agent.loop_thread import LoopThread
from pipeline.agent.stream import EventStream
from pipeline.agent.supervisor import Supervisor
from pipeline.protocol import (
    ActionReply,
    ActionRequest,
    AgentInfo,
    ApplyRequest,
    Event,
    History,
    JobDetail,
    LogHits,
    LogPage,
    NotifyTest,
    Problem,
    State,
)

Body = TypeVar("Body")
Answer = Callable[[Request], Coroutine[Any, Any, Response]]
BODY_LIMIT: Final = 16 << 20
EVENTS_IN_STATE: Final = 200
PAGE: Final = 64 * 1024
SEARCH_BUDGET: Final = 64 << 20
ATTEMPTS: Final = 500
POINTS: Final = 200
POINTS_LIMIT: Final = 5000


@dataclass(frozen=True)
class Control:
    """What the routes need beside the supervisor."""

    info: Callable[[], AgentInfo]
    leave: Callable[[bool], None]  # end the agent; True: the keeper too


class Api:
    """The routes of one supervisor."""

    def __init__(self, supervisor: Supervisor, works: LoopThread, control: Control) -> None:
        self._supervisor = supervisor
        self._works = works
        self._board = supervisor.board
        self._control = control

    def app(self, *, read_only: bool) -> Starlette:
        reading = [
            Route("/v1/state", self.state),
            Route("/v1/events", self.events),
            self._route("/v1/history", self.history),
            self._route("/v1/jobs/{name}", self.detail),
            self._route("/v1/jobs/{name}/log", self.log),
            self._route("/v1/jobs/{name}/log/search", self.search),
        ]
        changing = [
            self._route("/v1/plan", self.plan, "PUT"),
            self._route("/v1/restart-crashed", self.restart_crashed, "POST"),
            self._route("/v1/withdraw", self.withdraw, "POST"),
            self._route("/v1/notify/test", self.notify_test, "POST"),
            self._route("/v1/upgrade", self.upgrade, "POST"),
            self._route("/v1/shutdown", self.shutdown, "POST"),
            self._route("/v1/jobs/{name}/{action}", self.action, "POST"),
        ]
        handlers: dict[Any, Any] = {HTTPException: _problem, sqlite3.Error: _not_journaled, Exception: _fault}
        return Starlette(routes=reading if read_only else reading + changing, exception_handlers=handlers)

    def _route(self, path: str, answer: Answer, method: str = "GET") -> Route:
        """A route that is answered in the supervisor's thread. It may wait for the disk; state and events never do."""

        async def endpoint(request: Request) -> Response:
            data = await _data(request)
            return await self._works.call(answer(Request(request.scope, _given(data))))

        return Route(path, endpoint, methods=[method])

    # --- reading ---

    async def state(self, _: Request) -> Response:
        shown = self._board.shown
        return _json(
            State(
                self._control.info(), time.time(), shown.seq, shown.plan, dict(shown.statuses), self._board.beat(),
                shown.events[-EVENTS_IN_STATE:],
            )
        )  # fmt: skip

    async def events(self, request: Request) -> Response:
        since, newest = _number(request, "since", 0, 0, 1 << 62), self._board.shown.seq
        if request.query_params.get("journal", "") not in ("", self._board.store.identity):
            raise HTTPException(409, "there is another journal now: read the state anew")
        if since > newest:
            raise HTTPException(409, f"since={since}, but the newest event is {newest}: read the state anew")
        return cast(Response, EventStream(self._board, since, self._older))

    async def _older(self, since: int, limit: int) -> Sequence[Event]:
        async def read() -> Sequence[Event]:
            return self._board.store.events(since, limit)

        return await self._works.call(read())

    async def history(self, request: Request) -> Response:
        job, figure = request.query_params.get("job", ""), request.query_params.get("figure", "")
        points = _number(request, "points", POINTS, 1, POINTS_LIMIT)
        at, values = await self._supervisor.senses.call(self._supervisor.figures.query, job, figure, points)
        return _json(History(job, figure, at, values))

    async def detail(self, request: Request) -> Response:
        job = self._job(request)
        folder = self._folder(job, job.status.attempt)
        environment = await asyncio.to_thread(_environment, folder) if job.status.attempt else {}
        attempts = self._board.store.attempts(job.spec.name)[-ATTEMPTS:]
        return _json(JobDetail(job.spec, job.status, attempts, environment, str(folder)))

    async def log(self, request: Request) -> Response:
        job, attempt = self._attempt(request)
        offset = _number(request, "offset", -PAGE, -(1 << 62), 1 << 62)
        limit = _number(request, "limit", PAGE, 1, logs.PAGE_LIMIT)
        path = self._folder(job, attempt) / "log"
        page = await asyncio.to_thread(logs.page, path, offset, limit)
        if not page.size:  # the log of an old attempt may have been given back with its folder
            known = next((each for each in self._board.store.attempts(job.spec.name) if each.number == attempt), None)
            gone = known.log_bytes if known is not None else 0
            page = logs.Page(gone, gone, b"", gone)
        return _json(LogPage(attempt, page.offset, page.size, page.data, page.first))

    async def search(self, request: Request) -> Response:
        job, attempt = self._attempt(request)
        text = request.query_params.get("text", "")
        if not text:
            raise HTTPException(400, "text is missing: what to search for")
        offset = _number(request, "offset", 0, 0, 1 << 62)
        limit = _number(request, "limit", 1000, 1, 10_000)
        path = self._folder(job, attempt) / "log"
        found, end = await asyncio.to_thread(logs.search, path, text, offset, limit, SEARCH_BUDGET)
        size = path.stat().st_size if path.exists() else 0
        return _json(LogHits(attempt, found, end, size))

    # --- changing ---

    async def plan(self, request: Request) -> Response:
        wanted = await _body(request, ApplyRequest)
        reply = await apply(self._board, self._supervisor.workdir, wanted)
        self._supervisor.wake()
        return _json(reply)

    async def action(self, request: Request) -> Response:
        name = request.path_params["action"]
        if name not in actions.ACTIONS:
            raise HTTPException(404, f"no action {name!r}; there are {', '.join(actions.ACTIONS)}")
        reply = actions.act(self._board, self._job(request), name, await _body(request, ActionRequest))
        self._supervisor.wake()
        return _json(reply)

    async def restart_crashed(self, request: Request) -> Response:
        reply = actions.restart_crashed(self._board, await _body(request, ActionRequest))
        self._supervisor.wake()
        return _json(reply)

    async def withdraw(self, request: Request) -> Response:
        return _json(actions.withdraw(self._board, await _body(request, ActionRequest)))

    async def notify_test(self, request: Request) -> Response:
        return _json(await self._supervisor.outside.test(await _body(request, NotifyTest)))

    async def upgrade(self, request: Request) -> Response:
        asked = await _body(request, ActionRequest)
        release = request.query_params.get("release", "")
        if not release.replace("-", "").replace("_", "").isalnum():
            raise HTTPException(400, f"release {release!r} is no release's name")
        workdir = self._supervisor.workdir
        if not (Path(paths.release_dir(workdir, release)) / "pipeline").is_dir():
            raise HTTPException(404, f"release {release} is not deployed under {workdir}/releases")
        broken = await asyncio.to_thread(launch.trouble, Path(paths.release_dir(workdir, release)))
        if broken:
            paths.set_current_release(workdir, self._control.info().release)
            raise HTTPException(422, f"release {release} does not start, this agent stays: {broken}")
        reply = ActionReply(True, f"the agent goes on as release {release}")

        def deed() -> tuple[ActionReply, list[actions.Effect]]:
            paths.set_current_release(workdir, release)
            return reply, [lambda: self._control.leave(False)]

        return _json(actions.once(self._board, asked, "upgrade", [], deed))

    async def shutdown(self, request: Request) -> Response:
        asked = await _body(request, ActionRequest)
        stopping = request.query_params.get("jobs", "") == "stop"
        earlier = self._board.store.reply_to(asked.request)
        if earlier is not None:
            return _json(earlier)
        reply = ActionReply(True, "agent and keeper end" + (", jobs are stopped" if stopping else ", jobs go on"))
        try:
            if stopping:
                await self._supervisor.stop_all(asked)
            leave = [lambda: self._control.leave(True)]
            return _json(actions.once(self._board, asked, "shutdown", [], lambda: (reply, leave)))
        except BaseException:
            self._supervisor.go_on()
            raise

    # --- helpers ---

    def _job(self, request: Request) -> Job:
        name = request.path_params["name"]
        job = self._board.jobs.get(name)
        if job is None:
            raise HTTPException(404, f"no job {name!r} in the plan")
        return job

    def _attempt(self, request: Request) -> tuple[Job, int]:
        job = self._job(request)
        attempt = _number(request, "attempt", job.status.attempt, 0, 1 << 31) or job.status.attempt
        return job, attempt

    def _folder(self, job: Job, attempt: int) -> Path:
        return Path(paths.attempt_dir(self._supervisor.workdir, job.spec.name, attempt))


def _environment(folder: Path) -> dict[str, str]:
    try:
        spec = msgspec.json.decode(read_plain(folder / "spec.json", SPEC_LIMIT), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return {}
    return {**spec.get("env", {}), **dict.fromkeys(spec.get("secrets", ()), MASKED)}


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise HTTPException(400, f"{name}={text!r} is not a whole number") from None
    if not least <= value <= most:
        raise HTTPException(400, f"{name}={value} is not between {least} and {most}")
    return value


async def _data(request: Request) -> bytes:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > BODY_LIMIT:
            raise HTTPException(413, f"the body is longer than {BODY_LIMIT >> 20} MiB")
    return data


def _given(data: bytes) -> Receive:
    """What receives a body that is there already, in any thread."""

    async def receive() -> Message:
        return {"type": "http.request", "body": data, "more_body": False}

    return receive


async def _body(request: Request, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.MsgspecError as error:
        raise HTTPException(400, f"not a {kind.__name__}: {error}") from None


async def _problem(_: Request, error: HTTPException) -> Response:
    return _json(Problem(error.detail), error.status_code)


async def _not_journaled(_: Request, error: sqlite3.Error) -> Response:
    return _json(Problem(f"nothing was done, the journal cannot be written: {error}; free space and try again"), 507)


async def _fault(_: Request, error: Exception) -> Response:
    return _json(Problem(f"the agent failed: {type(error).__name__}: {error}; see agent.log"), 500)
