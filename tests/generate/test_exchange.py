"""What a server says of an error, as far as it is told to anybody."""

from __future__ import annotations

import email.utils
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.generate.exchange import WAIT_MOST_S, message_of, seconds_of


def test_retry_after() -> None:
    assert seconds_of("7") == 7.0
    assert seconds_of("1e9") == WAIT_MOST_S
    assert seconds_of("") == seconds_of("-3") == seconds_of("nan") == seconds_of("inf") == seconds_of("soon") == 0.0
    assert seconds_of(email.utils.formatdate(time.time() + 100, usegmt=True)) == pytest.approx(100, abs=10)
    assert seconds_of(email.utils.formatdate(time.time() - 100, usegmt=True)) == 0.0


@given(st.text())
def test_any_retry_after_is_a_wait(text: str) -> None:
    assert 0.0 <= seconds_of(text) <= WAIT_MOST_S


def test_the_text_of_an_error() -> None:
    assert message_of(b'{"error": {"message": "too\\nlong"}}') == "too long"
    assert message_of(b'{"detail": "no"}') == message_of(b'{"message": "no"}') == "no"
    assert message_of(b"<html>\x1b[31mGateway</html>") == "<html>?[31mGateway</html>"
    assert message_of(b"") == message_of(b"{}") == message_of(b"null") == ""
    assert message_of(b"[" * 100_000).startswith("[[[")


@given(
    st.binary()
    | st.recursive(
        st.text() | st.none(), lambda x: st.dictionaries(st.sampled_from(["error", "message", "detail"]), x)
    ).map(lambda x: json.dumps(x).encode())
)
def test_any_body_gives_one_short_line(body: bytes) -> None:
    text = message_of(body)
    assert len(text) <= 300 and text.isprintable() and "\n" not in text
