"""Broken configs: each error names the line, the key, what was given, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from console.config import ConfigErrors, load
from tests.config.sources import changed, errors_of, line_of


class Broken(NamedTuple):
    name: str
    old: str  # in the real config
    new: str  # stands there instead
    at: str  # the error's line begins with this
    key: str
    says: tuple[str, ...]  # in the message
    also: tuple[str, str] = ("", "")  # replaced as well, so that the error arises


CASES = [
    Broken("unknown key", 'shape = "conversations"', 'shap = "conversations"', "shap =", "datasets.B5.shap",
           ("unknown key", 'did you mean "shape"?', "allowed: kind, source,")),
    Broken("unknown section", "[merge]", "[merg]", "[merg]", "merg", ("unknown key", 'did you mean "merge"?')),
    Broken("key of another section", "pilot = 100", "ttt_steps = 100", "ttt_steps = 100", "generate.ttt_steps",
           ("it belongs in [train]",)),
    Broken("dashes instead of underscores", "heldout_share = 0.02", "heldout-share = 0.02", "heldout-share",
           "prep.heldout-share", ('did you mean "heldout_share"?',)),
    Broken("missing key", 'source = "nvidia/OpenCodeInstruct"\n', "", "[datasets.B2]", "datasets.B2",
           ('"source" is missing', "add it")),
    Broken("text for a number", "take = 15000", 'take = "many"', 'take = "many"', "datasets.B2.take",
           ('given "many"', "a whole number at least 1")),
    Broken("number for text", 'shape = "trajectory"', "shape = 3", "shape = 3", "datasets.B8.shape",
           ("given 3", '"trajectory"')),
    Broken("truth for a number", "hidden_size = 7168", "hidden_size = true", "hidden_size = true", "target.hidden_size",
           ("given true", "a whole number")),
    Broken("wrong choice", 'kind = "answers"', 'kind = "answer"', 'kind = "answer"', "datasets.A1.kind",
           ('did you mean "answers"?', '"answers", "prompts"')),
    Broken("out of range", "temperature = 1.0", "temperature = -1.0", "temperature = -1.0",
           "generate.partitions.short.temperature", ("given -1.0", "at least 0 and at most 10")),
    Broken("not a number", "top_p = 0.95", "top_p = nan", "top_p = nan", "generate.partitions.short.top_p",
           ("above 0 and at most 1",)),
    Broken("wrong size", 'memory = "960 GB"', 'memory = "960 gigs"', 'memory = "960 gigs"', "resources.memory",
           ('given "960 gigs"', '"92 GB"')),
    Broken("wrong duration", 'start = "1 h"', 'start = "1 hour"', "start =", "serve.readiness.start",
           ('given "1 hour"', '"10 m"')),
    Broken("a window that restarts after stalls never fill", 'stall = "15 m"                        # a slow',
           'on_stall = "restart"\nstall = "15 m"  # a slow', 'window = "10 m"', "policy.prep.window",
           ("would never have 5 restarts in it", "4500 s")),
    Broken("value for a section", "[bench]\n", "[bench]\nprompts = {}\n#", "prompts = {}", "bench.prompts",
           ("given {}", "a whole number")),
    Broken("relative workdir", 'workdir = "/data/draftdeck"', 'workdir = "draftdeck"', "workdir", "host.workdir",
           ('given "draftdeck"', "absolute path")),
    Broken("value like an option", 'source = "nvidia/OpenCodeInstruct"', 'source = "--take"', 'source = "--take"',
           "datasets.B2.source", ("without a dash in front",)),
    Broken("dataset name", "[datasets.B7]", '[datasets."B 7"]', '[datasets."B 7"]', 'datasets."B 7"',
           ('the name "B 7"', "a letter, then letters")),
    Broken("no such partition", 'partition = "long"', 'partition = "lng"', 'partition = "lng"', "datasets.B8.partition",
           ('no partition is called "lng"', 'did you mean "long"?', "short, long")),
    Broken("no partition", 'partition = "long"\n', "", "[datasets.B8]", "datasets.B8",
           ('"partition" is missing', "short, long")),
    Broken("partition of an answers set", "take = 2800", 'take = 2800\npartition = "short"', 'partition = "short"',
           "datasets.A1.partition", ("leave it out",)),
    Broken("training turns of a prompts set", 'partition = "long"', 'train_turns = "assistant"\npartition = "long"',
           'train_turns = "assistant"\npartition', "datasets.B8.train_turns", ("leave it out",)),
    Broken("over the context, of a prompts set", 'partition = "long"', 'over_context = "cut"\npartition = "long"',
           'over_context = "cut"\npartition', "datasets.B8.over_context", ("leave it out",)),
    Broken("no such server", 'servers = ["baseline"]', 'servers = ["base-line"]', 'servers = ["b',
           "generate.servers[0]",
           ('did you mean "baseline"?', "http://gpu-4:30000")),
    Broken("answers by the draft", 'servers = ["baseline"]', 'servers = ["draft"]', 'servers = ["d',
           "generate.servers[0]",
           ("only after training", 'write "baseline"')),
    Broken("no servers", 'servers = ["baseline"]', "servers = []", "servers = []",
           "generate.servers", ("no server is named", '["baseline"]')),
    Broken("more slots in all than the server has", "side_by_side = false", "side_by_side = true", "side_by_side = t",
           "generate.side_by_side", ("together run 182", "max-running-requests to 182"),
           ("max-running-requests = 192", "max-running-requests = 180")),
    Broken("server twice", 'servers = ["baseline"]', 'servers = ["baseline",\n  "baseline"]', '  "baseline"]',
           "generate.servers[1]", ("named twice",)),
    Broken("same port twice", "port = 30001", "port = 30000", "port = 30000\nalgorithm", "serve.draft.port",
           ("port 30000 is taken by serve.baseline.port",)),
    Broken("EAGLE with an EAGLE-3 draft", 'algorithm = "EAGLE3"', 'algorithm = "EAGLE"', 'algorithm = "EAGLE"',
           "serve.draft.algorithm", ("without an error", "accept length 1.0", "replaces the trained draft head",
                                     'write algorithm = "EAGLE3"')),
    Broken("NEXTN with an EAGLE-3 draft", 'algorithm = "EAGLE3"', 'algorithm = "NEXTN"', 'algorithm = "NEXTN"',
           "serve.draft.algorithm", ("accept length 1.0", 'write algorithm = "EAGLE3"')),
    Broken("EAGLE3 without a draft", 'path = "models/kimi-k2.5-eagle3"', 'path = ""', 'algorithm = "EAGLE3"',
           "serve.draft.algorithm", ("without draft.path", "set draft.path")),
    Broken("EAGLE3 with another kind of draft", 'architecture = "LlamaForCausalLMEagle3"',
           'architecture = "LlamaForCausalLMEagle"', 'algorithm = "EAGLE3"', "serve.draft.algorithm",
           ("no EAGLE-3 draft", "set draft.architecture")),
    Broken("chain of the wrong length", "draft_tokens = 4  ", "draft_tokens = 3  ", "draft_tokens = 3",
           "serve.draft.draft_tokens", ("topk 1", "set draft_tokens = 4")),
    Broken("chain of the wrong length in the grid", "steps = 5, topk = 1, draft_tokens = 6",
           "steps = 5, topk = 1, draft_tokens = 5", "  { steps = 5, topk = 1", "bench.grid[1].draft_tokens",
           ("set draft_tokens = 6",)),
    Broken("aux layer beyond the target", "aux_layers = [2, 30, 58]", "aux_layers = [2, 30, 61]", "aux_layers",
           "draft.aux_layers[2]", ("a target with 61 layers", "0 to 60")),
    Broken("too few aux layers", "aux_layers = [2, 30, 58]", "aux_layers = [2, 58]", "aux_layers", "draft.aux_layers",
           ("2 layers given", "exactly 3")),
    Broken("aux layers out of order", "aux_layers = [2, 30, 58]", "aux_layers = [30, 2, 58]", "aux_layers",
           "draft.aux_layers", ("rising",)),
    Broken("draft vocabulary too large", "draft_vocab_size = 32000", "draft_vocab_size = 200000", "draft_vocab_size",
           "draft.draft_vocab_size", ("at most target.vocab_size, 163840",)),
    Broken("answer as long as the context", "max_new_tokens = 16384", "max_new_tokens = 65536", "max_new_tokens = 6",
           "generate.partitions.long.max_new_tokens", ("no room for a prompt", "less than 65536")),
    Broken("more slots than the server has", "concurrency = 150", "concurrency = 300", "concurrency = 300",
           "generate.partitions.short.concurrency", ("max-running-requests", "at most 192")),
    Broken("flag that has a key", "tp-size = 8\n", "tp-size = 8\nport = 30005\n", "port = 30005", "serve.flags.port",
           ("serve.baseline.port", "take it out")),
    Broken("speculation as a flag", "tp-size = 8\n", 'tp-size = 8\nspeculative-algo = "EAGLE"\n', "speculative-algo",
           "serve.flags.speculative-algo", ("serve.draft.algorithm", "contradict")),
    Broken("flag under two names", "tp-size = 8\n", "tp-size = 8\ntp = 4\n", "tp = 4", "serve.flags.tp",
           ("given as tp-size already", "write tp-size alone")),
    Broken("flag with its dashes", "tp-size = 8\n", "--tp-size = 8\n", "--tp-size", "serve.flags.--tp-size",
           ("without its dashes",)),
    Broken("more GPUs than set aside", "tp-size = 8\n", "tp-size = 16\n", "tp-size = 16", "serve.flags.tp-size",
           ("takes 16 GPUs", "set resources.serve.gpus = 16")),
    Broken("no metrics", "enable-metrics = true", "enable-metrics = false", "enable-metrics = false",
           "serve.flags.enable-metrics", ("set serve.flags.enable-metrics = true",)),
    Broken("remote code of a moving branch", 'path = "/models/Kimi-K2.5"', 'path = ""', 'revision = "main"',
           "target.revision", ("branch that moves", "40 hexadecimal digits"),
           ("4d01dfe0332d63057c186e0b262165819efb6611", "main")),
    Broken("stop id outside the vocabulary", "stop_ids = [163586, 163585]", "stop_ids = [\n  163586,\n  163840]",
           "  163840]", "target.stop_ids[1]", ("not in the vocabulary", "0 to 163839")),
    Broken("end of thinking outside the vocabulary", "thinking_end_id = 163607", "thinking_end_id = 163840",
           "thinking_end_id", "target.thinking_end_id", ("not in the vocabulary", "0 to 163839")),
    Broken("a fault that does not exist", 'retry = ["aborted", "empty"]', 'retry = ["aborted", "emty"]', "retry =",
           "generate.faulty.retry[1]", ("did you mean", '"empty"')),
    Broken("a fault in both lists", "set_aside = []", 'set_aside = ["truncated", "empty"]', "set_aside = [",
           "generate.faulty.set_aside[1]", ("in retry too", "in one of the two")),
    Broken("a fault that cannot be found", "thinking_end_id = 163607", "# none", "set_aside = [",
           "generate.faulty.set_aside[0]", ("never found", "set target.thinking_end_id"),
           ("set_aside = []", 'set_aside = ["thinking not ended"]')),
    Broken("no crash makes a suspect", "suspect_after = 3", "suspect_after = 0", "suspect_after",
           "generate.suspect_after", ("at least 1",)),
    Broken("a share of more than all", "max_set_aside_share = 0.5", "max_set_aside_share = 50", "max_set_aside_share",
           "generate.max_set_aside_share", ("1",)),
    Broken("memory never to be had", 'memory = "24 GB"', 'memory = "1 TB"', 'memory = "1 TB"', "datasets.B2.memory",
           ("wait for ever", "at most 912 GB")),
    Broken("generate does not fit beside the server", '[resources.generate]\nmemory = "2 GB"',
           '[resources.generate]\nmemory = "300 GB"', 'memory = "300 GB"', "resources.generate.memory",
           ("beside the server", "912 GB")),
    Broken("GPUs never to be had", "gpus = 8\n\n[resources.export]", "gpus = 16\n\n[resources.export]", "gpus = 1",
           "resources.train.gpus", ("at most resources.gpus, 8",)),
    Broken("no such job", "needs = []  ", 'needs = ["prep:B9"]  ', 'needs = ["prep:B9"]', "serve.baseline.needs[0]",
           ('no job is called "prep:B9"', "did you mean")),
    Broken("cycle", "needs = []  ", 'needs = ["merge"]  ', 'needs = ["merge"]', "serve.baseline.needs",
           ("wait for each other", "serve:baseline → merge → generate → serve:baseline")),
    Broken("secret in the config", 'HF_HOME = "/data/huggingface"', 'HF_TOKEN = "hf_abc"', 'HF_TOKEN = "hf_abc"',
           "environment.variables.HF_TOKEN", ("keep it in environment.secrets",)),
    Broken("another secret in the config", 'HF_HOME = "/data/huggingface"', 'WANDB_API_KEY = "abc"', "WANDB_API_KEY",
           "environment.variables.WANDB_API_KEY", ("draftdeck secret set WANDB_API_KEY",)),
    Broken("URL for a secret's name", 'webhook = ""', 'webhook = "https://ntfy.sh/x"', "webhook", "notify.webhook",
           ("the name of a secret", "draftdeck secret set")),
    Broken("webhook as heartbeat", 'webhook = ""', 'webhook = "HOOK"', 'heartbeat = "HOOK"', "notify.heartbeat",
           ("holds the webhook's URL", "name another secret"), ('heartbeat = ""', 'heartbeat = "HOOK"')),
    Broken("no such service", 'format = "auto"', 'format = "slak"', 'format = "slak"', "notify.format",
           ("did you mean", '"slack"')),
    Broken("shard beyond the budget", 'shard_size = "4 GB"', 'shard_size = "4 TB"', "shard_size", "extract.shard_size",
           ("at most extract.disk_budget, 2 TB",)),
    Broken("a log too short to tell anything", 'log = "2 GB"', 'log = "2 kB"', 'log = "2 kB"', "disk.log",
           ("at least 1 MB",)),
    Broken("back-off shorter than its start", 'backoff = "5 s"', 'backoff = "5 s"\nbackoff_max = "1 s"', "backoff_max",
           "policy.serve.backoff_max", ("at least policy.serve.backoff",)),
    Broken("quotes not closed", 'name = "kimi-k2.5-eagle3"', 'name = "kimi-k2.5-eagle3', "name =", "",
           ("no valid TOML",)),
    Broken("value without quotes", 'engine = "sglang"', "engine = sglang", "engine = sglang", "",
           ("no valid TOML", "text needs quotes")),
    Broken("key twice", "pilot = 100", "pilot = 100\npilot = 50", "pilot = 50", "", ("no valid TOML", "keep one")),
    Broken("section twice", "[notify]", "[merge]\n[notify]", "[merge]\n[notify]", "", ("no valid TOML", "keep one")),
]  # fmt: skip


def test_there_are_cases_enough() -> None:
    assert len(CASES) >= 20
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_broken_config_names_line_and_remedy(case: Broken) -> None:
    text = changed(case.old, case.new)
    if case.also[0]:
        text = changed(*case.also, text)
    errors = errors_of(text)
    found = [error for error in errors if error.key == case.key]
    assert found, f"no error for {case.key!r}: {[str(error) for error in errors]}"
    error = found[0]
    assert error.line == line_of(case.at, text), str(error)
    assert str(error).startswith(f"config.toml:{error.line}: ")
    for part in case.says:
        assert part in str(error)
    assert error.hint or error.allowed, "an error has to say what to do"
    assert all(letter.isprintable() for letter in str(error))
    assert len(found) == len(set(found)), "said twice"


def test_all_errors_are_found_at_once_in_the_order_of_their_lines() -> None:
    text = changed("take = 20000", 'take = "a"')
    text = changed("hidden_size = 7168", "hidden_sise = 7168", text)
    text = changed('restart = "always"', 'restart = "sometimes"', text)
    errors = errors_of(text)
    assert [error.key for error in errors] == [
        "target",
        "target.hidden_sise",
        "datasets.B1.take",
        "policy.serve.restart",
    ]
    assert [error.line for error in errors] == sorted(error.line for error in errors)


def test_an_empty_file_names_every_section_that_has_to_be_there() -> None:
    errors = errors_of("")
    assert {error.found for error in errors} == {
        f'section "{name}" is missing' for name in ("run", "host", "target", "draft", "datasets", "generate")
    }


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(tmp_path / "none.toml")
    assert "none.toml: cannot be read: No such file or directory" in str(caught.value)


def test_a_file_that_is_not_text() -> None:
    error = errors_of(b"[run]\nname = '\xff'\n")[0]
    assert (error.line, error.found) == (2, "byte 0xff is not UTF-8")


def test_a_huge_file() -> None:
    assert "larger than 4 MiB" in str(errors_of(b"#" * 2**23)[0])


def test_numbers_without_end_and_deep_nesting_are_refused_with_a_reason() -> None:
    assert errors_of(changed("take = 20000", f"take = {'9' * 5000}"))
    assert errors_of(changed("take = 20000", f"take = {'9' * 400}"))[0].key == "datasets.B1.take"
    assert errors_of(changed("step_decay = 0.8", f"step_decay = {'9' * 400}"))[0].key == "train.step_decay"
    assert errors_of("a = " + "[" * 100_000)


def test_given_values_cannot_write_to_the_terminal() -> None:
    error = errors_of(changed('shape = "dialogue"', 'shape = "\\u001b[2J\\u202e evil"'))[0]
    assert "\x1b" not in str(error)
    assert all(letter.isprintable() for letter in str(error))
