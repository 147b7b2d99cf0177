"""The batched decode loop against transformers' own generate, on a tiny model in float32."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.demo.decode import CHUNK, Decoder, Sequence
from pipeline.demo.packed import pack
from pipeline.demo.sampling import Sampling, choose
from tests.tiny import END, VOCABULARY, make_target

GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def model(tiny_target: Path) -> Any:
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = make_target(tmp_path_factory.mktemp("long") / "m", layers=2, positions=2 * CHUNK + 64)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def alone(model: Any, prompt: list[int], new_tokens: int) -> list[int]:
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=END,
        pad_token_id=END,
    )
    return [int(token) for token in output[0, len(prompt) :]]


def run(decoder: Decoder, waiting: list[Sequence], drop: set[str] | None = None) -> None:
    """Admit one after the other while the earlier ones decode, to the end."""
    waiting = list(waiting)
    for turn in range(10_000):
        if waiting and decoder.can_admit():
            decoder.admit(waiting.pop(0))
        decoder.step()
        if turn == 7 and drop:
            decoder.drop(sorted(drop), "test")
        if not waiting and not decoder.running:
            return
    raise AssertionError("never ended")


def prompts(count: int, longest: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, VOCABULARY) for _ in range(draw.randint(1, longest))] for _ in range(count)]


def test_greedy_batch_equals_generate_token_for_token(model: Any) -> None:
    decoder = Decoder(model, slots=4, capacity=128)
    lengths = [5, 40, 17, 1, 33, 9, 40, 26, 12, 3, 30, 22]
    sequences = [
        Sequence(str(number), prompt, new, frozenset({END}), GREEDY)
        for number, (prompt, new) in enumerate(zip(prompts(12, 60, 1), lengths, strict=True))
    ]
    run(decoder, sequences)
    for one in sequences:
        assert one.output == alone(model, one.prompt, one.max_new_tokens), one.rid
        assert one.finish is not None
        assert one.finish.kind == ("stop" if one.output[-1] == END else "length")
    assert len({tuple(one.output[:5]) for one in sequences}) > 6, "the tiny model says the same to everything"


def test_packed_layers_give_what_plain_ones_do(model: Any) -> None:
    packed = copy.deepcopy(model)
    assert pack(packed, 4)
    assert not any(type(module) is torch.nn.Linear for module in packed.modules())
    with torch.inference_mode():
        for rows, width in ((1, 1), (4, 1), (1, 50), (3, 7)):
            ids = torch.arange(rows * width).view(rows, width) % (VOCABULARY - 3) + 3
            assert torch.allclose(packed(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    sequences = [
        Sequence(str(number), ids, 30, frozenset({END}), GREEDY) for number, ids in enumerate(prompts(6, 60, 1))
    ]
    run(Decoder(packed, slots=4, capacity=128), sequences)
    for one in sequences:
        assert one.output == alone(model, one.prompt, 30), one.rid


def test_a_model_in_half_precision_is_left_as_it_is(model: Any) -> None:
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert not pack(half, 4)
    assert any(type(module) is torch.nn.Linear for module in half.modules())


def test_prompt_longer_than_a_chunk(long_model: Any) -> None:
    decoder = Decoder(long_model, slots=2, capacity=2 * CHUNK + 64)
    sequences = [
        Sequence("short", prompts(1, 20, 3)[0], 60, frozenset({END}), GREEDY),
        Sequence("long", [3 + number % 90 for number in range(2 * CHUNK + 20)], 30, frozenset({END}), GREEDY),
    ]
    run(decoder, sequences)
    for one in sequences:
        assert one.output == alone(long_model, one.prompt, one.max_new_tokens), one.rid


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 25)), min_size=1, max_size=9),
    st.integers(1, 4),
    st.sets(st.integers(0, 8), max_size=3),
)
def test_joining_leaving_and_dropping_change_nobody_elses_answer(
    model: Any, sizes: list[tuple[int, int]], slots: int, dropped: set[int]
) -> None:
    draw = random.Random(5)
    sequences = [
        Sequence(str(number), [draw.randrange(3, VOCABULARY) for _ in range(size)], new, frozenset({END}), GREEDY)
        for number, (size, new) in enumerate(sizes)
    ]
    run(Decoder(model, slots, 80), sequences, {str(number) for number in dropped})
    for one in sequences:
        assert one.finish is not None
        expected = alone(model, one.prompt, one.max_new_tokens)
        if one.finish.kind == "abort":
            assert int(one.rid) in dropped
            assert one.output == expected[: len(one.output)]
        else:
            assert one.output == expected


def test_same_seed_same_answer_whatever_the_company(model: Any) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9, top_k=20)
    one = Sequence("a", [5, 6, 7], 30, frozenset(), sampling, seed=11)
    run(Decoder(model, 1, 80), [one])
    crowd = [Sequence(str(number), [9, number + 3], 30, frozenset(), sampling, seed=number) for number in range(3)]
    again = Sequence("b", [5, 6, 7], 30, frozenset(), sampling, seed=11)
    other = Sequence("c", [5, 6, 7], 30, frozenset(), sampling, seed=12)
    run(Decoder(model, 4, 80), [*crowd, again, other])
    assert again.output == one.output
    assert other.output != one.output


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 3000),
    st.floats(0.05, 1.0),
    st.one_of(st.just(-1), st.integers(1, 50)),
    st.floats(0.2, 3.0),
    st.integers(0, 1000),
)
def test_chosen_token_is_within_top_k_and_top_p(size: int, top_p: float, top_k: int, heat: float, seed: int) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 4
    token = choose(logits, Sampling(heat, top_p, top_k), random.Random(seed))
    probabilities = torch.softmax(logits / heat, dim=-1)
    ranked = torch.argsort(probabilities, descending=True).tolist()
    allowed = ranked if top_k == -1 else ranked[:top_k]
    mass = probabilities[allowed] / probabilities[allowed].sum()
    count = int((mass.cumsum(0) < top_p - 1e-4).sum()) + 1
    # One more than exact: a token on the very edge may fall to either side in float32.
    assert token in allowed[: count + 1]


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    draw = random.Random(1)
    counts = [0, 0, 0, 0]
    for _ in range(4000):
        counts[choose(logits, Sampling(1.0, 0.9, -1), draw)] += 1
    assert counts[3] == 0
    assert abs(counts[0] / 4000 - 0.5 / 0.95) < 0.03
    assert abs(counts[2] / 4000 - 0.15 / 0.95) < 0.03
