"""Nothing that a terminal would obey survives `clean`."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.clean import LIMIT, clean, clean_bytes, clean_lines

NASTY = ["\x1b", "\x9b", "\x9d", "\x90", "\x07", "\x1b\\", "\x9c", "\r", "\b", "\n", "\t", "\x00",
         "\x7f", "\u202e", "\u2066", "\u200b", "\u2028", "\ufeff", "\ud800", "[2J", "]52;c;", "]0;",
         "[31m", "P", "_G", "^", "X", "K", "2K", "\x18", "é", "漢", "a\u0301\u0302\u0303\u0304",
         "\ufe0f", "👩\u200d🚀", "[bold]", " ", "x"]
texts = st.one_of(st.text(), st.lists(st.sampled_from(NASTY) | st.text(max_size=3)).map("".join))


def harmful(text: str) -> list[str]:
    return [hex(ord(c)) for c in text
            if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@given(texts)
def test_nothing_harmful_survives(text):
    shown = clean(text)
    assert not harmful(shown)
    assert len(shown) <= LIMIT
    shown.encode()  # no lone surrogate: writing it to a terminal would raise


@given(texts)
def test_cleaning_twice_changes_nothing(text):
    assert clean(clean(text)) == clean(text)


@given(st.binary(max_size=400))
def test_any_bytes(data):
    assert not harmful(clean_bytes(data))


@given(texts, st.integers(0, 20))
def test_the_limit_holds(text, limit):
    assert len(clean(text, limit)) <= max(limit, 1)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_is_left_alone(text):
    assert clean(text) == text


@pytest.mark.parametrize(("given", "shown"), [
    ("\x1b]52;c;aGFjaw==\x07after", "after"),
    ("\x1b]0;title\x1b\\after", "after"),
    ("before\x1b]0;never ended", "before"),
    ("\x9d0;title\x9cafter", "after"),
    ("\x1bPtmux;\x1b\x1b]52;c;eA==\x07\x1b\\after", "after"),
    ("\x1b_Gf=100;AAAA\x1b\\after", "after"),
    ("\x1b^private\x1b\\after\x1bXsos\x1b\\ wards", "after wards"),
    ("\x1b[31mred\x1b[0m \x1b[1;38;2;1;2;3mfat\x1b[m", "red fat"),
    ("\x9b2Jgone", "gone"),
    ("\x1b[2", ""),
    ("\x1b(Bdrawn", "drawn"),
    ("\x1bc reset", " reset"),
    ("a\x1b", "a"),
    ("abc\u202etxt.exe", "abctxt.exe"),
    ("a\tb", "a       b"),
    ("NUL\x00DEL\x7f", "NULDEL"),
    ("one\ntwo\u2028three", "one two three"),
    ("[bold]not markup[/]", "[bold]not markup[/]"),
    ("windows\r", "windows"),
    ("  1%|#   |\r 50%|##  |\r100%|####|", "100%|####|"),
    ("a long first\rshort", "shortg first"),
    ("a long first\r\x1b[Kshort", "short"),
    ("a long first\x1b[2K\rshort", "short"),
    ("12%\b\b\b13%", "13%"),
    ("caf\u00e9 漢字 👍", "café 漢字 👍"),
    ("lone\ud83dhalf", "lonehalf"),
])
def test_cases(given, shown):
    assert clean(given) == shown


def test_invalid_utf8_is_marked():
    assert clean_bytes(b"ok \xff\xfe end") == "ok \ufffd\ufffd end"


def test_a_traceback_keeps_its_lines():
    assert clean_lines("a\n  b\x1b[31m\nc") == ["a", "  b", "c"]
    assert clean_lines("\n".join("abcdef"), lines=2) == ["e", "f"]


@pytest.mark.parametrize("piece", ["\x1b[", "\x1b]", "\r", "\b", "x\r", "\x1b[0;", "\u0301", "\t"])
def test_a_megabyte_takes_no_time(piece):
    text = piece * (1_000_000 // len(piece))
    began = time.process_time()  # of this process: what others take is none of its business
    clean(text)
    assert time.process_time() - began < 3.0
