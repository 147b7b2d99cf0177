"""The config that comes with the project is the run of the design, and every number in it adds up."""

from __future__ import annotations

from console.config import load, parse
from console.config.flags import baseline_flags, draft_flags
from console.describe import draft_parameters, state_bytes
from tests.config.sources import REAL, TEXT, real


def test_the_real_config_loads_from_its_file() -> None:
    assert load(REAL) == real()


def test_datasets_add_up_to_the_runs_samples() -> None:
    datasets = real().datasets
    assert list(datasets) == ["A1", "A2", "B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8"]
    takes = {name: dataset.take or 0 for name, dataset in datasets.items()}
    assert sum(takes.values()) == 88_088
    assert sum(take for name, take in takes.items() if datasets[name].kind == "prompts") == 83_288
    assert (takes["A1"], takes["A2"], takes["B1"], takes["B2"]) == (2_800, 2_000, 20_000, 15_000)


def test_a_dataset_whose_source_is_not_known_says_so_and_detects_its_shape() -> None:
    for name, dataset in real().datasets.items():
        unsure = name in ("A2", "B3", "B4", "B6", "B7")
        assert ("not confirmed" in dataset.note) == unsure
        assert (dataset.shape == "auto") == unsure


def test_partitions_and_sampling() -> None:
    config = real()
    short, long = config.generate.partitions["short"], config.generate.partitions["long"]
    assert (short.concurrency, short.max_new_tokens) == (150, 10_240)
    assert (long.concurrency, long.max_new_tokens) == (32, 16_384)
    assert {(part.temperature, part.top_p) for part in (short, long)} == {(1.0, 0.95)}
    assert [name for name, dataset in config.datasets.items() if dataset.partition == "long"] == ["B8"]
    assert config.target.template == {"thinking": True}


def test_the_server_is_the_tuned_one() -> None:
    config = real()
    flags = baseline_flags(config)
    assert flags["tp-size"] == 8
    assert flags["enable-metrics"] is True
    assert config.serve.environment == {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}
    assert draft_flags(config)["max-running-requests"] == 64
    assert config.serve.draft is not None
    assert config.serve.draft.algorithm == "EAGLE3"


def test_the_drafts_arithmetic_is_that_of_the_published_geometry() -> None:
    config = real()
    assert config.draft.aux_layers == (2, 30, 58)
    assert state_bytes(config) == 57_344
    assert round(draft_parameters(config.draft, config.target.hidden_size) / 1e9, 2) == 1.06


def test_policies_that_are_not_given_keep_their_stages_own_defaults() -> None:
    given = ('restart = "always"', 'window = "2 h"')
    bare = "\n".join(line for line in TEXT.splitlines() if not line.startswith(given))
    policy = parse(bare.encode()).policy
    assert policy.serve.restart == "always"
    assert policy.serve.window == 7200.0
    assert policy.serve.backoff == 5.0
    assert policy.extract.restart == "on-failure"
