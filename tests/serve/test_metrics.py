"""SGLang's /metrics text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.serve.metrics import ServerFigures, parse

REAL = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="/models/Kimi \\"K2\\"",pp_rank="0",tp_rank="0"} 150.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 12.0
sglang:gen_throughput{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 828.25
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.71
sglang:spec_accept_length{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2.1
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="m"} 1.2345e+06
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 3.0
python_gc_objects_collected_total{generation="0"} 1000.0
"""


def test_a_real_body() -> None:
    work = (("num_running_reqs", 150.0), ("token_usage", 0.71), ("gen_throughput", 828.25))
    assert parse(REAL) == ServerFigures(
        running=150,
        queued=12,
        kv_use=0.71,
        tok_s=828.25,
        accept_length=2.1,
        generated_tokens=1234500,
        work=(*work, ("generation_tokens_total", 1234500.0)),
    )


def test_accept_length_zero_is_no_speculation() -> None:
    assert parse("sglang:spec_accept_length 0.0\n").accept_length is None


def test_data_parallel_ranks_add_up_and_tensor_parallel_ones_do_not() -> None:
    lines = [
        f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}"}} {10 + dp}' for dp in range(2) for tp in range(4)
    ]
    lines += [f'sglang:token_usage{{dp_rank="{dp}",tp_rank="0"}} 0.{dp + 3}' for dp in range(2)]
    figures = parse("\n".join(lines))
    assert figures.running == 21
    assert figures.kv_use == 0.4


def test_underscore_names_and_time_stamps() -> None:
    assert parse('sglang_num_running_reqs{a="b"} 3 1712345678000\n').running == 3


def test_nothing_known() -> None:
    assert parse("") == ServerFigures()
    assert parse("sglang:gen_throughput NaN\nsglang:num_running_reqs +Inf\n") == ServerFigures()


@given(st.text(), st.lists(st.sampled_from(REAL.splitlines())))
def test_any_text_is_read_without_an_error(text: str, lines: list[str]) -> None:
    parse("\n".join([text, *lines, text, "sglang:" + text]))
