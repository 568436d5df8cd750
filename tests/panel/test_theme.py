"""Every text is legible in light and dark themes: its contrast is at least 4.5 : 1, measured in the
colours in which the screens are really painted."""

from __future__ import annotations

import io

import pytest
from rich.color import ColorSystem
from rich.console import Console
from textual.color import Color
from textual.pilot import Pilot
from textual.theme import BUILTIN_THEMES
from textual.widgets import Input

from gpu_engine.runs.folder import Cause
from gpu_panel import theme
from gpu_panel.app import PanelApp
from gpu_panel.common.dialogs import Confirm

from .colours import contrast, painted, too_faint
from .machines import shared_machine
from .panel_kit import looked, panel, quiet, screen_text, until
from .run_kit import T0, Mini, press, says, trained, worked
from .run_kit import settled as run_settled

THEMES = ["textual-light", "ansi-light", "textual-dark", "catppuccin-mocha"]


def in_256(color: Color) -> Color:
    """What xterm's 256 colours make of a colour."""
    return Color(*color.rich_color.downgrade(ColorSystem.EIGHT_BIT).get_truecolor())


@pytest.mark.parametrize("name", ["nord", "textual-dark", "textual-light", "dracula"])
def test_a_terminal_of_256_colours_has_gray_grounds_and_legible_texts(name):
    chosen = BUILTIN_THEMES[name]
    said = chosen.to_color_system().generate() | chosen.variables
    out = said | theme.legible(said, dark=chosen.dark, ansi=False, few=True)
    grounds = [in_256(Color.parse(out[n])) for n in (
        "background", "surface", "panel", "cursor", "cursor-blurred", "field")]
    assert all(ground.r == ground.g == ground.b for ground in grounds)
    for text in ("foreground", "text-muted", "text-primary", "text-error"):
        assert min(contrast(in_256(Color.parse(out[text])), g) for g in grounds) >= 4.5, text


def test_the_app_asks_how_many_colours_its_terminal_has():
    app = PanelApp()
    app.theme = "nord"
    for system, gray in ("truecolor", False), ("256", True):
        app.console = Console(color_system=system, force_terminal=True, file=io.StringIO())
        ground = Color.parse(app.get_css_variables()["background"])
        assert (ground.r == ground.g == ground.b) == gray


@pytest.mark.parametrize("name", sorted(n for n, t in BUILTIN_THEMES.items() if not t.ansi))
def test_text_colours_of_every_theme(name):
    chosen = BUILTIN_THEMES[name]
    said = chosen.to_color_system().generate() | chosen.variables
    out = said | theme.legible(said, dark=chosen.dark, ansi=False)
    grounds = [Color.parse(out[n]) for n in (
        "background", "surface", "panel", "cursor", "cursor-blurred")]
    for text in ("foreground", "text-muted", "text-primary", "text-secondary", "text-success",
                 "text-warning", "text-error", "text-accent"):
        assert min(contrast(Color.parse(out[text]), g) for g in grounds) >= 4.5, text
    for word in ("success", "warning", "error", "primary"):
        assert contrast(Color.parse(out[f"text-{word}"]),
                        Color.parse(out[f"{word}-muted"])) >= 4.5
    for ground in ("background", "surface"):  # a field looks like one, and can be read
        assert contrast(Color.parse(out["field"]), Color.parse(out[ground])) >= theme.FIELD
    assert contrast(Color.parse(out["field"]), Color.parse(out["foreground"])) >= 4.5
    muted, plain = (contrast(Color.parse(out[n]), grounds[0]) for n in ("text-muted", "foreground"))
    assert muted <= plain  # secondary text is never brighter


async def change_theme(pilot: Pilot[None], name: str):
    pilot.app.theme = name
    await quiet(pilot)  # the pause alone does not wait for the new style on a busy machine
    await pilot.pause()


async def read(pilot: Pilot[None], what: str):
    """Look at the screen as it is now in each of `THEMES`."""
    looks = set()
    for name in THEMES:
        await change_theme(pilot, name)
        looks.add(look(pilot, what))
    assert len(looks) == len(THEMES), what


def look(pilot: Pilot[None], what: str) -> frozenset[str]:
    """Look at the screen as it is now. Returns the colours of its backgrounds."""
    assert too_faint(pilot.app) == [], (what, pilot.app.theme)
    return frozenset(ground.hex for _, _, ground in painted(pilot.app))


async def test_the_launch_screen_and_what_opens_over_it_can_be_read():
    machine, sampler = shared_machine()
    async with panel(machine, sampler=sampler, notifications=True) as (pilot, screen):
        app = pilot.app
        await looked(pilot, screen)
        screen.bring_forward("form")
        screen.query_one("#f-train-lr", Input).value = "x"
        await says(pilot, "learning rate: expected")
        for severity in ("information", "warning", "error"):
            app.notify("It is said", title="Said", severity=severity, timeout=600)
        await until(pilot, lambda: screen_text(app).count("It is said") == 3)
        lowest = max(toast.region.bottom for toast in app.screen.query("Toast"))
        assert lowest <= app.size.height - 3, "keys, border and last line stay to be seen"
        await read(pilot, "problems and notifications")
        app.clear_notifications()
        for key, words in (("f1", "Tick or untick"), ("ctrl+p", "copy line")):
            await pilot.press(key)
            await says(pilot, words)
            look(pilot, key)
            await pilot.press("escape")
        app.push_screen(Confirm("Stop?", "It runs.", yes="Stop it"))
        await pilot.pause()
        await read(pilot, "a dialog")


async def test_a_runs_screen_can_be_read(tmp_path):
    run = trained(tmp_path)
    run.write(1, ("warning", 50, {"message": "slow"}))
    app = Mini(run.run, at=50.5)
    async with app.run_test(size=(160, 48)) as pilot:
        await run_settled(pilot, lambda s: s.caught_up and s.view.warnings())
        await press(pilot, "m", "left", "slash", *"says", "enter")
        await read(pilot, "a run that trains, and what was found")
        trace = "Traceback (most recent call last):\nValueError: no\n"
        run.state("failed", ended=T0 + 101, reason="rank 1: no",
                  cause=Cause("no", 1, "ValueError", trace))
        run.release()
        await run_settled(pilot, lambda s: s.state.state == "failed")
        await read(pilot, "a run that failed")


async def test_the_theme_is_remembered(home, monkeypatch):
    from ..conftest import slots

    async with panel(slots(1)) as (pilot, _):
        assert pilot.app.theme == "textual-dark"
        pilot.app.theme = "textual-light"
        await until(pilot, lambda: (home / "panel.json").exists())
        await worked(pilot, "theme")
    async with panel(slots(1)) as (pilot, _):
        assert pilot.app.theme == "textual-light"
    monkeypatch.setenv("TEXTUAL_THEME", "nord")  # the environment takes precedence
    assert PanelApp(inventory=slots(1)).theme == "textual-dark"  # as Textual read it before
    monkeypatch.delenv("TEXTUAL_THEME")
    for damage in ('{"theme": "gone"}', '{"theme": 7}', "[]", "{", "\xff"):
        (home / "panel.json").write_text(damage, encoding="latin-1")
        assert PanelApp(inventory=slots(1)).theme == "textual-dark"
    async with panel(slots(1), ready=False) as (pilot, _):  # damaged, but the panel opens
        assert pilot.app.theme == "textual-dark"

