"""The log pane: following, staying, searching, hostile logs, and the pager."""

from __future__ import annotations

import random
import unicodedata

from gpu_engine.supervisor import logs
from gpu_panel.commands import terminal as lent
from gpu_panel.run import log_file
from gpu_panel.run.log import LogView
from gpu_panel.run.log_file import LogFile

from ..run_kit import SMALL, press, says, screen_text, shown, trained, until, watched

HOSTILE = b"".join([
    b"\x1b]52;c;aGFja2Vk\x07clipboard\n", b"\x1b]0;owned\x1b\\title\n", b"\x1b[2J\x1b[Hcleared\n",
    "\u202etxt.exe\u2066 bidi\n".encode(), b"[bold]markup[/bold] [/] [link=x]\n",
    b"x" * (1 << 20) + b"\n", b"nul\x00\x00byte\n", b"bad utf-8 \xff\xc3\n",
    b"c1 \xc2\x9b31m red\n",
    b"\x1bPqsixel\x1b\\picture\n", b"\x1b]8;;http://evil\x07link\x1b]8;;\x07\n", b"tab\there\n",
    "漢字 and 👩\u200d🚀 and \ufeffbom\n".encode(), b"10%\r50%\r100% done\n",
    b"\x1b]0;never ended\n",
    b"\x1b[31mlast without an end"])


def harmful(text: str) -> list[str]:
    return [hex(ord(c)) for c in text.replace("\n", "")
            if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def test_only_the_last_lines_are_kept_and_the_pager_has_all(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "MOST", 100)
    monkeypatch.setattr(log_file, "_BYTES", 4000)
    path = tmp_path / "a.log"
    log = LogFile("rank 0", path)
    assert (log.read(), log.trouble) == ([], "no output yet")
    path.write_bytes(b"".join(b"line %d\n" % i for i in range(5000)))
    assert log.read() == [f"line {i}" for i in range(4900, 5000)]
    assert log.cut
    with path.open("ab") as file:
        file.write(b"more\nhalf")
    assert (log.read(), log.growing) == (["more"], "half")
    with path.open("ab") as file:
        file.write(b" a line\n")
    assert (log.read(), log.growing) == (["half a line"], "")
    assert [*log.whole([])] == [*(f"line {i}\n" for i in range(5000)), "more\n", "half a line\n"]
    path.write_text("it begins again\n")
    assert log.read() == ["it begins again"]
    path.unlink()
    assert log.read() == []


def test_both_parts_are_one_however_it_grows_and_is_cut(tmp_path):
    path, random_ = tmp_path / "00000.log", random.Random(3)
    path.touch()
    log, count, seen = LogFile("rank 0", path), 0, list[str]()
    for _ in range(60):
        more = random_.randrange(1, 200)
        with path.open("ab") as file:
            file.write(b"".join(b"line %d\n" % i for i in range(count, count + more)))
        count += more
        seen += log.read()
        if path.stat().st_size > 1 << 10 and random_.random() < 0.5:
            assert logs.bound(path, 1 << 10)
            seen += log.read()
    assert [line for line in seen if not line.startswith("---")] == [
        f"line {i}" for i in range(count)]
    anew = LogFile("opened now", path).read()
    assert len(anew) > 100
    assert anew[1:] == seen[1 - len(anew):]


BARS = (" 50%|█████     | 5/10 [00:05<00:05,  1.00it/s, loss=0.3]",
        "Epoch 1:   9%|▉         | 1.2k/13k [01:02:03<?, ?batch/s]", "123it [00:05, 24.5it/s]",
        "eval: 7.00MB [00:01, 4.2MB/s]")


def test_what_follows_a_bar_stands_on_its_own_line(tmp_path):
    path, plain = tmp_path / "a.log", ["[00:05] started", "at 50% | of [10:20] it", "x [1:2, 3]"]
    path.write_text("".join(f"\r{bar}loss [0.3]\n\r{bar}\n" for bar in BARS)
                    + "".join(f"{line}\n" for line in plain))
    assert LogFile("rank 0", path).read() == [
        *(line for bar in BARS for line in (bar, "loss [0.3]", bar)), *plain]


async def test_bars_are_dim(tmp_path):
    run = trained(tmp_path)
    run.log(0, f"{BARS[0]}what it says\n".encode())
    async with watched(run) as (pilot, app):
        await says(pilot, "what it says")
        view = app.run_screen.query_one(LogView)
        strips = [view.render_line(y) for y in range(view.size.height)]
        assert {strip.text.strip() for strip in strips
                if any(s.style and s.style.dim for s in strip)} == {BARS[0].strip()}


async def test_nothing_hostile_reaches_the_terminal(tmp_path):
    run = trained(tmp_path)
    run.log(0, HOSTILE)
    async with watched(run, size=SMALL) as (pilot, app):
        await pilot.press("4", "z")
        await says(pilot, "100% done")
        text = screen_text(app)
        assert not harmful(text)
        assert "[bold]markup[/bold] [/] [link=x]" in text
        assert "last without an end" in text
        assert "owned" not in text
        assert "aGFja2Vk" not in text
        for strip in app.screen._compositor.render_strips():
            assert strip.cell_length == 80


async def test_it_follows_the_end_unless_one_reads_further_up(tmp_path):
    run = trained(tmp_path)
    async with watched(run) as (pilot, app):
        assert "rank 0 says 49" in screen_text(app)
        run.log(0, b"more\n")
        await shown(pilot)
        assert "more" in screen_text(app)
        await pilot.press("4", "g")
        run.log(0, b"even more\n")
        await shown(pilot)
        assert "rank 0 says 0" in screen_text(app)
        assert "more" not in screen_text(app)
        await press(pilot, "G")
        assert "even more" in screen_text(app)


async def test_search_knows_case_goes_round_and_shows_matches_alone(tmp_path):
    run = trained(tmp_path)
    run.run.log(0).write_text("Warning one\n" + "nothing\n" * 40 + "WARNING two\nnothing\n"
                              + "x" * 300 + " warning 3\nlast\n")
    async with watched(run) as (pilot, app):
        view = app.run_screen.query_one(LogView)
        await pilot.press("slash", *"warning", "enter")
        assert view.border_subtitle == "3 of 3 · 45 lines"
        assert "warning 3" in screen_text(app)  # far to the right
        await pilot.press("y")
        assert app.clipboard == "x" * 300 + " warning 3"
        await press(pilot, "n")
        assert view.border_subtitle == "1 of 3 · 45 lines"
        assert "Warning one" in screen_text(app)
        await pilot.press("N", "N")
        assert view.border_subtitle == "2 of 3 · 45 lines"
        await press(pilot, "F")
        assert "nothing" not in screen_text(app)
        assert "WARNING two" in screen_text(app)
        run.log(0, b"nothing\nno warning\n")
        await shown(pilot)
        assert "no warning" in screen_text(app)
        await press(pilot, "slash", "ctrl+u", *"WARNING", "enter")
        assert view.border_subtitle == "1 of 1 · only matches · 47 lines"
        await press(pilot, "escape")  # it searches for nothing, and the screen stays
        assert "nothing" in screen_text(app)
        assert app.screen is app.run_screen


async def test_the_pager_gets_the_whole_log_without_what_a_terminal_obeys(tmp_path, monkeypatch):
    run = trained(tmp_path)
    run.log(0, HOSTILE)
    opened: list[tuple[list[str], str]] = []
    monkeypatch.setattr(lent, "in_terminal",
                        lambda app, argv, given: opened.append((argv, "".join(given))))
    async with watched(run) as (pilot, _app):
        for wanted, argv in (("less -S", ["less", "-S", "+G"]), ("bat --plain", ["bat", "--plain"]),
                             (" ", ["less", "+G"])):
            monkeypatch.setenv("PAGER", wanted)
            await pilot.press("v")
            await until(pilot, lambda: opened)
            got, text = opened.pop()
            assert got == argv
            assert not harmful(text)
            assert text.startswith("rank 0 says 0\n")
        monkeypatch.setenv("PAGER", "x 'y")
        await pilot.press("v")
        await says(pilot, "No closing quotation")
