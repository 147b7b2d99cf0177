"""Each cause with real evidence: processes that really die so, the words that libraries and drivers really write."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.agent.diagnosis.causes import Evidence
from pipeline.protocol import JobSpec, JobState, RestartPolicy
from tests.agent.deaths import SERVE, TRAIN, died, found, ran
from tests.agent.rig import ROOT, Rig, shell, until
from tests.prep.small import make_tokenizer
from tests.tiny import Process
from tests.waiting import free_port

S = JobState
SAMPLES = Path(__file__).with_name("samples")


# --- A GPU: recorded, see samples/README.md --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "ended", "cause", "reason"),
    [
        ("cuda_oom", 1, "cuda-oom", "CUDA out of memory: 50.00 GiB wanted on GPU 0, 39.29 GiB free"),
        ("cuda_assert", 1, "gpu-index", "an index out of range on the GPU"),
        ("cuda_none", 1, "gpu-missing", "no GPU seen"),
        (
            "nccl_duplicate",
            1,
            "nccl",
            "NCCL failure: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60",
        ),
        ("nccl_timeout", 134, "nccl", "NCCL failure: ALLREDUCE not done after 5 s"),
    ],
)
def test_what_torch_says_of_a_gpu(sample: str, ended: int, cause: str, reason: str) -> None:
    log = (SAMPLES / f"{sample}.log").read_bytes()
    state, words, diagnosis = found(Evidence(TRAIN, exit_code=ended, log_tail=log))
    assert (state, diagnosis.cause, words) == (S.FAILED, cause, reason)


def test_a_torch_without_cuda(tmp_path: Path) -> None:
    _, reason, diagnosis = found(ran(tmp_path, "import torch; torch.zeros(1, device='cuda')", spec=TRAIN))
    assert (diagnosis.cause, reason) == ("gpu-missing", "no GPU seen")


# --- Ports and modules -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_server_started_twice(tiny_server: Process, tiny_target: Path, tmp_path: Path) -> None:
    arguments = ("-m", "pipeline.demo.server", "--model-path", str(tiny_target), "--port", str(tiny_server.port))
    state, reason, diagnosis = found(died(tmp_path, *arguments, spec=SERVE, env={"PYTHONPATH": str(ROOT)}))
    assert (state, diagnosis.cause, reason) == (S.FAILED, "port-in-use", f"port in use: {tiny_server.port}")


def test_the_port_of_the_ranks_is_taken(tmp_path: Path) -> None:
    code = """
import os, socket, sys, torch.distributed
held = socket.create_server(("127.0.0.1", int(sys.argv[1])))
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
torch.distributed.init_process_group("gloo", rank=0, world_size=1)
"""
    port = free_port()
    _, reason, diagnosis = found(ran(tmp_path, code, str(port), spec=TRAIN))
    assert (diagnosis.cause, reason) == ("port-in-use", f"port in use: {port}")


def test_a_server_whose_engine_is_not_installed(tmp_path: Path) -> None:
    """The process becomes SGLang's launcher, which this Python does not have."""
    arguments = ("-m", "pipeline.serve", "--engine", "sglang", "--model", "m", "--port", str(free_port()))
    state, reason, diagnosis = found(died(tmp_path, *arguments, spec=SERVE, env={"PYTHONPATH": str(ROOT)}))
    assert (state, diagnosis.cause, reason) == (S.FAILED, "module", "missing module: sglang")
    assert "serve.python" in diagnosis.advice


# --- The hub: a server that answers as the real one does --------------------------------------------------------------


@contextmanager
def hub(status: int, code: str = "", message: str = "") -> Iterator[str]:
    """The endpoint of a hub that answers everything so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in (("X-Error-Code", code), ("X-Error-Message", message), ("Content-Length", "0")):
                if value:
                    self.send_header(name, value)
            self.end_headers()

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def hub_environment(endpoint: str, home: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}


FILE = (
    "import huggingface_hub, time; time.sleep = lambda _: None; huggingface_hub.hf_hub_download('some/thing', 'x.json')"
)
CONFIG = "import transformers, time; time.sleep = lambda _: None; transformers.AutoConfig.from_pretrained('some/thing')"
ROWS = "import datasets; datasets.load_dataset('some/thing', split='train', streaming=True)"
GATED = "Access to model some/thing is restricted. You must have access to it and be authenticated to access it."


@pytest.mark.parametrize(
    ("answer", "code", "cause", "reason"),
    [
        ((403, "GatedRepo", GATED), ROWS, "gated", "gated: some/thing"),
        ((403, "GatedRepo", GATED), FILE, "gated", "gated: some/thing"),
        ((401, "", "Invalid username or password."), FILE, "gated", "no access: some/thing"),
        ((403, "", "Forbidden: token lacks the right"), FILE, "gated", "no access: some/thing"),
        ((404, "RepoNotFound", "Repository not found"), ROWS, "missing", "not found on the hub: some/thing"),
        ((404, "RepoNotFound", "Repository not found"), FILE, "missing", "not found on the hub: some/thing"),
        ((404, "RevisionNotFound", "Invalid rev id"), FILE, "missing", "no such revision on the hub: some/thing"),
        ((404, "EntryNotFound", "Entry not found"), FILE, "missing", "not found on the hub: some/thing"),
        ((429, "", ""), FILE, "rate-limited", "rate limited by the hub"),
        ((503, "", ""), FILE, "hub-down", "the hub is down or overloaded"),
    ],
)
def test_what_the_hub_answers(answer: tuple[int, str, str], code: str, cause: str, reason: str, tmp_path: Path) -> None:
    with hub(*answer) as endpoint:
        state, words, diagnosis = found(died(tmp_path, "-c", code, env=hub_environment(endpoint, tmp_path)))
    assert (state, diagnosis.cause, words) == (S.FAILED, cause, reason), diagnosis.evidence


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "cause", "reason"),
    [
        ((401, "GatedRepo", GATED), "gated", "gated: some/thing"),
        ((404, "RepoNotFound", "Repository not found"), "missing", "not found on the hub: some/thing"),
        ((404, "RevisionNotFound", "Invalid rev id"), "missing", "no such revision on the hub: some/thing"),
        ((429, "", ""), "rate-limited", "rate limited by the hub"),
        ((503, "", ""), "hub-down", "the hub is down or overloaded"),
    ],
)
def test_what_transformers_makes_of_it(answer: tuple[int, str, str], cause: str, reason: str, tmp_path: Path) -> None:
    """For whatever it does not know it says "couldn't connect"."""
    with hub(*answer) as endpoint:
        state, words, diagnosis = found(died(tmp_path, "-c", CONFIG, env=hub_environment(endpoint, tmp_path)))
    assert (state, diagnosis.cause, words) == (S.FAILED, cause, reason), diagnosis.evidence


async def test_a_prep_that_may_not_read_its_dataset_and_one_that_keeps_nothing_of_it(
    agent: Rig, tmp_path: Path
) -> None:
    target = make_tokenizer(tmp_path / "target")
    rows = [{"conversations": [{"from": "robot", "value": f"Turn {number}"}]} for number in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def prep(name: str, source: str, env: dict[str, str]) -> JobSpec:
        command = (
            f"exec {sys.executable} -m pipeline.prep --dataset {name} --kind prompts --source {source}"
            f" --target {target} --context-length 256 --max-new-tokens 32 --partition short --out data/prompts/{name}"
        )
        env = {"PYTHONPATH": str(ROOT), **env}
        return shell(f"prep:{name}", command, stage="prep", env=env, restart=RestartPolicy(limit=1))

    with hub(403, "GatedRepo", GATED) as endpoint:
        await agent.apply(
            prep("B4", "some/thing", hub_environment(endpoint, tmp_path)),
            prep("B5", str(tmp_path / "rows.jsonl"), {"HF_HOME": str(tmp_path)}),
        )
        gated = await agent.reach("prep:B4", S.FAILED, within=120)
        empty = await agent.reach("prep:B5", S.EMPTY, within=120)
    assert gated.diagnosis is not None and gated.diagnosis.cause == "gated", gated
    assert (
        "B4: some/thing is gated or private" in gated.reason
        and "draftdeck secret set HF_TOKEN" in gated.diagnosis.advice
    )
    assert (empty.exit_code, empty.attempt) == (3, 1)
    assert "0 of 20" in empty.reason and "robot" in empty.reason
    assert empty.diagnosis is not None and any("B5: 20 ×" in fact for fact in empty.diagnosis.evidence)


def test_a_hub_that_nobody_listens_for(tmp_path: Path) -> None:
    env = hub_environment(f"http://127.0.0.1:{free_port()}", tmp_path)
    _, reason, diagnosis = found(died(tmp_path, "-c", FILE, env=env))
    assert (diagnosis.cause, reason) == ("network", "no connection")


# --- Launchers and their children -------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_rank_that_torchrun_names(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    arguments = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), str(script))
    script.write_text(
        "import torch.distributed as d\nd.init_process_group('gloo')\n"
        "if d.get_rank() == 1: raise ValueError('loss is NaN at step 12')\nd.barrier()\n"
    )
    state, reason, diagnosis = found(died(tmp_path, *arguments, spec=TRAIN, env={"OMP_NUM_THREADS": "1"}))
    assert (state, diagnosis.cause, reason) == (S.FAILED, "rank", "rank 1: ValueError: loss is NaN at step 12")
    script.write_text(
        "import os, signal, torch.distributed as d\nd.init_process_group('gloo')\n"
        "if d.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\nd.barrier()\n"
    )
    state, reason, diagnosis = found(died(tmp_path, *arguments, spec=TRAIN, env={"OMP_NUM_THREADS": "1"}))
    assert (state, diagnosis.cause, reason) == (S.FAILED, "rank", "rank 1 died of SIGKILL")


def test_a_worker_of_a_dataset_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import datasets, os, signal\n"
        "def work(row, index):\n    if index == 7: os.kill(os.getpid(), signal.SIGKILL)\n    return row\n"
        "if __name__ == '__main__':\n"
        "    rows = datasets.Dataset.from_dict({'a': list(range(20))})\n"
        "    rows.map(work, with_indices=True, num_proc=2)\n"
    )
    evidence = died(tmp_path, str(script), env={"HF_HOME": str(tmp_path)})
    state, reason, diagnosis = found(replace(evidence, oom_before=0, oom_after=1))
    assert (state, reason, diagnosis.cause) == (S.FAILED, "a child was OOM-killed", "oom")


LAUNCHER = """
import multiprocessing, os, signal, sys, time, traceback

def scheduler(how):
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if how == "exception":
        try:
            raise AssertionError("kv indices out of range")
        except AssertionError:
            print(f"[2026-11-29 14:02:09 TP3] Scheduler hit an exception: {traceback.format_exc()}", flush=True)
            os.kill(os.getppid(), signal.SIGQUIT)
    time.sleep(600)

def quit(number, frame):
    print(f"[2026-11-29 14:02:10] SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
    sys.stdout.flush()
    child.kill()
    os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(0)

signal.signal(signal.SIGQUIT, quit)
child = multiprocessing.get_context("fork").Process(target=scheduler, args=(sys.argv[1],))
child.start()
print(f"child {child.pid}", flush=True)
while child.is_alive():
    time.sleep(0.02)
print(f"[2026-11-29 14:02:10] Subprocess scheduler_0 (pid={child.pid}) crashed with exit code {child.exitcode}."
      " Triggering SIGQUIT for cleanup...", flush=True)
os.kill(os.getpid(), signal.SIGQUIT)
time.sleep(600)
"""
"""Does with its child and itself what SGLang's launcher does: managers/tokenizer_manager.py, utils/watchdog.py."""


async def test_a_launcher_that_kills_itself_when_its_child_dies(agent: Rig) -> None:
    script = agent.workdir / "launcher.py"
    script.write_text(LAUNCHER)
    python = f"exec {sys.executable} {script}"
    in_container = f"exec unshare -pf --mount-proc {sys.executable} {script}"
    await agent.apply(
        shell("a", f"{python} exception", service=True),
        shell("b", f"{python} waits", service=True),
        shell("c", f"{in_container} exception", service=True),
    )
    status = await agent.reach("a", S.FAILED)
    words = "a child of the server died: AssertionError: kv indices out of range"
    assert (status.signal, status.reason) == (9, words)
    assert status.diagnosis is not None and status.diagnosis.cause == "server-child"
    assert any("SIGQUIT received" in fact for fact in status.diagnosis.evidence)

    def child() -> str:
        match = re.search(r"child (\d+)", (agent.folder("b") / "log").read_text())
        return match[1] if match else ""

    os.kill(int(await until(child)), signal.SIGKILL)
    status = await agent.reach("b", S.FAILED)
    assert (status.signal, status.reason) == (9, "the server's scheduler_0 died of SIGKILL")

    # As pid 1 of a container it cannot kill itself: it exits 0.
    status = await agent.reach("c", S.FAILED)
    log = (agent.folder("c") / "log").read_text()
    if "Operation not permitted" in log:
        pytest.skip(f"no pid namespace can be made here: {log.strip()}")
    assert (status.exit_code, status.reason) == (0, words)


# --- Ends that are no failure, or a quiet one ------------------------------------------------------------------------


ABORTS_AT_EXIT = """
import ctypes, sys
from pipeline.progress import Reporter

new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# A native object whose destructor aborts when the interpreter clears its modules.
kept = new(1, b"native", ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p))
if sys.argv[1] == "whole":
    Reporter().finish(2800, "2,800 of 2,809 kept", manifest="data/prompts/B1/manifest.json")
"""


async def test_an_abort_at_exit_is_done_if_the_output_is_whole(agent: Rig) -> None:
    script = agent.workdir / "aborts.py"
    script.write_text(ABORTS_AT_EXIT)
    python = f"exec {sys.executable} {script}"
    env = {"PYTHONPATH": str(ROOT)}
    policy = RestartPolicy(limit=1)
    await agent.apply(
        shell("a", f"{python} whole", stage="prep", env=env, restart=policy),
        shell("b", f"{python} cut", stage="prep", env=env),
    )
    status = await agent.reach("a", S.DONE)
    assert status.reason == "2,800 of 2,809 kept (crashed at exit, output complete)"
    assert (status.signal, status.attempt) == (6, 1) and status.diagnosis is not None
    assert "<no Python frame>" in status.diagnosis.evidence
    assert "data/prompts/B1/manifest.json" in status.diagnosis.evidence
    status = await agent.reach("b", S.FAILED)
    assert status.reason == "crashed: Aborted"


async def test_exit_0_with_zero_records_is_empty_and_not_tried_again(agent: Rig) -> None:
    code = "from pipeline.progress import Reporter; Reporter().finish(0, '0 of 114,000: no user turn')"
    policy = RestartPolicy(limit=3)
    await agent.apply(shell("a", f'{sys.executable} -c "{code}"', env={"PYTHONPATH": str(ROOT)}, restart=policy))
    status = await agent.reach("a", S.EMPTY)
    assert (status.reason, status.exit_code, status.attempt) == ("0 of 114,000: no user turn", 0, 1)


async def test_who_ended_it_and_when(agent: Rig) -> None:
    await agent.apply(shell("a", "exec sleep 100"), shell("b", "exec sleep 100"))
    for name, action, word in (("a", "stop", "stopped"), ("b", "kill", "killed")):
        await agent.reach(name, S.RUNNING)
        await agent.act(name, action)
        status = await agent.reach(name, S.STOPPED)
        assert re.fullmatch(rf"{word} by tester at \d\d:\d\d:\d\d UTC", status.reason)
        assert status.diagnosis is not None and status.diagnosis.cause == "operator"
