"""Ends of a process that only started others: its own end says nothing, what its child wrote before does.

SGLang's launcher kills itself with SIGKILL when a child dies; as pid 1 of a container, which cannot be killed so, it
exits 0. torchrun exits 1 and names the rank that failed first.
"""

from __future__ import annotations

import re
from typing import Final

from pipeline.agent.diagnosis.evidence import Evidence, signal_name
from pipeline.agent.diagnosis.log_causes import LogEnd, Traceback, cause_above, cause_in
from pipeline.agent.diagnosis.verdicts import Verdict, facts_of, failed, from_log

SERVER_CHILD: Final = r"SIGQUIT received|[Ss]ubprocess \S.* crashed with exit code"
KILLED_CHILD: Final = (
    r"exit ?code\W{1,6}-9\b|crashed with exit code -9\b|killed by signal: Killed|BrokenProcessPool|Signal 9 \(SIGKILL\)"
    r"|terminated abruptly|terminated with signal SIGKILL|subprocesses has abruptly died"
)
_CRASHED: Final = re.compile(r"[Ss]ubprocess (\S+) .*crashed with exit code (-?\d+)")
_HUNG: Final = r"(?i)watchdog timeout(?!.*soft=True)"
"""A soft watchdog only dumps what it sees; it ends nothing."""

_RANK: Final = re.compile(r"rank\s*: (\d+)")
_RANK_CODE: Final = re.compile(r"exitcode\s*: (-?\d+)")


def child_of_server(evidence: Evidence, log: LogEnd) -> Verdict | None:
    """A model server whose child died: the first traceback of a child tells of what."""
    seen = log.find(SERVER_CHILD)
    if seen is None:
        return None
    hung = log.find(_HUNG)
    if hung is not None and hung[0] <= seen[0]:
        return _watchdog(evidence, hung[1], seen[1])
    root = _of_a_child(log, seen[0])
    cause = cause_in(log, root) if root else cause_above(log, seen[0])
    if cause:
        return from_log(evidence, cause, seen[1])
    if root is None:
        advice = "read its log before that line: what ended the child may be there"
        return failed("server-child", _crashed(seen[1]), (seen[1], *facts_of(evidence, log)), advice)
    facts = (seen[1], root.place, root.error, evidence.ending, *evidence.last_memory)
    advice = "read the first traceback in its log: the rest follows from it"
    return failed("server-child", f"a child of the server died: {root.error}", facts, advice)


def _of_a_child(log: LogEnd, end: int) -> Traceback | None:
    """The first traceback that a child says it died of; else the last one before line ``end``, else the first."""
    before = [found for found in log.tracebacks if found.line < end]
    died = [found for found in before if "hit an exception" in log.lines[found.line]]
    return next(iter(died or before[-1:] or log.tracebacks), None)


def _crashed(line: str) -> str:
    """The words for a child that died without a traceback."""
    match = _CRASHED.search(line)
    if match is None:
        return "a child of the server died"
    name, code = match[1], int(match[2])
    return (
        f"the server's {name} died of {signal_name(-code)}" if code < 0 else f"the server's {name} exited with {code}"
    )


def hung_server(evidence: Evidence, log: LogEnd) -> Verdict | None:
    """A server whose watchdog saw no work being done, whatever its end looks like."""
    hung = log.find(_HUNG)
    if hung is None or not evidence.spec.service:
        return None
    return _watchdog(evidence, hung[1])


def _watchdog(evidence: Evidence, *lines: str) -> Verdict:
    limit = re.search(r"timeout\W+(\d+)", lines[0].partition("timeout")[2])
    words = f"server hung: watchdog timeout after {limit[1]} s" if limit else "server hung: watchdog timeout"
    advice = "look at the stacks dumped in its log; fewer requests at once, or a longer watchdog-timeout"
    return failed("watchdog", words, (*lines, evidence.ending, *evidence.last_memory), advice)


def rank_of_torchrun(evidence: Evidence, log: LogEnd) -> Verdict | None:
    """A rank that torchrun names as the first that failed: its traceback, else how it ended."""
    if not log.tracebacks or "ChildFailedError" not in log.tracebacks[-1].error:
        return None
    told = log.find(r"^Root Cause \(first observed failure\)")
    after = "\n".join(log.lines[told[0] :]) if told else ""
    rank, code = _RANK.search(after), _RANK_CODE.search(after)
    if rank is None or code is None:
        return None
    root = next((one for one in log.tracebacks if one.prefix.startswith(f"[rank{rank[1]}]")), None)
    ended = f"rank {rank[1]} ended first, exit code {code[1]}"
    if root is None:
        number = int(code[1])
        words = f"died of {signal_name(-number)}" if number < 0 else f"exited with {number}"
        advice = "read the log above torchrun's own words for what that rank did last"
        return failed("rank", f"rank {rank[1]} {words}", (ended, *facts_of(evidence, log)), advice)
    if cause := cause_in(log, root):
        return from_log(evidence, cause, ended)
    facts = (ended, root.place, root.error, evidence.ending, *evidence.last_memory)
    return failed(
        "rank", f"rank {rank[1]}: {root.error}", facts, "read that rank's traceback; the others follow from it"
    )
