"""Fixtures that several rooms share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny import Process, make_target, reference_server


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny target; made once."""
    return make_target(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="session")
def tiny_server(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A reference server on the tiny target; tests that stop or fill one start their own."""
    log = tmp_path_factory.mktemp("server") / "log"
    with reference_server(tiny_target, log, "--max-running-requests", "4", "--decode-log-interval", "10") as running:
        yield running
