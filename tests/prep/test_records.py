from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import pytest

from pipeline.prep.records import held_out, normalise, row_id, understand
from pipeline.prep.roles import LABELS, LABELS_COUNTED, OTHER, count_label, printable, role_of, seen
from pipeline.prep.shapes import RowError, Turn
from pipeline.prep.turns import Call

Q, A, S, T = Turn("human", "q"), Turn("gpt", "a"), Turn("system", "s"), Turn("function", "f")


def roles(turns: list[Turn], kind: Literal["answers", "prompts"]) -> list[str]:
    return [message.role for message in normalise(turns, kind)]


def test_labels_in_every_writing() -> None:
    assert role_of(" Human ") == "user"
    assert role_of("FUNCTION RESPONSE") == role_of("function-response") == role_of("function_response") == "tool"
    assert role_of("replier") is None
    assert all(role_of(label) == role for role, labels in LABELS.items() for label in labels)


def test_labels_are_counted_in_bounds_and_known_ones_always() -> None:
    labels: Counter[str] = Counter()
    for number in range(5000):
        count_label(labels, f"speaker {number}")
    count_label(labels, "gpt")
    count_label(labels, "speaker 1")
    assert len(labels) == LABELS_COUNTED + 2
    assert (labels["assistant"], labels["speaker 1"], labels[OTHER]) == (1, 2, 5000 - LABELS_COUNTED)


def test_a_prompt_ends_where_the_target_is_to_write() -> None:
    assert roles([S, Q, A], "prompts") == ["system", "user"]
    assert roles([Q, A, Q, A], "prompts") == ["user", "assistant", "user"]
    assert roles([Q, A, T, A], "prompts") == ["user", "assistant", "tool"]
    assert roles([Q], "prompts") == ["user"]


def test_a_sample_ends_with_what_the_target_wrote() -> None:
    assert roles([S, Q, A, Q], "answers") == ["system", "user", "assistant"]


@pytest.mark.parametrize(
    ("turns", "kind", "reason"),
    [
        ([], "prompts", "no turns"),
        ([Turn("asker", "q")], "prompts", 'unknown role "asker"'),
        ([Turn("a\x1b[31m\nb", "q")], "prompts", 'unknown role "a [31m b"'),
        ([S, A], "prompts", "no user turn"),
        ([Q], "answers", "no assistant turn"),
        ([A, Q, A], "prompts", "begins with an assistant turn"),
        ([A, Q], "answers", "begins with an assistant turn"),
        ([Turn("user", None), A], "prompts", "an empty user turn"),
        ([Q, Turn("ai", " ")], "answers", "an empty assistant turn"),
        ([Turn("user", "\ud800")], "prompts", "undecodable: a lone surrogate in the text"),
    ],
)
def test_unusable_turns_have_a_reason(turns: list[Turn], kind: Literal["answers", "prompts"], reason: str) -> None:
    with pytest.raises(RowError) as error:
        normalise(turns, kind)
    assert str(error.value) == reason


def test_an_empty_system_turn_is_no_turn_and_a_missing_answer_no_harm_to_a_prompt() -> None:
    assert roles([Turn("system", None), Q, Turn("gpt", None)], "prompts") == ["user"]


def conversation(row: dict[str, Any], turns: list[Turn], group: str | None = None) -> Any:
    return understand(row, turns, position=7, kind="prompts", group=group, labels=Counter())


def test_identity_is_the_sources_own_id_and_the_content() -> None:
    one, other = conversation({"id": 12}, [Q]), conversation({"instance_id": "o__r-1\n"}, [Q, A])
    assert (one.row, other.row) == ("12", "o__r-1")
    assert one.hash == other.hash, "the answer is not part of a prompt"
    assert conversation({}, [Q]).row == "7"
    assert conversation({}, [Turn("user", "Q")]).hash != one.hash
    assert row_id({"id": True, "uuid": ""}, 3) == "3"


def test_a_group_is_on_one_side_whatever_the_dataset() -> None:
    assert conversation({"repo": "o/r"}, [Q], "repo").group == "o/r"
    assert conversation({}, [Q]).group == conversation({}, [Q]).hash
    with pytest.raises(RowError, match="no value to group by"):
        conversation({}, [Q], "repo")
    share = sum(held_out(f"group {number}", 0.1) for number in range(10_000)) / 10_000
    assert 0.09 < share < 0.11
    assert not any(held_out(f"group {number}", 0.0) for number in range(1000))


def test_labels_of_others_are_data() -> None:
    assert printable("a\x1b]0;title\x07b\u202e") == "a ]0;title b"
    assert len(printable("x" * 10_000_000)) == 40
    labels = Counter({f"r{number:02}": 20 - number for number in range(14)})
    assert seen(labels).startswith('"r00" 20, "r01" 19') and seen(labels).endswith("and 4 more")


def test_a_turn_of_calls_may_say_nothing_and_a_tool_give_nothing() -> None:
    called = Turn("ai", None, calls=(Call("", "f", "{}"), Call("x", "g", "{}")))
    messages = normalise([Q, called, Turn("tool", None), Turn("tool", "r", call_id="x"), A], "answers")
    assert [call.id for call in messages[1].calls] == ["functions.f:0", "x"]
    assert [message.call_id for message in messages] == ["", "", "functions.f:0", "x", ""]
    assert messages[1].for_template() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "x", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    assert messages[1].for_template(parsed=True)["tool_calls"][0]["function"]["arguments"] == {}


def test_calls_and_tools_are_part_of_the_content() -> None:
    one, other = (Turn("ai", "", calls=(Call("1", "f", arguments),)) for arguments in ('{"a": 1}', '{"a": 2}'))
    assert conversation({}, [Q, one, T]).hash != conversation({}, [Q, other, T]).hash
    tools = [{"name": "f"}]
    declared = conversation({"tools": tools}, [Q])
    assert declared.hash != conversation({}, [Q]).hash
    assert declared.tools == ({"type": "function", "function": {"name": "f"}},)
    with pytest.raises(RowError, match="lone surrogate"):
        conversation({"tools": [{"name": "\ud800"}]}, [Q])
