"""The reference server: the part of SGLang's HTTP surface that the pipeline uses, where SGLang cannot run.

``python -m pipeline.demo.server --model-path DIR --port P``. One process, one model,
continuous batching on the CPU with transformers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from pipeline.demo.decode import Decoder, Sequence
from pipeline.demo.engine import Engine, EngineDeadError, Job, say
from pipeline.demo.exposition import exposition
from pipeline.demo.requests import read_request
from pipeline.demo.sampling import Sampling

HEALTH_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Loaded:
    """A model with what the routes need to know of it."""

    path: str
    engine: Engine
    tokenizer: Any  # None where the folder has none
    vocabulary: int
    context_length: int
    end_ids: frozenset[int]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.demo.server", description=__doc__)
    parser.add_argument("--model-path", required=True, help="Hugging Face folder of a causal language model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--max-running-requests", type=int, default=8, help="sequences decoded at once")
    parser.add_argument("--context-length", type=int, help="prompt and answer; else the model's, at most 4096")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="auto: bfloat16 where the processor multiplies it natively, else float32",
    )
    parser.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS") or 1))
    parser.add_argument("--random-seed", type=int, default=0)
    parser.add_argument("--tp-size", type=int, default=1, choices=(1,), help="this server is not parallel")
    parser.add_argument("--decode-log-interval", type=int, default=40)
    parser.add_argument("--enable-metrics", action="store_true", help="serve /metrics")
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    if not (Path(arguments.model_path) / "config.json").is_file():
        print(f"--model-path {arguments.model_path}: no config.json there, expected a model folder", file=sys.stderr)
        return 1
    say(f"server_args={vars(arguments)}")
    server = Server(arguments, load(arguments))
    config = uvicorn.Config(
        server.app(), host=arguments.host, port=arguments.port, log_level="warning", timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run()
    return 0


def load(arguments: argparse.Namespace) -> Loaded:
    """Load the model and start its engine."""
    import torch
    import transformers

    from pipeline.demo.packed import pack

    torch.set_num_threads(arguments.threads)
    transformers.logging.disable_progress_bar()
    began = time.monotonic()
    say("Load weight begin.")
    # Without native support bfloat16 is emulated, and a batch of 8 is no faster than one after the other.
    native = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    dtype = arguments.dtype if arguments.dtype != "auto" else "bfloat16" if native else "float32"
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model_path, dtype=getattr(torch, dtype))
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model_path)
    except (OSError, ValueError):
        tokenizer = None
    limit = int(model.config.max_position_embeddings)
    context_length = min(arguments.context_length or min(limit, 4096), limit)
    say(f"Load weight end. type={type(model).__name__}, dtype={dtype}, elapsed={time.monotonic() - began:.2f} s")
    ends: set[int] = set()
    for value in (model.config.eos_token_id, model.generation_config.eos_token_id):
        ends.update([value] if isinstance(value, int) else value or [])
    pack(model, arguments.max_running_requests)
    decoder = Decoder(model, arguments.max_running_requests, context_length)
    return Loaded(
        path=arguments.model_path,
        engine=Engine(decoder, log_interval=arguments.decode_log_interval),
        tokenizer=tokenizer,
        vocabulary=int(model.config.vocab_size),
        context_length=context_length,
        end_ids=frozenset(ends),
    )


class Server:
    """The routes over one loaded model."""

    def __init__(self, arguments: argparse.Namespace, loaded: Loaded) -> None:
        self.arguments = arguments
        self.loaded = loaded
        self.engine = loaded.engine
        self.ready = False
        self._served = 0

    def app(self) -> Starlette:
        routes = [
            Route("/generate", self.generate, methods=["POST", "PUT"]),
            Route("/flush_cache", self.flush_cache, methods=["GET", "POST"]),
            Route("/abort_request", self.abort_request, methods=["GET", "POST"]),
        ]
        routes += [Route(path, self.health) for path in ("/health", "/health_generate")]
        routes += [Route(path, self.model_info) for path in ("/model_info", "/get_model_info")]
        routes += [Route(path, self.server_info) for path in ("/server_info", "/get_server_info")]
        if self.arguments.enable_metrics:
            routes.append(Route("/metrics", self.metrics))
        return Starlette(routes=routes, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self.engine.start()
        threading.Thread(target=self._warm_up, daemon=True).start()
        try:
            yield
        finally:
            self.ready = False
            await asyncio.to_thread(self.engine.stop)

    def _warm_up(self) -> None:
        try:
            self.engine.submit(self._probe("warm-up", 8)).result()
        except EngineDeadError as error:
            say(f"warm-up failed: {error}")
            return
        self.ready = True
        say("The server is fired up and ready to roll!")

    def _probe(self, rid: str, tokens: int) -> Sequence:
        return Sequence(rid, [0], tokens, frozenset(), Sampling(temperature=0.0))

    async def generate(self, request: Request) -> Response:
        body = await request.body()
        self._served += 1
        loaded = self.loaded
        try:
            sequence = read_request(
                body,
                vocabulary=loaded.vocabulary,
                context_length=loaded.context_length,
                end_ids=loaded.end_ids,
                seed=self.arguments.random_seed * 1_000_003 + self._served,
                encode=None if loaded.tokenizer is None else loaded.tokenizer.encode,
            )
            future = asyncio.wrap_future(self.engine.submit(sequence))
        except ValueError as error:
            return _error(str(error), 400)
        except EngineDeadError as error:
            return _error(str(error), 503)
        while not future.done():
            await asyncio.wait({future}, timeout=0.5)
            # A caller that went away must not keep a slot.
            if not future.done() and await request.is_disconnected():
                self.engine.abort(sequence.rid, "the caller went away")
        try:
            job = future.result()
        except EngineDeadError as error:
            return _error(str(error), 503)
        return JSONResponse(self._answer(job))

    def _answer(self, job: Job) -> dict[str, Any]:
        sequence = job.sequence
        finish = sequence.finish
        assert finish is not None
        reason: dict[str, Any] = {"type": finish.kind}
        if finish.kind == "stop":
            reason["matched"] = finish.matched
        elif finish.kind == "length":
            reason["length"] = len(sequence.output)
        else:
            reason["message"] = finish.message
        shown = sequence.output[:-1] if finish.kind == "stop" else sequence.output
        tokenizer = self.loaded.tokenizer
        return {
            "text": "" if tokenizer is None else tokenizer.decode(shown, skip_special_tokens=True),
            "output_ids": sequence.output,
            "meta_info": {
                "id": sequence.rid,
                "finish_reason": reason,
                "prompt_tokens": len(sequence.prompt),
                "completion_tokens": len(sequence.output),
                "cached_tokens": 0,
                "weight_version": "default",
                "e2e_latency": job.ended - job.arrived,
            },
        }

    async def health(self, _request: Request) -> Response:
        """200 when a token comes out within 20 s: anybody's while there is work, else one of its own."""
        if not self.ready or not self.engine.alive:
            return Response(status_code=503)
        steps, deadline = self.engine.figures.steps, time.monotonic() + HEALTH_TIMEOUT_S
        if self.engine.idle():
            self.engine.submit(self._probe(f"HEALTH_CHECK_{time.monotonic_ns()}", 1))
        while self.engine.figures.steps == steps:
            if time.monotonic() > deadline or not self.engine.alive:
                return Response(status_code=503)
            await asyncio.sleep(0.01)
        return Response(status_code=200)

    async def model_info(self, _request: Request) -> Response:
        return JSONResponse(
            {
                "model_path": self.loaded.path,
                "tokenizer_path": self.loaded.path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
            }
        )

    async def server_info(self, _request: Request) -> Response:
        figures = self.engine.figures
        return JSONResponse(
            {
                **vars(self.arguments),
                "context_length": self.loaded.context_length,
                "speculative_algorithm": None,
                "status": "ready" if self.ready else "starting",
                "max_total_num_tokens": self.engine.capacity,
                "internal_states": [{"last_gen_throughput": figures.gen_throughput}],
                "version": "draftdeck reference server",
            }
        )

    async def metrics(self, _request: Request) -> Response:
        return PlainTextResponse(exposition(self.engine, self.loaded.path), media_type="text/plain; version=0.0.4")

    async def flush_cache(self, _request: Request) -> Response:
        if not self.engine.idle():
            return PlainTextResponse("Flush cache failed: requests are running.\n", status_code=400)
        return PlainTextResponse("Cache flushed.\n")

    async def abort_request(self, request: Request) -> Response:
        try:
            body = await request.json()
        except ValueError:
            return _error("The body is not JSON.", 400)
        rid = body.get("rid") if isinstance(body, dict) else None
        if isinstance(body, dict) and body.get("abort_all"):
            self.engine.abort(None)
        elif isinstance(rid, str) and rid:
            self.engine.abort(rid)
        else:
            return _error("Either rid or abort_all should be given.", 400)
        return Response(status_code=200)


def _error(message: str, status: int) -> JSONResponse:
    return JSONResponse({"error": {"message": message}}, status_code=status)


if __name__ == "__main__":
    sys.exit(main())
