"""A terminal that is sent only the changes looks like one that is sent everything."""

from __future__ import annotations

import string

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_panel.terminal.cells import Picture, blank
from gpu_panel.terminal.frame import Pen, between
from gpu_panel.terminal.style import change, parse

from .kit import Emulator

WIDTH, HEIGHT = 24, 5
colours = st.sampled_from(["38;2;9;8;7", "38;2;200;0;1", "38;5;9", "31", "97", "39"])
backs = st.sampled_from(["48;2;1;2;3", "48;5;200", "44", "103", "49"])
marks = st.lists(st.sampled_from(["1", "3", "4", "7", "9"]), unique=True, max_size=3)
styles = st.builds(lambda m, f, b: ";".join([*m, *f, *b]), marks,
                   st.lists(colours, max_size=1), st.lists(backs, max_size=1))
texts = st.text(st.sampled_from([*string.ascii_letters[:8], " ", " ", "─", "⣿", "▁", "日"]),
                min_size=1, max_size=WIDTH)
spans = st.tuples(st.integers(0, HEIGHT - 1), st.integers(0, WIDTH - 1),
                  st.lists(st.tuples(styles, texts), min_size=1, max_size=3))
frames = st.lists(st.lists(spans, max_size=6), min_size=1, max_size=6)


def drawn(spans: list[tuple[int, int, list[tuple[str, str]]]]) -> str:
    """What Textual writes for these parts of the screen, each cut at the screen's edge."""
    out = []
    for row, column, parts in spans:
        out.append(f"\x1b[{row + 1};{column + 1}H")
        for style, text in parts:
            room, kept = WIDTH - column, ""
            for c in text:
                size = 2 if c == "日" else 1
                if size > room:
                    break
                kept, room, column = kept + c, room - size, column + size
            out.append(f"\x1b[{style}m{kept}\x1b[0m" if style else kept)
    return "".join(out)


@settings(max_examples=150, deadline=None)
@given(frames, st.one_of(st.none(), st.integers(1, 60)))
def test_the_changes_make_the_same_picture(frames, limit):
    whole, quiet = Emulator((WIDTH, HEIGHT)), Emulator((WIDTH, HEIGHT))
    picture = Picture(WIDTH, HEIGHT)
    shown, pen = [blank(WIDTH) for _ in range(HEIGHT)], Pen()
    # As at the start of the panel, where every cell is drawn once: wide characters that are half
    # overwritten look different from terminal to terminal.
    first = "".join(f"\x1b[{row + 1};1H{' ' * WIDTH}" for row in range(HEIGHT))
    for text in (first, *map(drawn, frames)):
        whole.feed(text)
        assert picture.draw(text) == []
        if limit is None:
            sent, done = between(shown, picture, picture.newest_first(), pen)
            quiet.feed(sent)
            for row in done:
                del picture.drawn[row]
    while picture.drawn:
        sent, done = between(shown, picture, picture.newest_first(), pen, limit)
        assert done
        quiet.feed(sent)
        for row in done:
            del picture.drawn[row]
    assert between(shown, picture, range(HEIGHT), pen) == ("", list(range(HEIGHT)))
    # Of a wide character that was half overwritten a hole remains, of which only we know.
    known = [[c is not None and c[0] != "" for c in row] for row in picture.rows]
    for ours, theirs, ks in zip(quiet.cells(), whole.cells(), known, strict=True):
        assert [c for c, k in zip(ours, ks, strict=True) if k] == \
            [c for c, k in zip(theirs, ks, strict=True) if k]


@settings(max_examples=200, deadline=None)
@given(styles, styles)
def test_a_change_of_style_is_that_style_and_never_longer_than_anew(before, after):
    anew, changed = Emulator((2, 1)), Emulator((2, 1))
    anew.feed(f"\x1b[0;{after}mx" if after else "\x1b[mx")
    changed.feed((f"\x1b[0;{before}m" if before else "") + change(before, after) + "x")
    assert changed.cells() == anew.cells()
    assert len(change(before, after)) <= len(f"\x1b[0;{after}m")


def test_bold_and_dim_are_turned_off_together():
    assert change("1;2", "1") in ("\x1b[22;1m", "\x1b[0;1m")
    assert change("4;21", "21") in ("\x1b[24;21m", "\x1b[0;21m")


def test_styles_are_taken_apart():
    assert parse("1;38;2;1;2;3;4;48;5;7") == (frozenset("14"), "38;2;1;2;3", "48;5;7")
    assert parse("31;39;100;49") == (frozenset(), "", "")
    assert parse("") == (frozenset(), "", "")


def test_one_changed_cell_costs_a_move_and_a_character():
    picture = Picture(80, 24)
    row = "\x1b[5;1H" + "".join(f"\x1b[38;2;1;2;{n}mabcdefgh\x1b[0m" for n in range(10))
    picture.draw(row)
    shown, pen = [blank(80) for _ in range(24)], Pen()
    between(shown, picture, [4], pen)
    picture.draw(row.replace("5mabcdefgh", "5mabcXefgh"))
    assert between(shown, picture, [4], pen)[0] == "\x1b[5;44H\x1b[38;2;1;2;5mX"


def test_cells_that_have_not_changed_are_passed_over():
    picture = Picture(40, 1)
    picture.draw(f"\x1b[1;1H{'a' * 40}")
    shown, pen = [blank(40)], Pen()
    between(shown, picture, [0], pen)
    picture.draw(f"\x1b[1;1H{'a' * 3}b{'a' * 3}b{'a' * 20}c{'a' * 11}")
    assert between(shown, picture, [0], pen)[0] == "\x1b[1;4Hbaaab\x1b[20Cc"


def test_a_wide_character_is_sent_whole_and_what_follows_is_placed_anew():
    picture = Picture(10, 1)
    shown, pen = [blank(10)], Pen()
    picture.draw("\x1b[1;1H日\x1b[31mx\x1b[0m")
    assert between(shown, picture, [0], pen)[0] == "\x1b[1H\x1b[m日\x1b[1;3H\x1b[31mx"
    shown[0][1] = None  # only its right half is not as it should be
    assert between(shown, picture, [0], pen)[0] == "\x1b[1H\x1b[m日"


def test_cells_of_one_style_are_sent_together():
    picture = Picture(40, 3)
    shown, pen = [[(" ", "")] * 40 for _ in range(3)], Pen()
    picture.draw("".join(f"\x1b[{r};3H\x1b[31mr\x1b[0m\x1b[{r};9H\x1b[32mg\x1b[0m"
                         for r in (1, 2, 3)))
    sent, _ = between(shown, picture, [0, 1, 2], pen)
    assert sent.count("\x1b[0;31m") == sent.count("\x1b[32m") == 1


def test_what_is_no_drawing_comes_back_as_it_was():
    picture = Picture(10, 2)
    others = ["\x1b[?1049h", "\x1b[>25u", "\x1b]52;c;YWJj\x07", "\x1b[?2026$p", "\x07", "\x1b7"]
    assert picture.draw("\x1b[1;1Hab".join(others)) == others
    assert picture.rows[0][:2] == [("a", ""), ("b", "")]


def test_rows_drawn_since_the_last_action_go_first():
    picture = Picture(10, 4)
    picture.draw("\x1b[1;1Ha\x1b[2;1Hb\x1b[3;1Hc")
    picture.turn += 1
    picture.draw("\x1b[3;1Hd\x1b[4;1He")
    assert picture.newest_first() == [2, 3, 0, 1]
    picture.draw("\x1b[4;1Hf\x1b[1;1Hg")
    assert picture.newest_first() == [2, 3, 0, 1]  # who waits longest keeps its place
