"""The thread that decodes: a queue in front of a Decoder, figures for /metrics, and SGLang's log line."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from pipeline.demo.decode import Decoder, Finish, Sequence

LATENCY_BUCKETS: Final = (0.1, 0.4, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)


class EngineDeadError(Exception):
    """The decoding thread ended; nothing will be answered any more."""


@dataclass
class Histogram:
    """Counts by upper bound, as Prometheus wants them."""

    bounds: tuple[float, ...] = LATENCY_BUCKETS
    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        self.total += value
        place = next((index for index, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[place] += 1


@dataclass
class Figures:
    """What /metrics and /server_info show. Token totals grow when a request ends, as SGLang's do."""

    running: int = 0
    queued: int = 0
    used_tokens: int = 0
    gen_throughput: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    requests: int = 0
    aborted: int = 0
    steps: int = 0
    latency: Histogram = field(default_factory=Histogram)
    first_token: Histogram = field(default_factory=Histogram)


@dataclass
class Job:
    """A sequence on its way: queued, decoding, or done, then in the future."""

    sequence: Sequence
    arrived: float
    future: Future[Job]
    first_token: float | None = None
    ended: float = 0.0


class Engine:
    """Answers sequences in the order they come, as many at once as the decoder has slots."""

    def __init__(self, decoder: Decoder, *, log_interval: int = 40) -> None:
        self.decoder = decoder
        self.figures = Figures()
        self._log_interval = log_interval
        self._queue: deque[Job] = deque()
        self._jobs: dict[str, Job] = {}  # by rid: queued and decoding
        self._dropped: dict[str, str] = {}  # rid to message, to be ended by the thread
        self._wake = threading.Condition()
        self._stopping = False
        self._dead = ""
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._window_start, self._window_tokens, self._decode_steps = time.monotonic(), 0, 0

    @property
    def capacity(self) -> int:
        return self.decoder.slots * self.decoder.capacity

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._dead

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End everything that is on its way and the thread with it."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout=10)

    def submit(self, sequence: Sequence) -> Future[Job]:
        """Queue a sequence. Raises ValueError for an id that is on its way already, EngineDeadError after a crash."""
        job = Job(sequence, time.monotonic(), Future())
        with self._wake:
            if self._dead or self._stopping:
                raise EngineDeadError(self._dead or "the server is shutting down")
            if sequence.rid in self._jobs:
                raise ValueError(f"Duplicate request ID detected: {sequence.rid}")
            self._jobs[sequence.rid] = job
            self._queue.append(job)
            self.figures.queued = len(self._queue)
            self._wake.notify()
        return job.future

    def abort(self, rid: str | None, message: str = "Aborted") -> None:
        """End one request, or all of them with None."""
        with self._wake:
            for name in [rid] if rid is not None else list(self._jobs):
                if name in self._jobs:
                    self._dropped[name] = message
            self._wake.notify()

    def idle(self) -> bool:
        with self._wake:
            return not self._jobs

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # whatever the model raised, the requests must hear of it
            self._dead = f"the decoding thread ended: {error!r}"
            print(self._dead, flush=True)
        with self._wake:
            self._stopping = True
            rest, self._jobs = list(self._jobs.values()), {}
            self._queue.clear()
        for job in rest:
            job.future.set_exception(EngineDeadError(self._dead or "the server is shutting down"))

    def _turn(self) -> bool:
        """One round: wait for work, take in, step, hand out. False: stop."""
        with self._wake:
            while not (self._queue or self.decoder.running or self._dropped or self._stopping):
                self._settle()
                self._wake.wait()
                self._window_start, self._window_tokens = time.monotonic(), 0
            if self._stopping:
                return False
            dropped, self._dropped = self._dropped, {}
            ended = self._drop(dropped)
            if self._queue and self.decoder.can_admit():
                self.decoder.admit(self._queue.popleft().sequence)
        if self.decoder.running:
            before = sum(len(one.output) for one in self.decoder.decoding)
            done = self.decoder.step()
            ended += done
            after = sum(len(one.output) for one in [*self.decoder.decoding, *done])
            self._count(after - before)
        self._hand_out(ended)
        return True

    def _drop(self, dropped: dict[str, str]) -> list[Sequence]:
        ended: list[Sequence] = []
        for rid, message in dropped.items():
            waiting = next((job for job in self._queue if job.sequence.rid == rid), None)
            if waiting is not None:
                self._queue.remove(waiting)
                waiting.sequence.finish = Finish("abort", message=message)
                ended.append(waiting.sequence)
            else:
                ended += self.decoder.drop([rid], message)
        return ended

    def _count(self, tokens: int) -> None:
        figures, now = self.figures, time.monotonic()
        for one in self.decoder.decoding:
            job = self._jobs.get(one.rid)
            if job is not None and job.first_token is None:
                job.first_token = now
                figures.first_token.observe(now - job.arrived)
        figures.steps += 1
        self._window_tokens += tokens
        self._settle()
        if self.decoder.decoding:
            self._decode_steps += 1
            if self._decode_steps % self._log_interval == 0:
                self._log(now)

    def _settle(self) -> None:
        figures = self.figures
        figures.running, figures.queued = self.decoder.running, len(self._queue)
        figures.used_tokens = self.decoder.tokens
        if not figures.running:
            figures.gen_throughput = 0.0

    def _log(self, now: float) -> None:
        figures = self.figures
        figures.gen_throughput = self._window_tokens / max(now - self._window_start, 1e-6)
        self._window_start, self._window_tokens = now, 0
        say(
            f"Decode batch, #running-req: {figures.running}, #token: {figures.used_tokens}, "
            f"token usage: {figures.used_tokens / self.capacity:.2f}, cuda graph: False, "
            f"gen throughput (token/s): {figures.gen_throughput:.2f}, #queue-req: {figures.queued}"
        )

    def _hand_out(self, ended: list[Sequence]) -> None:
        now = time.monotonic()
        for sequence in ended:
            with self._wake:
                job = self._jobs.pop(sequence.rid)
            job.ended = now
            assert sequence.finish is not None
            if sequence.finish.kind == "abort":
                self.figures.aborted += 1
            else:
                self.figures.requests += 1
                self.figures.prompt_tokens += len(sequence.prompt)
                self.figures.generation_tokens += len(sequence.output)
                self.figures.latency.observe(now - job.arrived)
            job.future.set_result(job)
        if ended:
            self._settle()


def say(text: str) -> None:
    """A log line with SGLang's time stamp."""
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}", flush=True)
