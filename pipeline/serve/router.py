"""Become SGLang's router, which spreads requests over model servers: ``python -m pipeline.serve.router --help``.

Its defaults are made for chat. For answers that take half an hour, each wanted exactly once: no retries (it would run
a prompt twice, and generate asks again by itself), time limits as long as an answer may take, no limit on what waits,
and a health check that outlasts SGLang's own of 20 s.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

from pipeline.serve.command import become

REFUSED = 4
"""Exit code for settings that it must not be started with; the reasons are on stderr."""

SGLANG_HEALTH_S = 20
DAY_S = 86400


@dataclass(frozen=True)
class RouterOptions:
    """``workers`` are URLs of model servers."""

    workers: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 30002
    metrics_port: int = 30003
    policy: str = "power_of_two"
    timeout_s: int = DAY_S  # of a request
    health_timeout_s: int = 25
    start_s: int = 3600  # a worker may load for so long
    python: str = sys.executable


def router_argv(options: RouterOptions) -> list[str]:
    """The argv that starts the router."""
    return [
        *(options.python, "-m", "sglang_router.launch_router", "--worker-urls", *options.workers),
        *("--host", options.host, "--port", str(options.port)),
        *("--prometheus-host", options.host, "--prometheus-port", str(options.metrics_port)),
        *("--policy", options.policy, "--log-level", "warn"),
        "--disable-retries",
        "--disable-circuit-breaker",  # a few long answers that fail must not shut a server out
        *("--request-timeout-secs", str(options.timeout_s)),
        *("--queue-timeout-secs", str(options.timeout_s)),
        *("--queue-size", "100000"),
        *("--max-concurrent-requests", "-1"),
        *("--health-check-timeout-secs", str(options.health_timeout_s)),
        *("--health-check-interval-secs", "10"),
        *("--health-failure-threshold", "3"),
        *("--health-success-threshold", "1"),
        *("--worker-startup-timeout-secs", str(options.start_s)),
    ]


def refusals(options: RouterOptions) -> list[str]:
    """Why this router must not be started, one sentence each; empty where nothing speaks against it."""
    found = [] if options.workers else ["no --worker: name at least one model server"]
    for worker in dict.fromkeys(options.workers):
        if urlsplit(worker).scheme not in ("http", "https") or not urlsplit(worker).netloc:
            found.append(f"--worker {worker}: expected http://HOST:PORT")
        elif options.workers.count(worker) > 1:
            found.append(f"--worker {worker} is given twice: it would get twice its share")
        elif urlsplit(worker).netloc == f"{options.host}:{options.port}":
            found.append(f"--worker {worker} is the router itself: give it a port of its own")
    if options.health_timeout_s <= SGLANG_HEALTH_S:
        found.append(
            f"--health-timeout {options.health_timeout_s}: SGLang's health check takes up to {SGLANG_HEALTH_S} s, and "
            "a busy server would count as dead; give more"
        )
    if options.port == options.metrics_port:
        found.append(f"--metrics-port {options.metrics_port} is --port too: give each its own")
    return found


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.serve.router",
        description="Start SGLang's router with settings fit for bulk generation. The process becomes the router.",
    )
    parser.add_argument("--worker", action="append", default=[], metavar="URL", help="a model server")
    parser.add_argument("--host", default=RouterOptions.host)
    parser.add_argument("--port", type=int, default=RouterOptions.port)
    parser.add_argument("--metrics-port", type=int, default=RouterOptions.metrics_port)
    parser.add_argument("--policy", default=RouterOptions.policy, help="how it picks a server")
    parser.add_argument("--timeout", type=int, default=RouterOptions.timeout_s, help="seconds a request may take")
    parser.add_argument("--health-timeout", type=int, default=RouterOptions.health_timeout_s, help="seconds")
    parser.add_argument("--start", type=int, default=RouterOptions.start_s, help="seconds a server may load")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has sglang-router installed")
    parser.add_argument("--print", action="store_true", dest="print_only", help="print the router's command and end")
    return parser


def options_of(arguments: argparse.Namespace) -> RouterOptions:
    return RouterOptions(
        workers=tuple(worker.rstrip("/") for worker in arguments.worker),
        host=arguments.host,
        port=arguments.port,
        metrics_port=arguments.metrics_port,
        policy=arguments.policy,
        timeout_s=arguments.timeout,
        health_timeout_s=arguments.health_timeout,
        start_s=arguments.start,
        python=arguments.python,
    )


def main(argv: list[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    options = options_of(arguments)
    if reasons := refusals(options):
        for reason in reasons:
            print(f"router: refused: {reason}", file=sys.stderr)
        return REFUSED
    return become("router", router_argv(options), print_only=arguments.print_only)


if __name__ == "__main__":
    sys.exit(main())
