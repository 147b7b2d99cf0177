"""What doctor makes of a host: every line in its right and in its wrong state."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from console.config import Config, parse
from console.doctor import judge, modules
from console.doctor.findings import Finding, as_json, as_text, well
from console.plan import build
from pipeline.protocol import GpuSample, HostSample, Survey, SurveyedAgent, SurveyedDisk
from tests.config.sources import real
from tests.config.test_plan import demo_text

GB = 10**9
GPU = GpuSample(0, "NVIDIA H200", 0, 141 * GB, 0.0)
HOST = HostSample(
    0.0, 64, 5.0, 50 * GB, 960 * GB, "cgroup v2", 0.0, 0, 3000 * GB, 4000 * GB,
    gpus=tuple(replace(GPU, index=index) for index in range(8)),
)  # fmt: skip
AGENT = SurveyedAgent(7, 8, "0123456789abcdef", True, "/data/draftdeck/agent/start", "the command line of pid 1", "sh")
SOUND = Survey(
    at=0.0,
    user="0",
    python="/usr/bin/python3",
    host=HOST,
    disk=SurveyedDisk("/data/draftdeck", True, "ext4"),
    agent=AGENT,
    shared_memory=64 * GB,
    secrets={"HF_TOKEN": "file"},
    paths={"/models/Kimi-K2.5": "model"},
    ports={"127.0.0.1:30000": ""},
)


def lines(survey: Survey = SOUND, *, live: tuple[str, ...] = (), ahead_s: float = 0.0) -> list[Finding]:
    config = real()
    return judge.judge(config, build(config, "r"), survey, live, ahead_s)


def line(topic: str, survey: Survey = SOUND, **rest: object) -> Finding:
    (found,) = [finding for finding in lines(survey, **rest) if finding.topic == topic]  # type: ignore[arg-type]
    return found


def test_a_sound_host_is_all_well() -> None:
    found = lines()
    assert {finding.state for finding in found} == {"ok"} and len(found) >= 12
    assert len({finding.topic for finding in found}) == len(found)


@pytest.mark.parametrize(
    ("topic", "changes", "state", "words"),
    [
        ("work directory", {"disk": SurveyedDisk("/data", False, "ext4", refused="Permission denied")}, "wrong",
         "is not there, and /data cannot be used: Permission denied"),
        ("work directory", {"disk": SurveyedDisk("/data/draftdeck", True, "nfs4", network=True)}, "warning", "nfs4"),
        ("work directory", {"disk": SurveyedDisk("/data", False, "xfs")}, "ok", "apply makes it in /data"),
        ("log caps", {"disk": SurveyedDisk("/data/draftdeck", True, "ext3", no_holes="Operation not supported")},
         "warning", "grow without a cap"),
        ("runtime folder", {"runtime": "/tmp/draftdeck-0-x has mode 755; run: chmod 700 /tmp/draftdeck-0-x"}, "wrong",
         "chmod 700"),
        ("disk", {"host": replace(HOST, disk_free=100 * GB)}, "warning", "100 GB of 4"),
        ("disk", {"host": replace(HOST, disk_free=10**6)}, "wrong", "1.0 MB"),
        ("disk", {"host": replace(HOST, disk_free=None)}, "warning", "not known"),
        ("memory", {"host": replace(HOST, memory_limit=512 * GB)}, "wrong", "serve:baseline (700 GB)"),
        ("memory", {"host": replace(HOST, memory_limit=900 * GB)}, "warning", "reckons with 960 GB"),
        ("OOM counter", {"host": replace(HOST, oom_kills=None)}, "warning", "not counted"),
        ("cgroups", {"cgroup": "no memory cgroup is mounted here"}, "warning", "no memory cgroup is mounted here"),
        ("pidfd", {"pidfd": "Function not implemented"}, "wrong", "Function not implemented"),
        ("ptrace", {"ptrace": "Operation not permitted"}, "warning", "Operation not permitted"),
        ("environment", {"first_environment": False}, "warning", "login shell's"),
        ("GPUs", {"host": replace(HOST, gpus=(GPU,))}, "wrong", "needs 8, 1 seen"),
        ("GPUs", {"host": replace(HOST, gpus=(), remarks=("no GPU figures: Driver Not Loaded",))}, "wrong",
         "none seen: no GPU figures: Driver Not Loaded"),
        ("shared memory", {"shared_memory": 64 << 20}, "warning", "67 MB"),
        ("agent", {"agent": SurveyedAgent()}, "ok", "draftdeck apply does it"),
        ("agent", {"agent": replace(AGENT, pid=None)}, "wrong", "does not run"),
        ("agent", {"agent": replace(AGENT, deployed=False)}, "wrong", "is not there any more"),
        ("keeper", {"agent": replace(AGENT, keeper=None)}, "wrong", "does not run"),
        ("start hook", {"agent": replace(AGENT, start="", hook="")}, "wrong", "no agent/start"),
        ("start hook", {"agent": replace(AGENT, hook="")}, "warning", "pid 1: sh"),
        ("secret", {"secrets": {}}, "wrong", "HF_TOKEN is not set"),
        ("secret", {"secrets": {"HF_TOKEN": "pid 1"}}, "ok", "pid 1"),
        ("secret", {"secrets": {"HF_TOKEN": "has mode 644; run: chmod 600"}}, "wrong", "chmod 600"),
        ("target", {"paths": {}}, "wrong", "/models/Kimi-K2.5"),
        ("target", {"paths": {"/models/Kimi-K2.5": "folder"}}, "wrong", "no config.json in it"),
        ("port", {"ports": {"127.0.0.1:30000": "Address already in use"}}, "wrong", "Address already in use"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(topic: str, changes: dict[str, object], state: str, words: str) -> None:
    found = line(topic, replace(SOUND, **changes))  # type: ignore[arg-type]
    assert found.state == state
    assert words in f"{found.text} {found.advice}"
    assert found.state == "ok" or found.advice or topic == "secret"


def test_the_start_hook_says_the_exact_lines() -> None:
    advice = line("start hook", replace(SOUND, agent=replace(AGENT, hook=""))).advice.splitlines()
    assert advice == [
        "in the image's entrypoint, before its own command: /data/draftdeck/agent/start",
        "or where cron runs: (crontab -l 2>/dev/null; echo '@reboot /data/draftdeck/agent/start') | crontab -",
    ]


def test_a_port_that_the_runs_own_server_holds_is_well() -> None:
    taken = replace(SOUND, ports={"127.0.0.1:30000": "Address already in use"})
    assert line("port", taken, live=("serve:baseline",)).state == "ok"


def test_a_clock_that_is_off_is_told() -> None:
    assert line("clock", ahead_s=5.0).state == "ok"
    assert line("clock", ahead_s=-3600.0).text.startswith("is 1 h 00 m behind")
    assert "ahead of" in line("clock", ahead_s=90.0).text


def test_local_sources_are_looked_for() -> None:
    config = parse(demo_text().encode())
    sources = [path for path in judge.model_paths(config) if path.startswith("/demo/sources/")]
    assert len(sources) == 10 and config.target.path in judge.model_paths(config)
    plan = build(config, "r")
    there = replace(SOUND, paths=dict.fromkeys(sources[1:], "file") | {config.target.path: "model"})
    found = {one.topic: one for one in judge.judge(config, plan, there, (), 0.0)}
    assert found["datasets"].state == "wrong" and found["datasets"].text == f"not there: {sources[0]} (A1)"
    there = replace(there, paths=dict.fromkeys(sources, "file"))
    found = {one.topic: one for one in judge.judge(config, plan, there, (), 0.0)}
    assert found["datasets"].state == "ok"


def test_secrets_of_notify_are_looked_for_once() -> None:
    text = demo_text() + '\n[notify]\nwebhook = "HOOK"\nheartbeat = "BEAT"\n[environment]\nsecrets = ["HOOK", "T"]\n'
    config: Config = parse(re.sub(r"(?ms)^\[environment\]\n.*?(?=^\[)", "", text, count=1).encode())
    assert judge.secret_names(config) == ("HOOK", "T", "BEAT")


# --- Modules ----------------------------------------------------------------------------------------------------------


def test_the_versions_are_those_of_pyproject() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    required: dict[str, str] = {}
    for wanted in (
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ):
        name, sign, rest = wanted.partition(">=")
        if sign:
            required[name] = rest
    listed = {
        *modules.AGENT,
        *(one for group in (*modules.STAGES.values(), *modules.ENGINES.values()) for one in group),
    }
    for module in listed:
        least, *others = required[module.distribution].split(",")
        assert module.least == least, module
        assert module.bad == tuple(other[2:] for other in others if other.startswith("!=")), module
    agents = {one.partition(">=")[0] for one in project["optional-dependencies"]["agent"]} | {
        "psutil",
        "httpx",
        "msgspec",
    }
    assert {module.distribution for module in modules.AGENT} == agents


def test_modules_that_lack_or_are_wrong() -> None:
    group = (modules.TRANSFORMERS, modules.JINJA)
    assert modules.judge("prep", group, {"transformers": "5.24.0", "jinja2": "3.1.6"}, "py").state == "ok"
    lacking = modules.judge("prep", group, {"jinja2": "3.1.6"}, "py")
    assert (lacking.state, lacking.text, lacking.advice) == (
        "wrong", "transformers is missing", "py -m pip install 'transformers>=4.57'",
    )  # fmt: skip
    assert modules.judge("prep", group, {"transformers": "5.5.1", "jinja2": "3.1.6"}, "py").state == "wrong"
    old = modules.judge("prep", group, {"transformers": "4.9", "jinja2": "?"}, "py")
    assert (old.state, old.text) == ("warning", "transformers 4.9 is older than 4.57")
    assert modules.judge("agent", (modules.NVML,), {}, "py").state == "warning"
    assert modules.judge("serve", modules.ENGINES["reference"][:1], {"torch": "2.13.0+cpu"}, "py").state == "ok"


# --- The words --------------------------------------------------------------------------------------------------------

FOUND = [
    Finding("ok", "ssh", "there"),
    Finding("warning", "cgroups", "none\x1b[31m", "mount\nthem"),
    Finding("wrong", "secret", "not set"),
]


def test_lines_for_people() -> None:
    assert as_text(FOUND).splitlines() == [
        "✓ ok      ssh                there",
        "! warning cgroups            none",
        "                             → mount",
        "                             → them",
        "✗ wrong   secret             not set",
        "1 ok, 1 to know of, 1 wrong",
    ]


def test_lines_for_programs() -> None:
    found = json.loads(as_json(FOUND))
    assert found["ok"] is False and found["findings"][1]["advice"] == "mount\nthem"
    assert json.loads(as_json(FOUND[:2]))["ok"] is True and well(FOUND[:2])
