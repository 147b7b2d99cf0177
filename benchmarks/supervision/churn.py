"""The agent is SIGKILLed again and again, at random moments, while jobs start and end under it."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.supervision.jobs import Jobs, wait_for
from benchmarks.supervision.measure import percentiles
from benchmarks.supervision.ours import ALWAYS, Draftdeck
from pipeline.protocol import JobSpec, JobState, RestartPolicy

STEADY: Final = 8
CHURNING: Final = 8
APART_S: Final = 0.8
AT_ONCE: Final = RestartPolicy(when="always", limit=1_000_000, healthy_s=0.0)

# Says when it starts and with what code it ends, by the number of its attempt: its log and all else lie under that.
SCRIPT: Final = """
attempt=${{DRAFTDECK_PROGRESS%/*}}; attempt=${{attempt##*/}}
echo "start $attempt" >> "{folder}/{name}.said"
sleep 0.$((attempt * 7 % 5 + 1))
code=$((attempt % 90 + 10))
echo "end $attempt $code" >> "{folder}/{name}.said"
exit $code
"""


@dataclass
class Tally:
    """What became of the jobs over all kills."""

    kills: int = 0
    alive: int = 0
    adopted: int = 0
    steady: int = 0  # how many there were to be alive and adopted, over all kills
    starts: int = 0
    doubled: int = 0
    ends: int = 0
    codes_kept: int = 0
    served_again: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, object]:
        return {**vars(self), "served_again": percentiles(self.served_again)}


def churn(folder: Path, kills: int, seed: int = 1) -> Tally:
    """Kill the agent ``kills`` times; some jobs run all the time, others start and end all the time."""
    chance = random.Random(seed)
    tally = Tally()
    jobs = Jobs.make(folder, STEADY)
    names = [f"churn{number}" for number in range(CHURNING)]
    agent = Draftdeck(folder)
    try:
        specs = [JobSpec(name, "demo", jobs.argv(name), restart=ALWAYS) for name in jobs.names]
        for name in names:
            script = SCRIPT.format(folder=folder, name=name)
            specs.append(JobSpec(name, "demo", ("/bin/sh", "-c", script), restart=AT_ONCE))
        agent.start_plan(*specs)
        assert wait_for(lambda: all(agent.state().jobs[name].state is JobState.RUNNING for name in jobs.names))
        before = {name: jobs.starts(name)[-1] for name in jobs.names}
        for _ in range(kills):
            time.sleep(chance.random() * APART_S)
            began = time.monotonic()
            agent.kill()
            agent.again()
            tally.served_again.append(time.monotonic() - began)
            tally.kills += 1
            tally.steady += len(before)
            living = jobs.living()
            tally.alive += sum(pid in living[name] for name, pid in before.items())
            tally.adopted += len(agent.adopted(before))
            tally.doubled += sum(max(0, len(pids) - 1) for pids in living.values())
        for name in names:
            agent.wait(agent.rig.act(name, "stop"))
        assert wait_for(lambda: all(agent.state().jobs[name].state is JobState.STOPPED for name in names))
        for name in names:
            count(agent, folder, name, tally)
    finally:
        agent.close()
        jobs.clean_up()
    return tally


def count(agent: Draftdeck, folder: Path, name: str, tally: Tally) -> None:
    """Compare what a job said of its starts and ends with what the agent knows of its attempts."""
    known = {attempt.number: attempt for attempt in agent.attempts(name)}
    runs: set[str] = set()
    under_way = ""
    for line in (folder / f"{name}.said").read_text().splitlines():
        word, number, *code = line.split()
        if word == "start":
            tally.starts += 1
            tally.doubled += number in runs or bool(under_way)
            runs.add(number)
            under_way = number
            continue
        under_way = "" if under_way == number else under_way
        tally.ends += 1
        attempt = known.get(int(number))
        tally.codes_kept += attempt is not None and attempt.exit_code == int(code[0])
