"""The engine's figures in Prometheus' text format, under SGLang's names and labels."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.demo.engine import Engine, Histogram


def exposition(engine: Engine, model: str) -> str:
    """The body of /metrics."""
    name = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    labels = f'engine_type="unified",model_name="{name}",pp_rank="0",tp_rank="0"'
    figures = engine.figures
    lines: list[str] = []
    for kind, metric, text, value in (
        ("gauge", "num_running_reqs", "The number of running requests.", figures.running),
        ("gauge", "num_queue_reqs", "The number of requests in the waiting queue.", figures.queued),
        ("gauge", "num_used_tokens", "The number of used tokens.", figures.used_tokens),
        ("gauge", "max_total_num_tokens", "Maximum total number of tokens in the KV cache.", engine.capacity),
        ("gauge", "token_usage", "The token usage.", figures.used_tokens / engine.capacity),
        ("gauge", "gen_throughput", "The generation throughput (token/s).", figures.gen_throughput),
        ("gauge", "cache_hit_rate", "The prefix cache hit rate.", 0.0),
        ("gauge", "spec_accept_length", "The average acceptance length of speculative decoding.", 0.0),
        ("counter", "prompt_tokens_total", "Number of prefill tokens processed.", figures.prompt_tokens),
        ("counter", "generation_tokens_total", "Number of generation tokens processed.", figures.generation_tokens),
        ("counter", "cached_tokens_total", "Number of cached prompt tokens.", 0),
        ("counter", "num_requests_total", "Number of requests processed.", figures.requests),
        ("counter", "num_aborted_requests_total", "Number of requests aborted.", figures.aborted),
    ):
        lines += _head(kind, metric, text)
        lines.append(f"sglang:{metric}{{{labels}}} {float(value)}")
    lines += _histogram("e2e_request_latency_seconds", "End-to-end request latency.", figures.latency, labels)
    lines += _histogram("time_to_first_token_seconds", "Time to first token.", figures.first_token, labels)
    return "\n".join(lines) + "\n"


def _head(kind: str, metric: str, text: str) -> list[str]:
    return [f"# HELP sglang:{metric} {text}", f"# TYPE sglang:{metric} {kind}"]


def _histogram(metric: str, text: str, histogram: Histogram, labels: str) -> Iterator[str]:
    yield from _head("histogram", metric, text)
    running = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        running += count
        edge = "+Inf" if bound == float("inf") else str(bound)
        yield f'sglang:{metric}_bucket{{{labels},le="{edge}"}} {float(running)}'
    yield f"sglang:{metric}_count{{{labels}}} {float(running)}"
    yield f"sglang:{metric}_sum{{{labels}}} {histogram.total}"
