"""SGLang's router: its command line for bulk generation, and what it is not started with."""

from __future__ import annotations

import sys

import pytest

from pipeline.serve.router import RouterOptions, build_parser, main, options_of, refusals, router_argv

WORKERS = ("http://127.0.0.1:30000", "http://gpu-4:30000")


def test_the_command_line() -> None:
    words = router_argv(RouterOptions(WORKERS, python="py"))
    assert words[:6] == ["py", "-m", "sglang_router.launch_router", "--worker-urls", *WORKERS]
    assert words[6] == "--host"
    assert "--disable-retries" in words, "a retry would run a prompt twice"

    def value(flag: str) -> str:
        return words[words.index(flag) + 1]

    assert int(value("--health-check-timeout-secs")) > 20
    assert int(value("--request-timeout-secs")) >= 6 * 3600
    assert int(value("--queue-timeout-secs")) >= 6 * 3600
    assert (value("--port"), value("--prometheus-port")) == ("30002", "30003")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "name at least one"),
        (["--worker", "gpu-4:30000"], "expected http://HOST:PORT"),
        (["--worker", "http://a:1", "--worker", "http://a:1/"], "given twice"),
        (["--worker", "http://127.0.0.1:30002"], "is the router itself"),
        (["--worker", "http://a:1", "--health-timeout", "20"], "takes up to 20 s"),
        (["--worker", "http://a:1", "--metrics-port", "30002"], "is --port too"),
    ],
)
def test_refused(more: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in " ".join(refusals(options_of(build_parser().parse_args(more))))
    assert main(more) == 4
    assert says in capsys.readouterr().err


def test_print_and_a_python_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--worker", WORKERS[0], "--print"]) == 0
    assert capsys.readouterr().out.startswith(f"{sys.executable} -m sglang_router.launch_router")
    assert main(["--worker", WORKERS[0], "--python", "/nowhere/python"]) == 127
