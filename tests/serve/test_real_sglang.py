"""What a real SGLang said is understood: its figures, its documents, the ladder up to an answer."""

from __future__ import annotations

from dataclasses import replace

import httpx

from pipeline.protocol import Readiness
from pipeline.serve import ladder
from pipeline.serve.metrics import parse
from tests.serve.real import MODEL, document, metrics
from tests.serve.test_ladder import Odd, serving


def test_a_server_with_150_requests_in_it() -> None:
    figures = parse(metrics("busy"))
    assert (figures.running, figures.queued, figures.kv_use, figures.retracted) == (148, 0, 0.0, 0)
    assert figures.generated_tokens == 1233  # of finished requests
    assert figures.tok_s is not None and round(figures.tok_s) == 15988
    assert figures.accept_length is None


def test_it_is_seen_to_work_and_to_stand_still() -> None:
    assert parse(metrics("busy")).work != parse(metrics("busier")).work
    idle = parse(metrics("idle"))
    assert (idle.running, idle.queued, idle.tok_s) == (0, 0, 0.0)
    assert dict(idle.work)["generation_tokens_total"] == 1890715
    assert dict(parse(metrics("busy")).work).keys() == dict(idle.work).keys()


def test_processes_of_one_scheduler_count_once() -> None:
    """Some gauges name the process beside the rank."""
    lines = [f'sglang:num_retracted_reqs{{pid="{880 + rank}",tp_rank="{rank}"}} 3.0' for rank in range(8)]
    assert parse("\n".join(lines)).retracted == 3


async def test_the_ladder_reads_its_documents() -> None:
    odd = Odd()
    odd.model, odd.info, odd.meta = document("model_info"), document("server_info"), {"completion_tokens": 8}
    async with serving(odd) as url, httpx.AsyncClient(trust_env=False) as client:
        planned = Readiness(url, MODEL)
        # The flag was not given: how many fit was found by the scheduler.
        assert odd.info["max_running_requests"] is None
        assert await ladder.climb(client, planned) == ladder.Rung("answers", ready=True, max_running=4096)

        odd.info["internal_states"] *= 2  # two data-parallel ranks
        assert (await ladder.climb(client, planned)).max_running == 8192
        odd.info |= {"internal_states": "none", "max_running_requests": 160}
        assert (await ladder.climb(client, planned)).max_running == 160

        rung = await ladder.climb(client, replace(planned, speculative_algorithm="EAGLE3"))
        assert rung.wrong == "speculative algorithm is off, the plan says EAGLE3"
