"""A real container, link and agent for the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.link.conftest import LoopbackServer, workdir

__all__ = ["workdir"]


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[LoopbackServer]:
    server = LoopbackServer(tmp_path / "server")
    server.start()
    yield server
    server.kill()
