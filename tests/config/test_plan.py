"""The plan: its jobs, what they wait for, command lines that their own stages accept, hashes that follow content."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
from typing import Any

import pytest

from console import plan
from console.config import Config, parse
from console.config.decode import sections
from console.config.fields import class_of
from console.config.flags import NAMED
from console.demo_config import SOURCES, demo_config
from pipeline.generate.settings import Settings
from pipeline.protocol import DiskPolicy, JobSpec, Need, Notify, Plan
from tests.config.sources import TEXT, changed, line_of, real

RELEASE = "0123456789abcdef"
STAGES = ("prep", "dedup", "serve", "generate", "merge")
PREPS = [f"prep:{name}" for name in ("A1", "A2", "B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8")]


def demo_text(**changes: Any) -> str:
    settings: dict[str, Any] = {
        "port": 2222,
        "user": "somebody",
        "key": "/demo/container/key",
        "known_hosts": "/demo/container/known_hosts",
        "workdir": "/demo/work",
        "python": "/venv/bin/python",
        "model_dir": "/demo/models/smollm2",
        "sources": {name: f"/demo/sources/{name}" for name in SOURCES},
        "size": 24,
        "server_port": 30_123,
    }
    return demo_config(**(settings | changes))


@functools.cache
def demo() -> Config:
    return parse(demo_text().encode())


def made(config: Config) -> Plan:
    return plan.build(config, RELEASE)


def job(config: Config, name: str) -> JobSpec:
    return next(job for job in made(config).jobs if job.name == name)


def parser_of(stage: str) -> argparse.ArgumentParser:
    module = importlib.import_module(f"pipeline.{stage}.__main__")
    parser: argparse.ArgumentParser = module.build_parser()
    return parser


def parsed(spec: JobSpec) -> argparse.Namespace:
    """The job's command line as its own stage reads it."""
    assert spec.argv[1:3] == ("-m", f"pipeline.{spec.stage}")
    return parser_of(spec.stage).parse_args(list(spec.argv[3:]))


@pytest.mark.parametrize("config", [real(), demo()], ids=["real", "demo"])
@pytest.mark.parametrize("stage", STAGES)
def test_every_command_line_is_one_that_its_stage_accepts(config: Config, stage: str) -> None:
    jobs = [spec for spec in made(config).jobs if spec.stage == stage]
    assert jobs
    for spec in jobs:
        parsed(spec)


def test_the_jobs_and_what_they_wait_for() -> None:
    jobs = {spec.name: spec for spec in made(real()).jobs}
    assert list(jobs) == [*PREPS, "dedup", "serve:baseline", "generate", "merge"]
    assert all(jobs[name].needs == () for name in [*PREPS, "serve:baseline"])
    assert jobs["dedup"].needs == tuple(Need(name) for name in PREPS)
    assert jobs["generate"].needs == (Need("dedup"), Need("serve:baseline", "ready"))
    assert jobs["merge"].needs == (Need("dedup"), Need("generate"))


def test_dedup_reads_all_preps_answers_first_and_those_after_it_read_what_it_wrote() -> None:
    text = TEXT.replace("[datasets.A1]", "[datasets.Z1]")
    arguments = parsed(job(parse(text.encode()), "dedup"))
    assert [str(folder) for folder in arguments.samples] == ["data/samples/Z1", "data/samples/A2"]
    assert [str(folder) for folder in arguments.prompts] == [f"data/prompts/B{number}" for number in range(1, 9)]
    assert (arguments.threshold, arguments.shingle, str(arguments.out)) == (0.8, 5, "data/dedup")
    assert str(parsed(job(real(), "generate")).dedup) == str(parsed(job(real(), "merge")).dedup) == "data/dedup"


def test_which_answers_merge_drops() -> None:
    assert parsed(job(real(), "merge")).drop == ("aborted", "empty", "repetitive")
    none = parse(changed('drop = ["aborted", "empty", "repetitive"]', "drop = []").encode())
    assert parsed(job(none, "merge")).drop == ()


def test_the_order_of_the_sets_counts_for_dedup() -> None:
    config = real()
    turned = dataclasses.replace(config, datasets=dict(reversed(config.datasets.items())))
    assert job(turned, "dedup").inputs_hash != job(config, "dedup").inputs_hash


def test_a_prep_says_everything_about_its_dataset() -> None:
    arguments = parsed(job(real(), "prep:B8"))
    assert (arguments.dataset, arguments.kind, arguments.source) == ("B8", "prompts", "nebius/SWE-agent-trajectories")
    assert (arguments.shape, arguments.take, arguments.group) == ("trajectory", 3288, "instance_id")
    assert (arguments.partition, arguments.max_new_tokens, arguments.context_length) == ("long", 16_384, 65_536)
    assert arguments.template_json == {"thinking": True}
    assert (arguments.target, arguments.target_family) == ("/models/Kimi-K2.5", "kimi_k25")
    assert arguments.trust_remote_code
    assert str(arguments.out) == "data/prompts/B8"
    answers = parsed(job(real(), "prep:A1"))
    assert answers.context_length == 262_144
    assert (answers.train_turns, answers.over_context) == ("assistant", "cut")
    assert str(answers.out) == "data/samples/A1"
    assert answers.damaged == "fail"
    kept = parse(changed('over_context = "cut"', 'damaged = "keep"\nover_context = "cut"').encode())
    assert parsed(job(kept, "prep:A1")).damaged == "keep"


def test_a_prep_is_told_which_files_of_which_commit() -> None:
    more = 'revision = "refs/convert/parquet"\nfiles = ["data/train-0*", "*.jsonl"]\nconfig = "default"'
    config = parse(changed('config = "default"', more).encode())
    arguments = parsed(job(config, "prep:B5"))
    assert arguments.files == ["data/train-0*", "*.jsonl"]
    assert (arguments.config, arguments.split, arguments.revision) == ("default", "train", "refs/convert/parquet")
    assert job(config, "prep:B5").content_hash != job(real(), "prep:B5").content_hash


def test_a_target_of_the_hub_is_named_with_its_revision() -> None:
    config = parse(changed('path = "/models/Kimi-K2.5"', 'path = ""').encode())
    for name in ("prep:B1", "merge"):
        arguments = parsed(job(config, name))
        assert arguments.target == "moonshotai/Kimi-K2.5"
        assert arguments.target_revision == config.target.revision
    server = job(config, "serve:baseline")
    assert f"revision={config.target.revision}" in server.argv
    assert server.readiness is not None
    assert server.readiness.model_path == "moonshotai/Kimi-K2.5"


def test_the_server_is_a_service_that_has_to_prove_itself() -> None:
    server = job(real(), "serve:baseline")
    assert server.service
    assert server.readiness is not None
    assert server.readiness.url == "http://127.0.0.1:30000"
    assert server.readiness.speculative_algorithm is None
    assert (server.resources.gpus, server.resources.memory) == (8, 700 * 10**9)
    assert server.restart.when == "always"
    assert server.env["NCCL_ALGO"] == "Ring"
    assert "NCCL_ALGO" not in job(real(), "generate").env
    arguments = parsed(server)
    assert {"tp-size=8", "enable-metrics", "trust-remote-code", "mem-fraction-static=0.85"} <= set(arguments.flag)
    assert not {word.partition("=")[0] for word in arguments.flag} & {"port", "host", "model-path"}


def test_the_guard_of_serve_accepts_what_the_plan_says_and_knows_the_same_flags() -> None:
    from pipeline.serve.__main__ import options_of
    from pipeline.serve.command import OWN_FLAGS
    from pipeline.serve.guard import refusals

    assert refusals(options_of(parsed(job(real(), "serve:baseline")))) == []
    assert set(NAMED) >= OWN_FLAGS


def test_flags_of_one_server_stand_over_those_of_both() -> None:
    own = "flags = { mem-fraction-static = 0.6, tool-call-parser = false }"
    config = parse(changed("needs = []  ", f"{own}\nneeds = []  ").encode())
    flags = parsed(job(config, "serve:baseline")).flag
    assert "mem-fraction-static=0.6" in flags
    assert not any(flag.startswith(("mem-fraction-static=0.85", "tool-call-parser")) for flag in flags)


def test_generate_gets_every_partition_with_its_sampling() -> None:
    from pipeline.generate.__main__ import settings_of

    spec = job(real(), "generate")
    words = [spec.argv[index + 1] for index, word in enumerate(spec.argv) if word == "--partition"]
    assert [json.loads(word) for word in words] == [
        {"name": "short", "concurrency": 150, "max_new_tokens": 10240, "temperature": 1.0, "top_p": 0.95, "top_k": -1},
        {"name": "long", "concurrency": 32, "max_new_tokens": 16384, "temperature": 1.0, "top_p": 0.95, "top_k": -1},
    ]
    settings = settings_of(parsed(spec))
    assert [str(folder) for folder in settings.prompts] == [f"data/prompts/B{number}" for number in range(1, 9)]
    assert settings.stop_ids == (163586, 163585)
    assert (settings.servers, settings.model_path) == (("http://127.0.0.1:30000",), "/models/Kimi-K2.5")
    assert not settings.side_by_side
    assert settings_of(parsed(job(demo(), "generate"))).side_by_side


def test_generate_is_told_what_to_do_with_faulty_answers() -> None:
    from pipeline.generate.__main__ import settings_of
    from pipeline.generate.judge import Policy

    def settings(text: str) -> Settings:
        return settings_of(parsed(job(parse(text.encode()), "generate")))

    plain = settings(changed("suspect_after = 3", "suspect_after = 5"))
    assert (plain.suspect_after, plain.max_set_aside_share) == (5, 0.5)
    assert plain.policy == Policy(thinking_end=163607) == Policy(("aborted", "empty"), (), 2, 163607)
    quiet = settings(changed("thinking = true", "thinking = false"))
    assert quiet.policy.thinking_end is None, "the template has thinking off"
    assert settings(changed("set_aside = []", 'set_aside = ["repetitive"]')).policy.set_aside == ("repetitive",)


def test_servers_elsewhere_need_no_job_here() -> None:
    config = parse(changed('servers = ["baseline"]', 'servers = ["http://gpu-4:30000"]').encode())
    names = [spec.name for spec in made(config).jobs]
    assert "serve:baseline" not in names
    generate = job(config, "generate")
    assert parsed(generate).server == ["http://gpu-4:30000"]
    assert all(need.condition == "done" for need in generate.needs)


@pytest.mark.parametrize(("host", "url"), [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "[::1]")])
def test_a_server_is_reached_where_it_listens(host: str, url: str) -> None:
    config = parse(changed('host = "127.0.0.1"', f'host = "{host}"').encode())
    server = job(config, "serve:baseline")
    assert server.readiness is not None
    assert server.readiness.url == f"http://{url}:30000"


def test_needs_of_the_config_are_added_and_patterns_spread() -> None:
    text = changed("needs = []  ", 'needs = ["prep:B*"]  ')
    config = parse(changed("take = 3288", 'take = 3288\nneeds = ["prep:B1", "prep:*"]', text).encode())
    assert [need.job for need in job(config, "serve:baseline").needs] == [name for name in PREPS if "B" in name]
    assert [need.job for need in job(config, "prep:B8").needs] == ["prep:B1", "prep:A1", "prep:A2", *PREPS[3:-1]]


def test_batch_jobs_are_taken_before_the_server_when_memory_runs_out() -> None:
    scores = {spec.name: spec.oom_score_adj for spec in made(real()).jobs}
    assert scores["serve:baseline"] == 100
    assert {score for name, score in scores.items() if name != "serve:baseline"} == {500}


def test_policies_resources_and_secrets_reach_the_jobs() -> None:
    config = real()
    spec = job(config, "prep:B2")
    assert spec.resources.memory == 24 * 10**9
    assert job(config, "prep:B1").resources.memory == 12 * 10**9
    assert (spec.stop_grace_s, spec.stall_s) == (15.0, 900.0)
    assert spec.secrets == ("HF_TOKEN",)
    assert spec.env["TOKENIZERS_PARALLELISM"] == "false"
    assert made(config).reserve_memory == 48 * 10**9
    assert job(config, "generate").restart.limit == 20


def test_the_rules_for_the_disk_reach_the_plan_and_touch_no_job() -> None:
    before, after = made(real()), made(parse(changed('log = "2 GB"', 'log = "500 MB"').encode()))
    assert before.disk == DiskPolicy()
    assert after.disk == DiskPolicy(log=500 * 10**6)
    assert after.jobs == before.jobs


AFTER_PREP = {"dedup", "generate", "merge"}
EVERY = {*PREPS, "serve:baseline", *AFTER_PREP}
CONTENT: dict[str, tuple[str, str, set[str]]] = {
    "model": ('model = "moonshotai/Kimi-K2.5"', 'model = "moonshotai/Kimi-K2.6"', EVERY),
    "template": ("thinking = true", "thinking = false", EVERY),
    "take": ("take = 15000", "take = 14000", {"prep:B2", *AFTER_PREP}),
    "answers set": ("take = 2800", "take = 2700", {"prep:A1", *AFTER_PREP}),
    "temperature": ("temperature = 1.0", "temperature = 0.9", {"generate", "merge"}),
    "token limit": ("max_new_tokens = 16384", "max_new_tokens = 12000", {"prep:B8", *AFTER_PREP}),
    "stop ids": ("[163586, 163585]", "[163586]", {"generate", "merge"}),
    "similarity": ("threshold = 0.8", "threshold = 0.9", AFTER_PREP),
    "answers left out": ('drop = ["aborted", "empty", "repetitive"]', 'drop = ["aborted", "empty"]', {"merge"}),
    "draft vocabulary": ("draft_vocab_size = 32000", "draft_vocab_size = 16000", {"merge"}),
    "held-out share": ("heldout_share = 0.02", "heldout_share = 0.05", {*PREPS, *AFTER_PREP}),
    "faulty answers": ("set_aside = []", 'set_aside = ["repetitive"]', set()),
    "order of the prompts": ("seed = 0                              # of", "seed = 1  # of", set()),
    "concurrency": ("concurrency = 150", "concurrency = 100", set()),
    "memory": ('memory = "12 GB"', 'memory = "20 GB"', set()),
    "port": ("port = 30000", "port = 31000", set()),
    "environment": ('NCCL_PROTO = "LL"', 'NCCL_PROTO = "Simple"', set()),
    "folder of the target": ('path = "/models/Kimi-K2.5"', 'path = "/other/Kimi-K2.5"', set()),
    "note": ('note = "112,960 rows"', 'note = "rows"', set()),
    "restart": ('restart = "always"', 'restart = "never"', set()),
    "training": ("ttt_steps = 7", "ttt_steps = 5", set()),
}


@pytest.mark.parametrize("name", CONTENT)
def test_a_content_hash_changes_with_what_is_written_and_nothing_else(name: str) -> None:
    old, new, expected = CONTENT[name]
    before = {spec.name: (spec.content_hash, spec.inputs_hash) for spec in made(real()).jobs}
    after = {spec.name: (spec.content_hash, spec.inputs_hash) for spec in made(parse(changed(old, new).encode())).jobs}
    assert {job for job in before if before[job] != after[job]} == expected


@pytest.mark.parametrize(
    ("name", "useless"),
    [
        ("take", {"prep:B2"}),
        ("held-out share", set(PREPS)),
        ("temperature", {"generate"}),
        ("similarity", {"dedup"}),
        ("answers left out", {"merge"}),
        ("draft vocabulary", {"merge"}),
    ],
)
def test_only_a_jobs_own_content_makes_its_records_useless(name: str, useless: set[str]) -> None:
    old, new, _ = CONTENT[name]
    before = {spec.name: spec.content_hash for spec in made(real()).jobs}
    after = {spec.name: spec.content_hash for spec in made(parse(changed(old, new).encode())).jobs}
    assert {job for job in before if before[job] != after[job]} == useless


def test_the_same_config_gives_the_same_plan_and_the_agent_finds_no_fault_in_it() -> None:
    from pipeline.agent.rules.planning import faults

    assert made(real()) == made(real())
    for config in (real(), demo()):
        assert faults(made(config)) == []


def test_every_key_says_what_changing_it_does() -> None:
    homes = [home for home, _ in sections()]
    assert len(homes) > 30
    for home, section in sections():
        for field in dataclasses.fields(section):
            is_section = any(name.startswith(f"{home}.{field.name}") for name in homes)
            assert is_section or class_of(field) in ("content", "run", "live"), f"{home}.{field.name}"


def test_the_description_is_the_run_in_numbers() -> None:
    config = real()
    text = plan.describe(config, made(config))
    for part in (
        "88,088 samples",
        "57,344 bytes a token",
        "5.1 TB",
        "1.06 B parameters",
        "2 TB for hidden states, rolling",
        "844 GB for the 11 jobs that start at once",
        "serve:baseline ready",
        "(!) A2: public source not confirmed",
        "not run by this release: extract, train, export, bench",
    ):
        assert part in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_whom_to_tell_travels_as_names_and_changes_no_job() -> None:
    text = changed('webhook = ""', 'webhook = "HOOK"').replace('heartbeat = ""', 'heartbeat = "BEAT"')
    config = parse(text.encode())
    told, silent = made(config), made(real())
    assert told.notify == Notify("HOOK", "BEAT") and silent.notify == Notify()
    assert told.jobs == silent.jobs
    words = plan.describe(config, told)
    assert "notify   webhook by HOOK, heartbeat by BEAT" in words and "notify " not in plan.describe(real(), silent)


def test_the_demos_config_is_the_same_run_at_its_size() -> None:
    config = demo()
    assert list(config.datasets) == list(SOURCES)
    assert {dataset.take for dataset in config.datasets.values()} == {24}
    assert config.serve.engine == "reference"
    assert config.environment.variables == {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    partitions = config.generate.partitions
    assert (partitions["short"].concurrency, partitions["short"].max_new_tokens) == (8, 48)
    assert (partitions["long"].concurrency, partitions["long"].max_new_tokens) == (2, 96)
    assert {partition.temperature for partition in partitions.values()} == {0.7}
    assert [spec.name for spec in made(config).jobs] == [*PREPS, "dedup", "serve:baseline", "generate", "merge"]
    server = job(config, "serve:baseline")
    assert server.readiness is not None
    assert server.readiness.url == "http://127.0.0.1:30123"
    assert server.resources.memory == 2_500_000_000


def test_the_reference_server_accepts_the_demos_flags() -> None:
    from pipeline.demo.server import build_parser
    from pipeline.serve.__main__ import options_of
    from pipeline.serve.command import server_argv

    command = server_argv(options_of(parsed(job(demo(), "serve:baseline"))))
    arguments = build_parser().parse_args(command[3:])
    assert (arguments.max_running_requests, arguments.context_length) == (10, 2048)
    assert arguments.port == 30_123


def test_paths_with_odd_characters_reach_the_config_whole() -> None:
    odd = '/tmp/a "b" \\c \té'
    config = parse(demo_text(model_dir=odd.replace("\t", " "), known_hosts="/k'n").encode())
    assert config.target.path == odd.replace("\t", " ")
    assert config.host.known_hosts == "/k'n"
    text = demo_text(workdir="/a\tb")
    with pytest.raises(Exception, match=rf"config.toml:{line_of('workdir', text)}: host.workdir: .*absolute path"):
        parse(text.encode())


def test_a_small_demo_is_sound_too() -> None:
    for size in (2, 4, 200):
        assert made(parse(demo_text(size=size).encode())).jobs


def test_text_of_the_real_config_is_commented() -> None:
    lines = TEXT.splitlines()
    assert sum("#" in line for line in lines) > 80


def test_a_second_server_takes_a_line_and_keeps_all_answers() -> None:
    one = parse(changed('servers = ["baseline"]', 'servers = ["baseline"]').encode())
    two = parse(changed('servers = ["baseline"]', 'servers = ["baseline", "http://gpu-4:30000"]').encode())
    assert parsed(job(two, "generate")).server == ["http://127.0.0.1:30000", "http://gpu-4:30000"]
    for name in ("generate", "merge", "serve:baseline"):
        assert job(one, name).content_hash == job(two, name).content_hash
        assert job(one, name).inputs_hash == job(two, name).inputs_hash


def test_the_router_is_a_job_between_generate_and_the_servers() -> None:
    from pipeline.serve.router import build_parser, options_of, refusals

    router = '[serve.router]\nworkers = ["baseline", "http://gpu-4:30000"]\n\n[generate]\n'
    text = changed('servers = ["baseline"]', 'servers = ["router"]').replace("[generate]\n", router)
    config = parse(text.encode())
    spec = job(config, "serve:router")
    assert spec.argv[1:3] == ("-m", "pipeline.serve.router")
    options = options_of(build_parser().parse_args(spec.argv[3:]))
    assert refusals(options) == []
    assert options.workers == ("http://127.0.0.1:30000", "http://gpu-4:30000")
    assert spec.service and spec.readiness is not None
    assert spec.readiness.url == "http://127.0.0.1:30002"
    generate = job(config, "generate")
    assert parsed(generate).server == ["http://127.0.0.1:30002"]
    assert [(need.job, need.condition) for need in generate.needs if need.condition == "ready"] == [
        ("serve:router", "ready")
    ]
    assert "serve:baseline" in [one.name for one in made(config).jobs]


def test_overlap_and_adaptive_reach_generate() -> None:
    text = changed("overlap = false", "overlap = true").replace("adaptive = 0", "adaptive = 32")
    arguments = parsed(job(parse(text.encode()), "generate"))
    assert (arguments.overlap, arguments.adaptive) == (True, 32)
