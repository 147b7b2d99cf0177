"""What ended an attempt, on what evidence, and what to do. Pure: everything it knows is in ``Evidence``.

A table of causes, one small function each, asked in order; the first that recognises the evidence answers. A signal is
a fact, not a cause: code 137 proves nothing, and SGLang's launcher kills itself with SIGKILL when a child dies.
"""

from __future__ import annotations

import re
import signal as signals
import time
from dataclasses import replace
from typing import Final

from pipeline.agent.diagnosis.evidence import Evidence, in_time
from pipeline.agent.diagnosis.known_errors import known
from pipeline.agent.diagnosis.launchers import (
    KILLED_CHILD,
    SERVER_CHILD,
    child_of_server,
    hung_server,
    rank_of_torchrun,
)
from pipeline.agent.diagnosis.log_causes import LogEnd, cause_in, read_log_end
from pipeline.agent.diagnosis.verdicts import REASON_LIMIT, Rule, Verdict, facts_of, failed, from_log, one_line, verdict
from pipeline.agent.host import gpu_faults
from pipeline.agent.rules.admission import in_words
from pipeline.protocol import JobState

__all__ = ["REASON_LIMIT", "Evidence", "diagnose"]

STAGES_WITH_RESULT: Final = frozenset({"prep", "dedup", "generate", "merge"})
"""Stages that end with a result line; without one they did not end as they should, whatever their exit code."""
OOM_WINDOW_S: Final = 60.0
"""A kill that the kernel counted within a longer time may have been another's, days before."""
EMPTY_CODE: Final = 3
"""Exit code of a stage that made no records."""


def diagnose(evidence: Evidence) -> Verdict:
    """The final state, the reason in words (short, for a table cell), and the diagnosis; None where all went well."""
    log = read_log_end(evidence.log_tail)
    verdicts = (rule(evidence, log) for rule in RULES)
    state, reason, diagnosis = next(verdict for verdict in verdicts if verdict is not None)
    if diagnosis is not None and state is not JobState.DONE:
        facts = (*diagnosis.evidence, *(one_line(gpu_faults.in_words(fault)) for fault in evidence.gpu_faults))
        diagnosis = replace(diagnosis, evidence=tuple(dict.fromkeys(facts)))
    return state, one_line(reason, REASON_LIMIT), diagnosis


# --- It was whole, or asked for, or not seen ------------------------------------------------------------------------


def _complete(evidence: Evidence, log: LogEnd) -> Verdict | None:
    """Exit 0 with records, or an abort when the interpreter ends although the output is whole."""
    result = evidence.result
    if result is None or result.records <= 0 or evidence.spec.service:
        return None
    if evidence.exit_code == 0:
        return JobState.DONE, result.message, None
    sign = log.find(_AT_EXIT)
    if sign is not None and (evidence.died_of(signals.SIGABRT) or evidence.died_of(signals.SIGSEGV)):
        facts = (evidence.ending, sign[1].strip(), f"result: {result.records:,} records", result.manifest)
        advice = "nothing to do: its output was complete before the interpreter crashed on its way out"
        remark = f"{result.message} (crashed at exit, output complete)"
        return verdict(JobState.DONE, "abort-at-exit", remark, facts, advice)
    return None


def _stopped(evidence: Evidence, _log: LogEnd) -> Verdict | None:
    if not evidence.stopped_by:
        return None
    when = time.strftime(" at %H:%M:%S UTC", time.gmtime(evidence.stopped_at)) if evidence.stopped_at else ""
    reason = f"{'killed' if evidence.stop_kill else 'stopped'} by {evidence.stopped_by}{when}"
    facts = (evidence.ending, *evidence.reported)
    return verdict(
        JobState.STOPPED, "operator", reason, facts, "start it again when it is wanted: what is done is kept"
    )


def _wrong_server(evidence: Evidence, log: LogEnd) -> Verdict | None:
    if not evidence.condemned:
        return None
    advice = (
        "correct serve, target or draft in the config, then draftdeck apply: no restart would make it another server"
    )
    return failed("wrong-server", evidence.condemned, ("ended by the agent", *facts_of(evidence, log)[1:]), advice)


def _unhealthy(evidence: Evidence, log: LogEnd) -> Verdict | None:
    """Ended by the agent because it did not do its work, as its policy says."""
    if not evidence.unhealthy:
        return None
    facts = ("ended by the agent: on_stall = restart", *facts_of(evidence, log))
    advice = "read the end of its log for what it waited for; if it was only slow, allow it more time in the config"
    return failed("stalled", evidence.unhealthy, facts, advice)


def _container_restarted(evidence: Evidence, _log: LogEnd) -> Verdict | None:
    if not evidence.container_restarted:
        return None
    facts = ("the container's identity changed while it ran", *evidence.last_memory, *evidence.reported)
    return verdict(JobState.LOST, "container-restarted", "container restarted", facts, _RESUME)


def _shim_lost(evidence: Evidence, log: LogEnd) -> Verdict | None:
    if not evidence.shim_lost:
        return None
    counted = _counted(evidence) if evidence.oom_kills else ""
    watched = "no exit record: the process that watched it died first"
    why = "its exit record cannot be read: exit.json was damaged" if evidence.record_torn else watched
    facts = (why, counted, *facts_of(evidence, log)[1:])
    return verdict(JobState.LOST, "lost", "its end was not seen", facts, _RESUME)


def _not_executed(evidence: Evidence, _log: LogEnd) -> Verdict | None:
    if not evidence.error or evidence.enospc:
        return None
    advice = "check the program's path, the Python and the work directory in the config"
    return failed("not-started", evidence.error, (evidence.ending,), advice)


def _empty(evidence: Evidence, _log: LogEnd) -> Verdict | None:
    result = evidence.result
    if result is None or result.records > 0 or evidence.exit_code not in (0, EMPTY_CODE):
        return None
    if evidence.exit_code and not result.datasets and known(result.message):
        return None  # no row was read, and why not has a name of its own: gated, not found
    dropped = [
        f"{name}: {count:,} × {why}"
        for name, counts in result.datasets.items()
        for why, count in sorted(counts.dropped.items(), key=lambda item: -item[1])[:3]
    ]
    advice = "its message names what the rows hold and what was expected: correct the dataset's entry in the config"
    facts = (evidence.ending, "0 records", *dropped)
    return verdict(JobState.EMPTY, "empty", result.message or "no records", facts, advice)


def _exit_zero(evidence: Evidence, log: LogEnd) -> Verdict | None:
    if evidence.exit_code != 0:
        return None
    if evidence.spec.service:
        reason = "the service ended by itself (exit code 0)"
        return child_of_server(evidence, log) or failed("ended", reason, facts_of(evidence, log), _LOOK)
    if evidence.spec.stage in STAGES_WITH_RESULT:
        advice = "it said success without saying what it made; read the end of its log"
        return failed("no-result", "ended without a result", facts_of(evidence, log), advice)
    return JobState.DONE, "", None


# --- It died ---------------------------------------------------------------------------------------------------------


def _oom(evidence: Evidence, log: LogEnd) -> Verdict | None:
    """The kernel's own count moved while the job died of SIGKILL, or while its log says that a child did."""
    kills = evidence.oom_kills
    if not kills or kills < 0:
        return None
    itself = evidence.died_of(signals.SIGKILL)
    told = log.find(KILLED_CHILD)
    # A launcher that kills itself after a child's traceback died of that, whatever the kernel killed beside it.
    if not told and (not itself or (log.find(SERVER_CHILD) and log.tracebacks)):
        return None
    at = f" at {in_words(evidence.memory)}" if evidence.memory else ""
    facts = (_counted(evidence), evidence.ending, *evidence.last_memory, told[1] if told else "")
    advice = "give it a higher memory need, so that it starts when that much is free, or run less beside it"
    doubts = []
    if evidence.sigkills > kills:
        doubts.append(f"{evidence.sigkills} jobs died of SIGKILL meanwhile")
    if evidence.oom_window_s > OOM_WINDOW_S and not evidence.oom_own:
        doubts.append(f"counted over {in_time(evidence.oom_window_s)}, for the agent was not there to see it move")
    if doubts:
        facts = (*facts, *doubts)
        return failed("probable-oom", f"probably OOM-killed{at}", facts, advice)
    return failed("oom", f"OOM-killed{at}" if itself and not told else f"a child was OOM-killed{at}", facts, advice)


def _gpu(blame: str) -> Rule:
    """The driver told of a fault: the log says what came of it ("first"), or nothing better ("last")."""

    def rule(evidence: Evidence, _log: LogEnd) -> Verdict | None:
        fault = next((fault for fault in evidence.gpu_faults if gpu_faults.meaning(fault).blame == blame), None)
        if fault is None:
            return None
        facts = (evidence.ending, *evidence.reported)
        return failed("gpu-fault", gpu_faults.in_words(fault), facts, gpu_faults.meaning(fault).advice)

    return rule


def _disk_full(evidence: Evidence, log: LogEnd) -> Verdict | None:
    if not evidence.enospc:
        return None
    return _full("disk full", evidence, log)


def _brim(evidence: Evidence, log: LogEnd) -> Verdict | None:
    """A job that failed without a word while nothing could be written to its disk."""
    if not evidence.brim or not evidence.exit_code:
        return None
    if log.tracebacks and log.tracebacks[-1].error in log.lines[-_LAST_WORDS:]:
        return None  # its last words could be written: they tell
    return _full("probably disk full", evidence, log)


def _full(reason: str, evidence: Evidence, log: LogEnd) -> Verdict:
    itself = evidence.filled and evidence.spec.restart.when != "never"
    then = "it starts again by itself when there is room" if itself else "then restart it"
    advice = f"free space (old attempts, hidden states, caches): {then}, and resumes"
    return failed("disk-full", reason, (evidence.error, evidence.filled, *facts_of(evidence, log)), advice)


def _killed(evidence: Evidence, log: LogEnd) -> Verdict | None:
    """Ended from outside: the last error in its log is not what ended it."""
    number = next((each for each in (signals.SIGKILL, signals.SIGTERM) if evidence.died_of(each)), None)
    if number is None or (evidence.signal is None and log.tracebacks):
        return None
    facts = (evidence.ending, _counted(evidence), *facts_of(evidence, log)[1:])
    kernel = "" if evidence.oom_kills is not None else ", or the kernel for memory (dmesg on the host tells)"
    advice = f"nobody asked for it here: look for another user, a time limit, or the host's own watchdog{kernel}"
    return failed(number.name.lower(), f"{number.name}, sender unknown", facts, advice)


def _said_why(evidence: Evidence, log: LogEnd) -> Verdict | None:
    """A stage that could not do its work says so in its result, or in its last line."""
    if evidence.result is not None and evidence.result.records <= 0 and evidence.result.message:
        said = evidence.result.message
    elif (match := re.match(r"[\w .:-]+: error: (.+)", log.last)) and not log.tracebacks:
        said = f"bad arguments: {match[1]}" if evidence.exit_code == 2 else match[1]
    else:
        return None
    cause = known(said)
    advice = cause.advice if cause else "correct the config, or what its message names, and restart it"
    facts = (evidence.ending, *evidence.last_memory, said)
    return failed(cause.key if cause else "said", said, facts, advice)


def _known_error(evidence: Evidence, log: LogEnd) -> Verdict | None:
    cause = cause_in(log)
    return from_log(evidence, cause) if cause else None


def _crash(evidence: Evidence, log: LogEnd) -> Verdict | None:
    seen = log.find(r"^Fatal Python error: ")
    if seen is None or (evidence.signal is None and (evidence.exit_code or 0) < 128):
        return None
    frame = next((line.strip() for line in log.lines[seen[0] :] if line.startswith("  ")), "")
    advice = "a native library crashed; its frame is in the evidence. Try another version of it"
    reason = f"crashed: {seen[1].removeprefix('Fatal Python error: ')}"
    return failed("crash", reason, (evidence.ending, seen[1], frame), advice)


def _traceback(evidence: Evidence, log: LogEnd) -> Verdict | None:
    if not log.tracebacks:
        return None
    last = log.tracebacks[-1]
    return failed("traceback", last.error, (last.place, last.error, evidence.ending), _LOOK)


def _unknown(evidence: Evidence, log: LogEnd) -> Verdict:
    return failed("unknown", f"{evidence.ending}, cause unknown", facts_of(evidence, log), _LOOK)


RULES: Final[tuple[Rule, ...]] = (
    _complete, _stopped, _container_restarted, _wrong_server, _unhealthy, _shim_lost, _not_executed, _empty,
    _exit_zero, _oom, _gpu("first"), _disk_full, child_of_server, hung_server, rank_of_torchrun, _killed, _said_why,
    _known_error, _gpu("last"), _crash, _brim, _traceback, _unknown,
)  # fmt: skip

_LAST_WORDS: Final = 15
"""Lines that an exception and its message take at most."""

_AT_EXIT: Final = r"<no Python frame>|Python runtime state: finalizing"
_LOOK: Final = "read the end of its log; restart it to see whether it happens again"
_RESUME: Final = "restart it: what is done is kept"


def _counted(evidence: Evidence) -> str:
    if evidence.oom_kills is None:
        return "OOM kills are not counted here"
    whose = "the job's own cgroup: " if evidence.oom_own else "cgroup "
    return f"{whose}oom_kill {evidence.oom_before}→{evidence.oom_after}"
