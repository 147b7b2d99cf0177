from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.prep.small import make_tokenizer


@pytest.fixture(scope="session", autouse=True)
def _code_of_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Code that comes with a model is copied into the session's own folder, not into the user's cache."""
    from transformers import dynamic_module_utils

    folder = str(tmp_path_factory.mktemp("modules"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_MODULES_CACHE", folder)
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", folder)
        yield


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer and a ChatML template."""
    return make_tokenizer(tmp_path_factory.mktemp("target"))
