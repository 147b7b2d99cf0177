"""The server's speed as generate shows it: by its count of tokens, of which its gauge is the last few steps only."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections import deque
from collections.abc import AsyncIterator

import pytest

from pipeline.generate.engine import SGLang, figures_of, growth
from tests.serve.real import metrics
from tests.waiting import free_port


def test_what_a_real_server_says() -> None:
    assert figures_of(metrics("busy")) == (148, 15988.323662592446, 14687.0)
    assert figures_of(metrics("busier")) == (150, 10480.170064023529, 63146.0)
    assert figures_of(metrics("idle")) == (0, 0.0, 1889824.0)


def test_what_is_no_figure_is_passed_over() -> None:
    assert figures_of("") == (0, 0.0, 0.0)
    odd = (
        'sglang:num_running_reqs +Inf\nsglang:gen_throughput x\nsglang:realtime_tokens_total{mode="prefill_cache"} 5\n'
    )
    assert figures_of(odd) == (0, 0.0, 0.0)


def test_growth() -> None:
    assert growth(deque([(10.0, 14687.0), (14.0, 63146.0)]), 30) == pytest.approx(12114.75)
    assert growth(deque([(14.0, 63146.0)]), 30) == 0.0  # the first look
    assert growth(deque([(10.0, 900.0), (14.0, 900.0)]), 30) == 0.0


def test_a_count_that_moves_in_steps_is_no_speed_that_jumps() -> None:
    """A slow server counts every seven seconds; it is looked at every five."""
    counts: deque[tuple[float, float]] = deque()
    speeds = []
    for look in range(200):
        now = 5.0 * look
        counts.append((now, 1.0 + 830 * 7 * (now // 7)))
        speeds.append(growth(counts, 30))
        assert len(counts) <= 8
    assert all(830 * 0.75 < speed < 830 * 1.25 for speed in speeds[6:])
    assert statistics.fmean(speeds[6:]) == pytest.approx(830, rel=0.02)


@contextlib.asynccontextmanager
async def saying(bodies: list[str]) -> AsyncIterator[str]:
    """A server whose /metrics gives one body after the other."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = bodies.pop(0).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    port = free_port()
    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield f"http://127.0.0.1:{port}"


async def test_the_gauge_only_where_the_count_does_not_tell() -> None:
    order = ["busy", "busier", "idle", "busy"]  # the last one is of a server that was started again
    async with saying([metrics(name) for name in order]) as url:
        engine = SGLang(url, connections=1)
        try:
            first, second, idle, again = [await engine.load() for _ in order]
        finally:
            await engine.close()
    assert first is not None and (first.running, round(first.tok_s)) == (148, 15988)
    assert second is not None and second.running == 150
    assert second.tok_s != pytest.approx(10480.2, abs=1)  # the gauge's
    assert idle is None
    assert again is not None and round(again.tok_s) == 15988


async def test_after_a_restart_the_count_begins_anew() -> None:
    async with saying([metrics("busier"), metrics("busy")]) as url:
        engine = SGLang(url, connections=1)
        try:
            await engine.load()
            again = await engine.load()
        finally:
            await engine.close()
    assert again is not None and round(again.tok_s) == 15988  # the gauge's
