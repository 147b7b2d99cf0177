"""The reference server as a real process, through HTTP."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from pipeline.serve.metrics import parse
from tests.tiny import END, ROOT, VOCABULARY, Process, make_target, reference_server
from tests.waiting import wait_until

GREEDY = {"temperature": 0.0, "max_new_tokens": 20}


def ask(server: Process, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}/generate", json=body, timeout=60, trust_env=False)


async def test_concurrent_answers_equal_generate(tiny_server: Process, tiny_target: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float32)
    prompts = [[3 + (start * 7 + step * 5) % 90 for step in range(1 + start * 3)] for start in range(12)]
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        replies = await asyncio.gather(
            *(
                client.post(f"{tiny_server.url}/generate", json={"input_ids": prompt, "sampling_params": GREEDY})
                for prompt in prompts
            )
        )
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=END)
        assert answer["output_ids"] == expected[0, len(prompt) :].tolist()
        meta = answer["meta_info"]
        assert meta["prompt_tokens"] == len(prompt)
        assert meta["completion_tokens"] == len(answer["output_ids"])
        assert meta["cached_tokens"] == 0
        assert meta["e2e_latency"] > 0
        stopped = answer["output_ids"][-1] == END
        reason = {"type": "stop", "matched": END} if stopped else {"type": "length", "length": 20}
        assert meta["finish_reason"] == reason


def test_stop_ids_text_and_rid(tiny_server: Process) -> None:
    free = ask(
        tiny_server, {"text": "w1 w2 w3", "rid": "mine", "sampling_params": {**GREEDY, "ignore_eos": True}}
    ).json()
    assert free["meta_info"]["id"] == "mine"
    assert len(free["output_ids"]) == 20
    stop = free["output_ids"][5]
    cut = ask(
        tiny_server,
        {"text": "w1 w2 w3", "sampling_params": {**GREEDY, "ignore_eos": True, "stop_token_ids": [stop]}},
    ).json()
    first = free["output_ids"].index(stop)
    assert cut["output_ids"] == free["output_ids"][: first + 1]
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_sampling_seed_repeats(tiny_server: Process) -> None:
    body = {"input_ids": [5, 6], "sampling_params": {"temperature": 1.0, "max_new_tokens": 30, "sampling_seed": 4}}
    assert ask(tiny_server, body).json()["output_ids"] == ask(tiny_server, body).json()["output_ids"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input_ids": [VOCABULARY]}, f"from 0 to {VOCABULARY - 1}"),
        ({"input_ids": [-1]}, "token ids"),
        ({"input_ids": [[1, 2], [3]]}, "token ids"),
        ({"input_ids": ["a"]}, "token ids"),
        ({"input_ids": []}, "empty"),
        ({}, "Either text or input_ids"),
        ({"input_ids": [1], "text": "w1"}, "not both"),
        ({"input_ids": [5] * 256}, "longer than the model's context length (256 tokens)"),
        ({"input_ids": [5] * 250, "sampling_params": {"max_new_tokens": 10}}, "maximum context length of 256 tokens"),
        ({"input_ids": [5], "sampling_params": {"temperature": -1}}, "temperature"),
        ({"input_ids": [5], "sampling_params": {"top_p": 0}}, "top_p"),
        ({"input_ids": [5], "sampling_params": {"top_k": 0}}, "top_k"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": 0}}, "max_new_tokens"),
        ({"input_ids": [5], "sampling_params": {"max_tokens": 9}}, "max_tokens"),
        ({"input_ids": [5], "sampling_params": {"stop_token_ids": [999]}}, "stop_token_ids"),
        ({"input_ids": [5], "stream": True}, "stream"),
        ({"input_ids": [5], "lora_path": "x"}, "lora_path"),
        ({"input_ids": [5], "rid": 7}, "rid"),
        ([1], "JSON object"),
    ],
)
def test_bad_input_is_400_with_sglangs_error_body(tiny_server: Process, body: Any, says: str) -> None:
    reply = httpx.post(f"{tiny_server.url}/generate", json=body, timeout=30, trust_env=False)
    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]


def test_body_that_is_no_json(tiny_server: Process) -> None:
    reply = httpx.post(f"{tiny_server.url}/generate", content=b"{", timeout=30, trust_env=False)
    assert reply.status_code == 400


def test_info_metrics_and_log(tiny_server: Process, tiny_target: Path) -> None:
    assert "The server is fired up and ready to roll!" in tiny_server.output()
    ask(tiny_server, {"input_ids": [5, 6], "sampling_params": {**GREEDY, "max_new_tokens": 60, "ignore_eos": True}})
    for path in ("/model_info", "/get_model_info"):
        assert httpx.get(tiny_server.url + path, trust_env=False).json()["model_path"] == str(tiny_target)
    for path in ("/server_info", "/get_server_info"):
        info = httpx.get(tiny_server.url + path, trust_env=False).json()
        assert info["speculative_algorithm"] is None
        assert info["max_running_requests"] == 4
    assert httpx.get(f"{tiny_server.url}/health_generate", trust_env=False, timeout=30).status_code == 200
    text = httpx.get(f"{tiny_server.url}/metrics", trust_env=False).text
    for name in (
        "num_running_reqs",
        "num_queue_reqs",
        "gen_throughput",
        "token_usage",
        "max_total_num_tokens",
        "spec_accept_length",
        "prompt_tokens_total",
        "generation_tokens_total",
        "num_requests_total",
        "e2e_request_latency_seconds_count",
        "time_to_first_token_seconds_bucket",
    ):
        assert f"\nsglang:{name}{{" in text
    figures = parse(text)
    assert figures.running == 0
    assert figures.generated_tokens is not None and figures.generated_tokens >= 60
    line = next(line for line in tiny_server.output().splitlines() if "Decode batch" in line)
    for part in ("#running-req: ", "#token: ", "token usage: ", "gen throughput (token/s): ", "#queue-req: "):
        assert part in line


def test_abort_flush_and_a_caller_that_goes_away(tiny_target: Path, tmp_path: Path) -> None:
    long = {"input_ids": [5], "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True, "temperature": 1.0}}
    folder = tmp_path / "slow"
    make_target(folder, layers=8, positions=4096)
    with reference_server(folder, tmp_path / "log", "--max-running-requests", "2") as running:
        with httpx.Client(trust_env=False, timeout=0.5) as client, pytest.raises(httpx.ReadTimeout):
            client.post(f"{running.url}/generate", json=long)

        def figure(name: str) -> float:
            text = httpx.get(f"{running.url}/metrics", trust_env=False).text
            return float(next(line for line in text.splitlines() if line.startswith(f"sglang:{name}{{")).split()[-1])

        wait_until(lambda: figure("num_aborted_requests_total") == 1, "the abandoned request is dropped", timeout_s=60)
        wait_until(lambda: figure("num_running_reqs") == 0, "its slot is free", timeout_s=60)

        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask, running, {**long, "rid": "x"})
            wait_until(lambda: figure("num_running_reqs") == 1, "the request is running", timeout_s=60)
            post = partial(httpx.post, trust_env=False)
            assert post(f"{running.url}/flush_cache").status_code == 400
            assert post(f"{running.url}/abort_request", json={}).status_code == 400
            assert post(f"{running.url}/abort_request", json={"rid": "x"}).status_code == 200
            answer = asking.result().json()
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert httpx.post(f"{running.url}/flush_cache", trust_env=False).status_code == 200

        # SIGTERM ends it at once, work or no work.
        with httpx.Client(trust_env=False, timeout=0.2) as client, pytest.raises(httpx.ReadTimeout):
            client.post(f"{running.url}/generate", json=long)
        began = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(timeout=15)
        assert time.monotonic() - began < 10


def test_no_model_no_server(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.demo.server", "--model-path", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no config.json there" in done.stderr
