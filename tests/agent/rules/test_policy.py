"""Restarts, backoff and needs as pure functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.agent.rules.policy import Again, Stay, after_end, backoff, dependents, unmet
from pipeline.protocol import JobSpec, JobState, JobStatus, Need, RestartPolicy

policies = st.builds(
    RestartPolicy,
    when=st.sampled_from(["never", "on-failure", "always"]),
    limit=st.integers(0, 8),
    window_s=st.floats(1, 1000),
    backoff_s=st.floats(0.01, 10),
    backoff_max_s=st.floats(0.01, 100),
    healthy_s=st.floats(1, 1000),
    no_retry=st.sampled_from([(3,), (), (1, 7)]),
)
ends = st.sampled_from([JobState.DONE, JobState.FAILED, JobState.LOST, JobState.EMPTY])


@given(policies, st.integers(0, 200), st.floats(0, 1))
def test_backoff_is_none_at_first_and_never_over_the_cap(policy: RestartPolicy, restarts: int, chance: float) -> None:
    delay = backoff(policy, restarts, chance)
    assert 0 <= delay <= policy.backoff_max_s
    assert (delay == 0) == (restarts == 0)
    assert backoff(policy, restarts + 1, chance) >= delay


@given(policies, st.lists(st.tuples(ends, st.sampled_from([0, 1, 3, None]), st.floats(0, 900)), max_size=30), st.data())
def test_a_job_is_restarted_at_most_so_often_within_the_window(
    policy: RestartPolicy, attempts: list[tuple[JobState, int | None, float]], data: st.DataObject
) -> None:
    now = 0.0
    restarts: tuple[float, ...] = ()
    for state, code, ran_s in attempts:
        now += ran_s
        found = after_end(policy, state, code, restarts, ran_s, now, data.draw(st.floats(0, 1)))
        if policy.when == "never" or state is JobState.EMPTY:
            assert found == Stay()
        elif code in policy.no_retry and state is not JobState.DONE:
            assert found == Stay(final=f"exit code {code} is not tried again")
        if isinstance(found, Stay):
            if found.gave_up:
                assert len(restarts) >= policy.limit
            return
        assert len(found.restarts) <= policy.limit and found.restarts[-1] == now
        assert all(now - policy.window_s < at <= now for at in found.restarts)
        if ran_s >= policy.healthy_s:
            assert found == Again(0.0, (now,))
        restarts, now = found.restarts, now + found.delay_s


def test_delays_double_from_the_second_restart_on_and_are_spread() -> None:
    policy = RestartPolicy(backoff_s=2.0, backoff_max_s=60.0)
    assert [backoff(policy, restarts, 0.5) for restarts in range(8)] == [0, 2, 4, 8, 16, 32, 60, 60]
    assert (backoff(policy, 1, 0.0), backoff(policy, 1, 1.0)) == (1.5, 2.5)


def test_a_job_that_is_done_stays_so_unless_it_is_always_wanted() -> None:
    assert after_end(RestartPolicy(), JobState.DONE, 0, (), 1, 1, 0.5) == Stay()
    assert after_end(RestartPolicy("always"), JobState.DONE, 0, (), 1, 1, 0.5) == Again(0.0, (1,))


def test_restarts_of_another_boot_do_not_count() -> None:
    found = after_end(RestartPolicy(limit=2), JobState.FAILED, 1, (5000.0, 5001.0), 1, 10.0, 0.5)
    assert found == Again(0.0, (10.0,))


def test_the_jobs_behind_one() -> None:
    specs = {one.name: one for one in (spec("d", Need("c")), spec("a"), spec("c", Need("b")), spec("b", Need("a")))}
    assert dependents("a", specs) == ("d", "c", "b")
    assert dependents("c", specs) == ("d",) and dependents("d", specs) == ()


def status(name: str, state: JobState, waived: str = "") -> JobStatus:
    return JobStatus(name, state, waived=waived)


def spec(name: str, *needs: Need) -> JobSpec:
    return JobSpec(name, "demo", ("x",), needs=needs)


def words(target: JobSpec, *others: tuple[JobSpec, JobStatus]) -> str:
    specs = {target.name: target, **{one.name: one for one, _ in others}}
    return unmet(target, {one.name: state for one, state in others}, specs)


def test_the_reason_names_what_is_waited_for_and_why() -> None:
    a, b = spec("a"), spec("b", Need("a"))
    c = spec("c", Need("b"))
    done, failed = (a, status("a", JobState.DONE)), (a, status("a", JobState.FAILED))
    assert words(b, done) == ""
    assert words(b, failed) == "waits for a, which failed"
    assert words(b, (a, status("a", JobState.EMPTY))) == "waits for a, which made no records"
    assert words(b, (a, status("a", JobState.RUNNING))) == "waits for a"
    assert words(b, (a, status("a", JobState.FAILED, "gated"))) == ""
    assert words(b) == "waits for a, which is not in the plan"
    waiting = (b, status("b", JobState.WAITING))
    assert words(c, failed, waiting) == "waits for b, behind a, which failed"
    assert words(c, done, waiting) == "waits for b"
    both = spec("d", Need("a"), Need("c"))
    assert words(both, failed, (c, status("c", JobState.RUNNING))) == "waits for a, which failed; and c"


def test_a_service_is_needed_ready() -> None:
    target = spec("g", Need("s", "ready"))
    for state, met in ((JobState.READY, True), (JobState.RUNNING, False), (JobState.STALLED, False)):
        assert (words(target, (spec("s"), status("s", state))) == "") is met
    assert words(target, (spec("s"), status("s", JobState.DONE))) == "waits for s, which ended"


def test_many_needs_are_counted() -> None:
    needs = tuple(Need(f"p{number}") for number in range(9))
    others = [(spec(need.job), status(need.job, JobState.RUNNING)) for need in needs]
    assert words(spec("g", *needs), *others) == "waits for p0, p1 and 7 more"
