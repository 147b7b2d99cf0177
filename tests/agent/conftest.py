"""A real agent for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.agent.boxes import box
from tests.agent.mounts import MIB, tmpfs
from tests.agent.nvml import Nvml
from tests.agent.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A work directory; the test starts its agent."""
    # The agent asks the login shell for its environment; a developer's own may take seconds to answer.
    monkeypatch.setenv("SHELL", "/bin/sh")
    made = Rig(tmp_path / "work")
    yield made
    await made.close()


@pytest.fixture
async def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """An agent that runs in a work directory of 64 MiB."""
    monkeypatch.setenv("SHELL", "/bin/sh")
    with tmpfs(tmp_path / "work", 64 * MIB) as folder:
        made = Rig(folder)
        await made.start()
        yield made
        await made.close()


@pytest.fixture
async def agent(rig: Rig) -> Rig:
    """A work directory whose agent runs."""
    await rig.start()
    return rig


@pytest.fixture
def child_cgroup() -> Iterator[Path]:
    """A memory cgroup of version 1 below our own."""
    with box() as folder:
        yield folder


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """A stand-in for NVML with two GPUs, for readers that the test itself starts."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "nvml"))
    return Nvml(tmp_path / "nvml", 3 * 10**9, 4 * 10**9)
