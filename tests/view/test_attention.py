"""The first line: the worst thing first."""

from __future__ import annotations

from dataclasses import replace

from console.view import LinkView, Tone, attention, fold
from console.view.attention import dependents
from pipeline.protocol import Event, JobState, JobStatus, StreamLine
from tests.view import scenario


def test_a_failure_comes_before_everything_but_the_link() -> None:
    said = attention(scenario.live(0.0), 1.0)
    assert said.tone is Tone.BAD
    assert said.needed
    assert said.job == "prep:B5"
    assert said.text.startswith("1 needs you: prep:B5 empty: 0 of 114,000: no user turn; roles seen: human, gpt")
    assert said.text.endswith("6 jobs wait for it")
    assert said.keys == "R restarts it"


def test_the_failure_that_most_jobs_wait_for_is_named() -> None:
    said = attention(scenario.all_crashed(0.0), 1.0)
    assert said.text.startswith("17 need you: ")
    assert said.keys == "R restarts all"
    assert len(dependents(said.job, scenario.all_crashed(0.0).jobs)) == 6


def test_a_lost_link_says_since_when_and_what_is_tried() -> None:
    snapshot = replace(scenario.live(0.0), link=LinkView("lost", 10.0, "trying gpu-3:22 again in 4 s"))
    said = attention(snapshot, 75.0)
    assert said.text.startswith("link to gpu-3 lost 1 m 05 s ago: trying gpu-3:22 again in 4 s")
    assert "figures are 1 m 15 s old, jobs go on" in said.text


def test_an_agent_that_does_not_answer_is_said_at_once_over_a_live_link() -> None:
    well = scenario.all_well(0.0)
    assert attention(well, 1.0).text.startswith("all well: ")
    said = attention(replace(well, link=LinkView("live", 0.0, "no agent at /tmp/d/agent.sock")), 1.0)
    assert (said.tone, said.keys) == (Tone.BAD, "c tries now")
    assert said.text == (
        "the agent on gpu-3 does not answer: no agent at /tmp/d/agent.sock · figures are 1.0 s old, jobs go on"
    )


def test_a_refusal_offers_a_key() -> None:
    snapshot = replace(scenario.started(0.0), link=LinkView("refused", 0.0, "host key changed"))
    said = attention(snapshot, 5.0)
    assert (said.text, said.keys, said.needed) == ("gpu-3 refused: host key changed", "c tries again", True)


def test_a_link_that_is_being_made_again_is_not_said_to_be_up() -> None:
    trying = replace(scenario.live(0.0), link=LinkView("connecting", 990.0, ""))
    said = attention(trying, 1000.0)
    assert said.text == "connecting to gpu-3 … · figures are 16 m 40 s old, jobs go on"
    assert attention(trying, 1.0).text.startswith("connecting to gpu-3 …")


def test_stale_data_is_said_before_what_the_data_say() -> None:
    said = attention(scenario.live(0.0), 12.0)
    assert said.tone is Tone.WARN
    assert said.text.startswith("stale: nothing heard from the agent for 12 s")


def test_a_job_that_starts_again_by_itself_needs_nobody() -> None:
    status = JobStatus("generate", JobState.BACKOFF, "exit code 1, again in 8 s")
    line = StreamLine(event=Event(99, 0.0, "state", "", "generate", status=status))
    said = attention(fold(scenario.all_well(0.0), line, 0.0), 1.0)
    assert said.tone is Tone.WARN
    assert not said.needed
    assert "starts again by itself" in said.text


def test_a_job_that_gave_up_needs_a_person() -> None:
    reason = "gave up after 5 restarts within 10 min; last: KeyError: 'turns'"
    line = StreamLine(
        event=Event(99, 0.0, "state", "", "prep:B4", status=JobStatus("prep:B4", JobState.FAILED, reason))
    )
    said = attention(fold(scenario.all_well(0.0), line, 0.0), 1.0)
    assert (said.tone, said.needed, said.job) == (Tone.BAD, True, "prep:B4")
    assert said.text.startswith(f"1 needs you: prep:B4 failed: {reason}")


def test_well_and_empty() -> None:
    said = attention(scenario.all_well(0.0), 1.0)
    assert said.tone is Tone.GOOD
    assert said.text == "all well: 1 running, 1 ready, 5 waiting, 10 done"
    assert attention(scenario.empty_run(0.0), 1.0).text.startswith("no plan on this host yet")
    assert attention(scenario.started(0.0), 1.0).text.startswith("connecting to gpu-3")


def test_tight_memory_and_a_missing_keeper_are_said() -> None:
    well = scenario.all_well(0.0)
    assert well.beat is not None
    assert well.agent is not None
    tight = replace(scenario.HOST, memory_used=950 * scenario.GB)
    assert "memory nearly full: 950 / 960 GB" in attention(replace(well, beat=replace(well.beat, host=tight)), 1.0).text
    alone = replace(well, agent=replace(well.agent, keeper=False))
    assert "keeper" in attention(alone, 1.0).text


def test_a_short_disk_needs_a_person_and_says_how_long_it_lasts() -> None:
    well = scenario.live(0.0)
    well = replace(well, statuses={name: each for name, each in well.statuses.items() if each.state is JobState.READY})
    assert well.beat is not None
    assert "disk" not in attention(well, 1.0).text
    short = replace(scenario.HOST, disk_free=80 * scenario.GB, disk_left_s=5 * 3600.0, disk_short=True)
    said = attention(replace(well, beat=replace(well.beat, host=short)), 1.0)
    assert said.text == "1 needs you: the disk is short: 80 GB free, 5 h left"
    assert said.needed
    full = replace(short, disk_left_s=None, inodes_free=12, inodes_total=1_000_000)
    said = attention(replace(well, beat=replace(well.beat, host=full)), 1.0)
    assert said.text == "1 needs you: the disk is short: 80 GB free, room for 12 more files"


def test_a_server_that_loads_again_is_not_called_well() -> None:
    snapshot = scenario.came_back(0.0)
    status = replace(snapshot.statuses["generate"], name="serve:baseline", state=JobState.RUNNING)
    said = attention(replace(snapshot, statuses={**snapshot.statuses, "serve:baseline": status}), 1.0)
    assert said.tone is Tone.WARN
    assert said.text.startswith("serve:baseline is loading again after it ended 2 m ago: SIGKILL")


def test_a_job_that_came_back_by_itself_is_news_for_a_while() -> None:
    said = attention(scenario.came_back(0.0), 1.0)
    assert said.text == ("all well, but generate was restarted 1× by itself, last 2 m ago: SIGKILL, sender unknown")
    assert said.tone not in (Tone.BAD, Tone.WARN)
    assert not said.needed
    assert attention(scenario.came_back(0.0, 601.0), 1.0).text.startswith("all well: ")


def test_a_new_host_key_can_be_accepted_and_a_changed_one_cannot() -> None:
    new = replace(scenario.started(0.0), link=LinkView("refused", 0.0, "not known yet: SHA256:abc", "SHA256:abc"))
    assert attention(new, 1.0).keys == "a accepts its key"
    assert "SHA256:abc" in attention(new, 1.0).text
    changed = replace(scenario.started(0.0), link=LinkView("refused", 0.0, "has changed"))
    assert attention(changed, 1.0).keys == "c tries again"


def test_a_waived_failure_needs_nobody() -> None:
    snapshot = scenario.all_well(0.0)
    status = replace(snapshot.statuses["prep:B4"], state=JobState.EMPTY, waived="gated")
    said = attention(fold(snapshot, StreamLine(event=Event(7, 0.0, "state", "", "prep:B4", status=status)), 0.0), 1.0)
    assert said.text == "all well: 1 running, 1 ready, 5 waiting, 9 done, 1 failed and waived"


def test_a_dataset_that_goes_to_zero_is_said_before_it_ends() -> None:
    said = attention(scenario.emptying(0.0), 1.0)
    assert (said.tone, said.job, said.needed, said.keys) == (Tone.BAD, "prep:B5", True, "n goes there")
    assert said.text == "1 needs you: prep:B5 keeps nothing, 0 of 12,000 rows so far: no user turn"
    assert attention(scenario.emptying(0.0, read=70), 1.0).job != "prep:B5"  # too few to be sure
