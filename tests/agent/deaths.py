"""Processes that really die, and what is found of them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.agent.diagnosis.causes import Evidence, diagnose
from pipeline.protocol import Diagnosis, JobSpec, JobState

PREP = JobSpec(name="prep:B4", stage="prep", argv=("x",))
SERVE = JobSpec(name="serve:baseline", stage="serve", argv=("x",), service=True)
TRAIN = JobSpec(name="train", stage="train", argv=("x",))


def found(evidence: Evidence) -> tuple[JobState, str, Diagnosis]:
    """The verdict, which has evidence and advice."""
    state, reason, diagnosis = diagnose(evidence)
    assert diagnosis is not None
    assert diagnosis.evidence
    assert diagnosis.advice
    return state, reason, diagnosis


def ran(folder: Path, code: str, *arguments: str, spec: JobSpec = PREP, **more: object) -> Evidence:
    """Evidence of a Python process: what ``code`` wrote and how it ended."""
    return dataclasses.replace(died(folder, "-c", code, *arguments, spec=spec), **more)  # type: ignore[arg-type]


def died(folder: Path, *arguments: str, spec: JobSpec = PREP, env: Mapping[str, str] | None = None) -> Evidence:
    """Evidence of ``python ARGUMENTS``."""
    log = folder / "log"
    with log.open("wb") as file:
        command = [sys.executable, "-X", "faulthandler", *arguments]
        done = subprocess.run(command, stdout=file, stderr=file, timeout=120, env={**os.environ, **(env or {})})
    code_or_signal = done.returncode
    return Evidence(
        spec=spec,
        exit_code=code_or_signal if code_or_signal >= 0 else None,
        signal=-code_or_signal if code_or_signal < 0 else None,
        log_tail=log.read_bytes()[-65536:],
    )
