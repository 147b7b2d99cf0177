from __future__ import annotations

import dataclasses
import signal
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.agent.attempts.logs import plain
from pipeline.agent.diagnosis.causes import REASON_LIMIT, Evidence, diagnose
from pipeline.protocol import DatasetCount, JobSample, JobSpec, JobState, Progress, Result
from tests.agent.deaths import PREP, SERVE, found, ran

MADE = Result(at=1.0, records=2800, message="2,800 of 2,809 kept")
NONE = Result(
    at=1.0, records=0, message="0 of 114,000: no user turn; roles seen: user",
    datasets={"B5": DatasetCount(read=114_000, dropped={"no user turn": 113_990, "empty": 10})},
)  # fmt: skip
SAMPLE = JobSample(memory=61 * 10**9)


# --- It was whole, or asked for, or not seen ------------------------------------------------------------------------


def test_exit_0_with_records_is_done() -> None:
    assert diagnose(Evidence(PREP, exit_code=0, result=MADE)) == (JobState.DONE, "2,800 of 2,809 kept", None)


def test_exit_0_of_a_stage_without_a_result_line_is_done() -> None:
    assert diagnose(Evidence(JobSpec("demo:target", "demo", ("x",)), exit_code=0)) == (JobState.DONE, "", None)


@pytest.mark.parametrize("stage", ["prep", "dedup", "generate", "merge"])
def test_a_batch_stage_that_ends_without_a_result_failed(stage: str) -> None:
    progress = Progress(at=1.0, phase="read", done=1200, total=5000)
    spec = JobSpec("x", stage, ("x",))
    state, reason, diagnosis = found(Evidence(spec, exit_code=0, progress=progress, log_tail=b"bye\n"))
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, "ended without a result", "no-result")
    assert "last progress: read, 1,200 of 5,000 records" in diagnosis.evidence
    assert "last line of its log: bye" in diagnosis.evidence


@pytest.mark.parametrize("code", [0, 3])
def test_no_records_is_empty_whatever_the_exit_code_says(code: int) -> None:
    state, reason, diagnosis = found(Evidence(PREP, exit_code=code, result=NONE))
    assert (state, reason, diagnosis.cause) == (JobState.EMPTY, NONE.message, "empty")
    assert "B5: 113,990 × no user turn" in diagnosis.evidence


def test_an_abort_at_exit_after_complete_output_is_done_with_a_remark() -> None:
    log = (
        b"Fatal Python error: PyGILState_Release: thread state 0x7f must be current when releasing\n"
        b"Python runtime state: finalizing (tstate=0x0000000000b5c0a8)\n\n"
        b"Thread 0x00007f0 (most recent call first):\n  <no Python frame>\n"
    )
    for ended in ({"signal": 6}, {"exit_code": 134}):
        evidence = Evidence(PREP, log_tail=log, result=MADE, **ended)  # type: ignore[arg-type]
        state, reason, diagnosis = found(evidence)
        assert (state, diagnosis.cause) == (JobState.DONE, "abort-at-exit")
        assert reason == "2,800 of 2,809 kept (crashed at exit, output complete)"
        state, reason, diagnosis = found(dataclasses.replace(evidence, result=None))
        assert (state, diagnosis.cause) == (JobState.FAILED, "crash")
        assert reason.startswith("crashed: PyGILState_Release")


def test_an_operator_who_stopped_it_is_named() -> None:
    state, reason, diagnosis = found(Evidence(PREP, signal=9, stopped_by="alice at 14:02", oom_before=0, oom_after=1))
    assert (state, reason, diagnosis.cause) == (JobState.STOPPED, "stopped by alice at 14:02", "operator")
    assert "ended by SIGKILL" in diagnosis.evidence


def test_a_job_that_was_done_before_it_was_stopped_is_done() -> None:
    assert diagnose(Evidence(PREP, exit_code=0, result=MADE, stopped_by="alice"))[0] == JobState.DONE
    assert diagnose(Evidence(PREP, exit_code=0, stopped_by="alice"))[0] == JobState.STOPPED


def test_a_lost_end_is_lost_with_what_is_known() -> None:
    state, reason, diagnosis = found(Evidence(PREP, shim_lost=True, last_sample=SAMPLE, result=MADE))
    assert (state, reason) == (JobState.LOST, "its end was not seen")
    assert "memory at the last sample: 61 GB" in diagnosis.evidence
    assert any("2,800 records" in fact for fact in diagnosis.evidence)
    state, reason, diagnosis = found(Evidence(PREP, shim_lost=True, container_restarted=True, last_sample=SAMPLE))
    assert (state, reason) == (JobState.LOST, "container restarted")
    assert "memory at the last sample: 61 GB" in diagnosis.evidence


def test_a_program_that_could_not_be_executed() -> None:
    error = "cannot run /no/python: No such file or directory"
    state, reason, diagnosis = found(Evidence(PREP, exit_code=127, error=error))
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, error, "not-started")


# --- Signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", [{"signal": 9}, {"exit_code": 137}])
def test_sigkill_is_oom_only_if_the_counter_moved(ended: dict[str, int]) -> None:
    evidence = Evidence(PREP, last_sample=SAMPLE, oom_before=0, oom_after=1, log_tail=b"working\n", **ended)  # type: ignore[arg-type]
    state, reason, diagnosis = found(evidence)
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, "OOM-killed at 61 GB", "oom")
    assert "cgroup oom_kill 0→1" in diagnosis.evidence

    state, reason, diagnosis = found(dataclasses.replace(evidence, oom_after=0))
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, "SIGKILL, sender unknown", "sigkill")
    assert "cgroup oom_kill 0→0" in diagnosis.evidence

    state, reason, diagnosis = found(dataclasses.replace(evidence, oom_before=None))
    assert (reason, diagnosis.cause) == ("SIGKILL, sender unknown", "sigkill")
    assert "OOM kills are not counted here" in diagnosis.evidence


def test_more_deaths_than_the_counter_moved_are_only_probable() -> None:
    state, reason, diagnosis = found(
        Evidence(PREP, signal=9, oom_before=3, oom_after=4, sigkills=2, last_sample=SAMPLE)
    )
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, "probably OOM-killed at 61 GB", "probable-oom")


def test_a_counter_that_moved_does_not_explain_another_end(tmp_path: Path) -> None:
    evidence = ran(tmp_path, "raise ValueError('row 7')", oom_before=0, oom_after=1)
    assert found(evidence)[1:2] == ("ValueError: row 7",)


def test_a_child_that_was_killed_for_memory() -> None:
    log = b"concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly\n"
    state, reason, diagnosis = found(Evidence(PREP, exit_code=1, log_tail=log, oom_before=0, oom_after=1))
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, "a child was OOM-killed", "oom")


def test_sigterm_from_outside() -> None:
    log = b'Traceback (most recent call last):\n  File "x", line 1, in f\nOSError: an old trouble\nworking again\n'
    state, reason, diagnosis = found(Evidence(PREP, signal=15, log_tail=log))
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, "SIGTERM, sender unknown", "sigterm")


def test_a_native_crash_names_its_frame(tmp_path: Path) -> None:
    evidence = ran(tmp_path, "import ctypes\ndef inner(): ctypes.string_at(0)\ninner()")
    assert evidence.signal == signal.SIGSEGV
    state, reason, diagnosis = found(evidence)
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, "crashed: Segmentation fault", "crash")
    assert any(fact.startswith("File ") for fact in diagnosis.evidence)


# --- What the log says -----------------------------------------------------------------------------------------------


def test_a_traceback_gives_its_last_exception(tmp_path: Path) -> None:
    state, reason, diagnosis = found(ran(tmp_path, "def f(): return {}['turns']\nf()"))
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, "KeyError: 'turns'", "traceback")
    assert any("in f" in fact for fact in diagnosis.evidence)
    assert "exit code 1" in diagnosis.evidence


def test_a_chain_of_exceptions_is_known_by_its_root(tmp_path: Path) -> None:
    code = """
try:
    open("/dev/full", "w", buffering=1).write("x\\n")
except OSError as error:
    raise RuntimeError("shard not written") from error
"""
    state, reason, diagnosis = found(ran(tmp_path, code))
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, "disk full", "disk-full")
    assert any("Errno 28" in fact for fact in diagnosis.evidence)


def test_an_exception_group_gives_what_is_in_it(tmp_path: Path) -> None:
    code = """
import asyncio
async def fail(): raise ValueError("prompt 12 has no tokens")
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
asyncio.run(main())
"""
    assert found(ran(tmp_path, code))[1] == "ValueError: prompt 12 has no tokens"


def test_a_missing_module(tmp_path: Path) -> None:
    _state, reason, diagnosis = found(ran(tmp_path, "import nothing_of_that_name.inner"))
    assert (reason, diagnosis.cause) == ("missing module: nothing_of_that_name", "module")


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = "import socket, sys; socket.create_server(('127.0.0.1', int(sys.argv[1])))"
        state, reason, diagnosis = found(ran(tmp_path, code, str(port), spec=SERVE))
        assert diagnosis.cause == "port-in-use"
        assert reason == f"port in use: {port}"
        code = """
import sys, uvicorn
async def app(scope, receive, send): pass
uvicorn.run(app, port=int(sys.argv[1]))
"""
        state, reason, diagnosis = found(ran(tmp_path, code, str(port), spec=SERVE))
        assert (state, reason, diagnosis.cause) == (JobState.FAILED, f"port in use: {port}", "port-in-use")


def test_bad_arguments(tmp_path: Path) -> None:
    code = (
        "import argparse; p = argparse.ArgumentParser('prep'); p.add_argument('--out', required=True); p.parse_args()"
    )
    _state, reason, diagnosis = found(ran(tmp_path, code))
    assert diagnosis.cause == "said"
    assert reason == "bad arguments: the following arguments are required: --out"


def test_a_stage_that_says_in_its_result_why_it_could_not_run() -> None:
    said = Result(
        at=1.0, records=0, message="B3: Dataset 'someone/nothing' doesn't exist on the Hub or cannot be accessed."
    )
    state, reason, diagnosis = found(Evidence(PREP, exit_code=1, result=said))
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, said.message, "missing")
    said = Result(at=1.0, records=0, message="B3: no folder data/sources/B3")
    state, reason, diagnosis = found(Evidence(PREP, exit_code=1, result=said))
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, said.message, "said")


def test_a_stage_that_says_in_its_last_line_why_it_could_not_run() -> None:
    log = b"loading\npipeline.merge: error: data/responses: no answers there\n"
    assert found(Evidence(PREP, exit_code=1, log_tail=log))[1] == "data/responses: no answers there"


def test_a_full_disk_that_the_agent_saw() -> None:
    assert found(Evidence(PREP, exit_code=1, enospc=True))[1:2] == ("disk full",)


_FRAME = 'Traceback (most recent call last):\n  File "job.py", line 3, in <module>\n    run()\n'


@pytest.mark.parametrize(
    ("error", "cause", "reason"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total",
            "cuda-oom",
            "CUDA out of memory: 2.50 GiB",
        ),
        # SGLang, model_executor/model_runner.py: what is left after the weights is less than nothing.
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "kv-memory",
            "no GPU memory left for the KV cache",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2395, unhandled system error",
            "nccl",
            "NCCL failure",
        ),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "gpu-fault", "GPU fault"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "gpu-fault", "GPU fault"),
        (
            "OSError: You are trying to access a gated repo.\nMake sure to have access to it at"
            " https://huggingface.co/meta-llama/Llama-3.1-8B.\n401 Client Error.",
            "gated",
            "gated: meta-llama/Llama-3.1-8B",
        ),
        (
            "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-6)\n\nCannot access gated"
            " repo for url https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json.\nAccess to model"
            " meta-llama/Llama-3.1-8B is restricted and you are not in the authorized list.",
            "gated",
            "gated: meta-llama/Llama-3.1-8B",
        ),
        (
            "datasets.exceptions.DatasetNotFoundError: Dataset 'someone/private-set' is a gated dataset on the Hub. You"
            " must be authenticated to access it.",
            "gated",
            "gated: someone/private-set",
        ),
        (
            "datasets.exceptions.DatasetNotFoundError: Dataset 'someone/nothing' doesn't exist on the Hub or cannot be"
            " accessed.",
            "missing",
            "not found on the hub: someone/nothing",
        ),
        (
            "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-6)\n\nRepository Not"
            " Found for url: https://huggingface.co/api/models/nobody/nothing.\nPlease make sure you specified the"
            " correct `repo_id` and `repo_type`.\nIf you are trying to access a private or gated repo, make sure you"
            " are authenticated.",
            "missing",
            "not found on the hub: nobody/nothing",
        ),
        (
            "OSError: nobody/nothing is not a local folder and is not a valid model identifier listed on"
            " 'https://huggingface.co/models'\nIf this is a private repository, make sure to pass a token",
            "missing",
            "not found on the hub: nobody/nothing",
        ),
        (
            "httpx.HTTPStatusError: Client error '404 Not Found' for url"
            " 'https://huggingface.co/datasets/someone/set/resolve/main/x.parquet'",
            "missing",
            "not found on the hub: someone/set",
        ),
        (
            "huggingface_hub.errors.HfHubHTTPError: \n\n429 Too Many Requests for url: https://huggingface.co/api/x.",
            "rate-limited",
            "rate limited by the hub",
        ),
        (
            "RuntimeError: Dataset scripts are no longer supported, but found x.py",
            "dataset-script",
            "dataset needs a script",
        ),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the"
            " cached files.",
            "network",
            "no connection: https://huggingface.co",
        ),
        ("httpx.ConnectError: [Errno -2] Name or service not known", "network", "no connection"),
        (
            "ImportError: libcudart.so.12: cannot open shared object file: No such file",
            "module",
            "missing module: libcudart.so.12",
        ),
        ("OSError: [Errno 28] No space left on device: 'data/x'", "disk-full", "disk full"),
        ("OSError: [Errno 122] Disk quota exceeded", "disk-full", "disk full"),
        ("MemoryError", "allocation", "memory allocation refused"),
        (
            "RuntimeError: DataLoader worker is killed: insufficient shared memory (shm)",
            "shared-memory",
            "shared memory too small",
        ),
    ],
)
def test_errors_that_are_known(error: str, cause: str, reason: str) -> None:
    log = f"starting\n{_FRAME}{error}\n".encode()
    state, words, diagnosis = found(Evidence(PREP, exit_code=1, log_tail=log))
    assert (state, diagnosis.cause, words) == (JobState.FAILED, cause, reason)


def test_an_error_of_our_own_server_is_not_one_of_the_hub() -> None:
    error = "httpx.HTTPStatusError: Client error '404 Not Found' for url 'http://127.0.0.1:30000/generate'"
    _, reason, diagnosis = found(Evidence(PREP, exit_code=1, log_tail=(_FRAME + error).encode()))
    assert diagnosis.cause == "traceback"
    assert reason == error[:REASON_LIMIT]


def test_a_trouble_that_was_overcome_is_not_the_cause() -> None:
    log = "[Errno 98] address already in use, trying the next\n" + _FRAME + "ValueError: row 7\n"
    assert found(Evidence(PREP, exit_code=1, log_tail=log.encode()))[1] == "ValueError: row 7"


def test_a_rank_says_its_name_before_every_line() -> None:
    lines = (_FRAME + "ValueError: loss is NaN").splitlines()
    log = "\n".join(f"[rank0]: {line}" for line in lines) + "\n[rank0]:[W123] destroy_process_group() was not called\n"
    assert found(Evidence(PREP, exit_code=1, log_tail=log.encode()))[1] == "ValueError: loss is NaN"


def test_nothing_known_says_the_facts() -> None:
    state, reason, diagnosis = found(Evidence(PREP, exit_code=5, log_tail=b"step 1\nstep 2\n", last_sample=SAMPLE))
    assert (state, reason, diagnosis.cause) == (JobState.FAILED, "exit code 5, cause unknown", "unknown")
    assert diagnosis.evidence == ("exit code 5", "memory at the last sample: 61 GB", "last line of its log: step 2")
    assert found(Evidence(PREP))[1] == "its end was not seen, cause unknown"


# --- SGLang ----------------------------------------------------------------------------------------------------------

_SIGQUIT = "[2025-11-29 14:02:11] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"


@pytest.mark.parametrize("ended", [{"signal": 9}, {"exit_code": 137}, {"exit_code": 0}])
def test_a_launcher_that_killed_itself_is_known_by_the_first_traceback(ended: dict[str, int]) -> None:
    log = (
        "[2025-11-29 14:02:09 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "scheduler.py", line 3300, in run_scheduler_process\n    scheduler.event_loop_overlap()\n'
        "AssertionError: kv indices out of range\n\n" + _SIGQUIT + _FRAME + "asyncio.exceptions.CancelledError\n"
    )
    evidence = Evidence(SERVE, log_tail=log.encode(), oom_before=0, oom_after=0, **ended)  # type: ignore[arg-type]
    state, reason, diagnosis = found(evidence)
    assert (state, diagnosis.cause) == (JobState.FAILED, "server-child")
    assert reason == "a child of the server died: AssertionError: kv indices out of range"
    assert any("SIGQUIT" in fact for fact in diagnosis.evidence)
    # Another job's OOM kill at the same time does not change that.
    assert found(dataclasses.replace(evidence, oom_after=1))[2].cause == "server-child"

    out = log.replace("AssertionError: kv indices out of range", "torch.OutOfMemoryError: CUDA out of memory.")
    assert found(dataclasses.replace(evidence, log_tail=out.encode()))[1] == "CUDA out of memory"


def test_a_scheduler_that_the_kernel_killed() -> None:
    log = "[2025-11-29 14:02:10] Subprocess scheduler_0 (pid=812) crashed with exit code -9\n" + _SIGQUIT
    evidence = Evidence(SERVE, signal=9, log_tail=log.encode(), oom_before=0, oom_after=1, last_sample=SAMPLE)
    assert found(evidence)[1] == "a child was OOM-killed at 61 GB"
    _state, reason, diagnosis = found(dataclasses.replace(evidence, oom_after=0))
    assert (reason, diagnosis.cause) == ("the server's scheduler_0 died of SIGKILL", "server-child")
    assert any("exit code -9" in fact for fact in diagnosis.evidence)


def test_a_server_that_hung() -> None:
    # SGLang's words, utils/watchdog.py; a soft one dumps the stacks and ends nothing.
    hung = "[2026-09-22 01:05:16] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
    log = hung + "py-spy dump\n" + _SIGQUIT
    for tail in (log, log.replace(_SIGQUIT, "")):
        state, reason, diagnosis = found(Evidence(SERVE, signal=9, log_tail=tail.encode()))
        words = "server hung: watchdog timeout after 300 s"
        assert (state, reason, diagnosis.cause) == (JobState.FAILED, words, "watchdog")

    soft = log.replace("soft=False", "soft=True")
    assert found(Evidence(SERVE, signal=9, log_tail=soft.encode()))[2].cause == "server-child"


def test_a_traceback_of_a_request_is_not_what_the_scheduler_died_of() -> None:
    asked = "[2025-11-29 11:00:00] request failed\n" + _FRAME + "ValueError: prompt is empty\n"
    died = (
        "[2025-11-29 14:02:09 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "scheduler.py", line 3300, in run_scheduler_process\nAssertionError: kv indices out of range\n'
    )
    log = asked + died + died.replace("TP3", "TP4").replace("kv indices out of range", "peer closed") + _SIGQUIT
    assert "kv indices out of range" in found(Evidence(SERVE, signal=9, log_tail=log.encode()))[1]


def test_a_service_that_ends_by_itself_failed() -> None:
    state, reason, _diagnosis = found(Evidence(SERVE, exit_code=0, log_tail=b"bye\n"))
    assert (state, reason) == (JobState.FAILED, "the service ended by itself (exit code 0)")


# --- Whatever comes --------------------------------------------------------------------------------------------------


@given(
    spec=st.sampled_from([PREP, SERVE, JobSpec("x", "train", ("x",))]),
    exit_code=st.none() | st.integers(0, 255),
    signal_number=st.none() | st.integers(1, 64),
    log=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: (_FRAME + text).encode(errors="replace")),
    result=st.sampled_from([None, MADE, NONE]),
    before=st.none() | st.integers(0, 3),
    after=st.none() | st.integers(0, 3),
    stopped_by=st.sampled_from(["", "alice"]),
    lost=st.booleans(),
    restarted=st.booleans(),
)
def test_every_end_has_a_state_and_plain_words(
    spec: JobSpec, exit_code: int | None, signal_number: int | None, log: bytes, result: Result | None,
    before: int | None, after: int | None, stopped_by: str, lost: bool, restarted: bool,
) -> None:  # fmt: skip
    state, reason, diagnosis = diagnose(
        Evidence(
            spec,
            exit_code=exit_code,
            signal=signal_number,
            log_tail=log,
            result=result,
            oom_before=before,
            oom_after=after,
            stopped_by=stopped_by,
            shim_lost=lost,
            container_restarted=restarted,
        )
    )
    assert state in {JobState.DONE, JobState.EMPTY, JobState.FAILED, JobState.STOPPED, JobState.LOST}
    assert (diagnosis is None) <= (state == JobState.DONE)
    assert len(reason) <= REASON_LIMIT
    assert "\n" not in reason
    assert plain(reason) == reason
    if state != JobState.DONE:
        assert reason
    if diagnosis is not None:
        assert all(fact and "\n" not in fact and plain(fact) == fact for fact in diagnosis.evidence)
    if diagnosis is not None and diagnosis.cause == "oom":
        assert before is not None
        assert after is not None
        assert after > before
