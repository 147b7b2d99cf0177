from __future__ import annotations

from pathlib import Path

import pytest

from tests.prep.small import make_tokenizer


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer and a ChatML template."""
    return make_tokenizer(tmp_path_factory.mktemp("target"))
