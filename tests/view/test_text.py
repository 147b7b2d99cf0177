"""Outside text never reaches the screen as anything but text."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from console.view.text import cells, clean, cut, padded, shown_line

BIDI = "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain", "plain"),
        ("[rank0] CUDA [/tmp/x.log]", "[rank0] CUDA [/tmp/x.log]"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2;0;0;0\x1b\\sixel", "sixel"),
        ("\x9b31mred", "red"),
        ("\x1b[", ""),
        ("unended \x1b]0;title", "unended "),
        ("a\tb\nc", "a b c"),
        ("bell\x07 back\x08space\x00", "bell backspace"),
        ("file\u202egnp.exe", "filegnp.exe"),
        ("zero\u200bwidth", "zerowidth"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        ("tag\U000e0041", "tag"),
        ("Ünïcödé 漢字", "Ünïcödé 漢字"),
    ],
)
def test_clean(given_text: str, shown: str) -> None:
    assert clean(given_text) == shown


@given(st.text(max_size=400))
@example("\x1b" * 40 + "[" * 40)
@example("\x1b\x1b[[3131mm")
def test_clean_leaves_nothing_that_acts(text: str) -> None:
    safe = clean(text)
    assert not [each for each in safe if unicodedata.category(each) in ("Cc", "Cs") or each in BIDI]
    assert "\n" not in safe
    safe.encode()


@given(st.text(max_size=200), st.integers(1, 50))
def test_clean_is_bounded_and_counts(text: str, limit: int) -> None:
    safe = clean(text, limit)
    if len(safe) > limit:
        assert safe.endswith("more characters")
        assert len(safe) <= limit + 40


def test_a_megabyte_is_cut_with_a_count() -> None:
    safe = clean("x" * 1_000_000, 100)
    assert safe == "x" * 100 + " … 999,900 more characters"


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain\n", "plain"),
        (b"windows\r\n", "windows"),
        (b"10 %\r50 %\r97 %", "97 %"),
        (b"10 %\r50 %\r\n", "50 %"),
        (b"bad \xff\xfe bytes", "bad \ufffd\ufffd bytes"),
        (b"\x1b[32mgreen\x1b[0m", "green"),
        (b"", ""),
        (b"\r\r\r", ""),
    ],
)
def test_a_log_line_is_what_a_terminal_would_leave(data: bytes, shown: str) -> None:
    assert shown_line(data) == shown


def test_a_long_log_line_is_cut_with_a_count() -> None:
    assert shown_line(b"y" * 1_048_576, 80) == "y" * 80 + " … 1,048,496 more bytes"


@given(st.binary(max_size=300))
def test_any_bytes_make_one_safe_line(data: bytes) -> None:
    line = shown_line(data)
    assert not [each for each in line if unicodedata.category(each) == "Cc"]


@pytest.mark.parametrize(("width", "shown"), [(10, "abcdef"), (6, "abcdef"), (4, "abc…"), (1, "…"), (0, "")])
def test_cut(width: int, shown: str) -> None:
    assert cut("abcdef", width) == shown


@given(st.text(), st.integers(min_value=0, max_value=40))
def test_cut_text_fits_its_cells(text: str, width: int) -> None:
    assert cells(cut(text, width)) <= width
    assert cells(padded(text, width)) == width


def test_wide_characters_take_two_cells() -> None:
    assert cells("数据集 B5") == 9
    assert cut("数据集 B5", 6) == "数据…"
    assert padded("数据", 6, right=True) == "  数据"
