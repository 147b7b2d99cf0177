from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.agent.rules.admission import Demand, Holding, decide, in_words, memory_left
from pipeline.protocol import GpuSample, HostSample

GB = 10**9


def _host(limit: int, used: int = 0, gpus: int = 0) -> HostSample:
    cards = tuple(GpuSample(index, "GPU", 0, 1, 0.0) for index in range(gpus))
    return HostSample(
        at=0.0, cpus=2, cpu_percent=0.0, memory_used=used, memory_limit=limit, memory_source="cgroup v2", gpus=cards
    )


def test_what_a_job_was_promised_and_has_not_taken_yet_is_not_free() -> None:
    holdings = [Holding("a", need=30 * GB, present=10 * GB), Holding("b", need=5 * GB, present=8 * GB)]
    assert memory_left(holdings, _host(100 * GB, used=18 * GB), reserve=4 * GB) == 58 * GB


def test_a_job_that_does_not_fit_says_what_it_needs_and_what_is_left() -> None:
    answers = decide([Demand("prep:B4", 92 * GB)], [], _host(960 * GB, used=899 * GB))
    assert answers == {"prep:B4": "needs 92 GB, 61 GB left"}


def test_ten_jobs_at_once_do_not_each_see_an_empty_machine() -> None:
    demands = [Demand(f"prep:B{number}", 30 * GB) for number in range(10)]
    answers = decide(demands, [], _host(100 * GB), reserve=5 * GB)
    assert [name for name, reason in answers.items() if not reason] == ["prep:B0", "prep:B1", "prep:B2"]
    assert answers["prep:B3"] == "needs 30 GB, 5.0 GB left"


def test_a_smaller_job_passes_one_that_does_not_fit() -> None:
    answers = decide([Demand("large", 50 * GB), Demand("small", 5 * GB)], [], _host(100 * GB, used=60 * GB))
    assert answers == {"large": "needs 50 GB, 40 GB left", "small": ""}


def test_a_need_larger_than_the_host_says_what_to_change() -> None:
    (reason,) = decide([Demand("a", 92 * GB)], [], _host(64 * GB)).values()
    assert reason == "needs 92 GB, this host has 64 GB: lower its memory in the config or raise the limit"
    (reason,) = decide([Demand("a", 63 * GB)], [], _host(64 * GB), reserve=4 * GB).values()
    assert reason.startswith("needs 63 GB, this host has 64 GB less 4.0 GB reserve: lower")


def test_figures_that_differ_are_shown_different() -> None:
    (reason,) = decide([Demand("a", 61_040_000_000)], [], _host(90 * GB, used=90 * GB - 60_960_000_000)).values()
    assert reason == "needs 61.04 GB, 60.96 GB left"


def test_a_job_of_unknown_need_starts_even_on_a_full_host() -> None:
    assert decide([Demand("a")], [], _host(10 * GB, used=11 * GB)) == {"a": ""}
    (reason,) = decide([Demand("b", GB)], [], _host(10 * GB, used=11 * GB)).values()
    assert reason == "needs 1.0 GB, 0 MB left"


def test_gpus_are_counted() -> None:
    host = _host(100 * GB, gpus=8)
    holdings = [Holding("serve", None, 5 * GB, gpus=6)]
    demands = [Demand("a", gpus=4), Demand("b", gpus=2), Demand("c", gpus=1), Demand("d", gpus=9)]
    assert decide(demands, holdings, host) == {
        "a": "needs 4 GPUs, 2 free",
        "b": "",
        "c": "needs 1 GPU, 0 free",
        "d": "needs 9 GPUs, this host has 8: lower its gpus in the config",
    }
    assert decide([Demand("a", gpus=1)], [], _host(GB)) == {"a": "needs 1 GPU, none is seen on this host"}


def test_a_job_short_of_gpus_takes_no_memory() -> None:
    answers = decide([Demand("a", 60 * GB, gpus=1), Demand("b", 60 * GB)], [], _host(100 * GB))
    assert answers["b"] == ""


_SIZES = st.integers(0, 200 * GB)


@given(
    demands=st.lists(st.tuples(_SIZES, st.integers(0, 8)), max_size=12),
    holdings=st.lists(st.tuples(_SIZES, _SIZES, st.integers(0, 2)), max_size=4),
    limit=st.integers(GB, 1000 * GB),
    used=_SIZES,
    reserve=st.integers(0, 20 * GB),
)
def test_admitted_jobs_always_fit_together(
    demands: list[tuple[int, int]], holdings: list[tuple[int, int, int]], limit: int, used: int, reserve: int
) -> None:
    host = _host(limit, used, gpus=8)
    held = [Holding(f"h{number}", *each) for number, each in enumerate(holdings)]
    wanted = [Demand(f"d{number}", *each) for number, each in enumerate(demands)]
    answers = decide(wanted, held, host, reserve)
    assert list(answers) == [demand.name for demand in wanted]
    admitted = [demand for demand in wanted if not answers[demand.name]]
    left = memory_left(held, host, reserve)
    assert sum(demand.memory or 0 for demand in admitted) <= max(0, left)
    gpus_free = max(0, 8 - sum(holding.gpus for holding in held))
    assert sum(demand.gpus for demand in admitted) <= gpus_free
    for demand in wanted:
        reason = answers[demand.name]
        assert not reason or reason.startswith("needs ")
        if reason and not demand.gpus:
            assert (demand.memory or 0) > left - sum(other.memory or 0 for other in admitted)


def test_bytes_in_words() -> None:
    assert in_words(0) == "0 MB"
    assert in_words(512 * 10**6) == "512 MB"
    assert in_words(2_449_000_000) == "2.4 GB"
    assert in_words(61 * GB) == "61 GB"
    assert in_words(5_000 * GB) == "5,000 GB"
