"""A real agent for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A work directory; the test starts its agent."""
    made = Rig(tmp_path / "work")
    yield made
    await made.close()


@pytest.fixture
async def agent(rig: Rig) -> Rig:
    """A work directory whose agent runs."""
    await rig.start()
    return rig
