"""Every text is legible in light and dark themes: its contrast is at least 4.5 : 1, measured in the
colours in which the screens are really painted."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from textual.color import Color
from textual.pilot import Pilot
from textual.theme import BUILTIN_THEMES
from textual.widgets import Input

from gpu_engine.runs.folder import Cause
from gpu_panel import theme
from gpu_panel.app import PanelApp
from gpu_panel.common.choice import Choice, ChoiceMenu
from gpu_panel.common.dialogs import Confirm
from gpu_panel.run.log import LogView

from .colours import contrast, painted, too_faint
from .machines import shared_machine
from .panel_kit import looked, panel, quiet, screen_text, settled, until
from .run_kit import T0, Mini, shown, trained, worked
from .run_kit import settled as run_settled

pytestmark = pytest.mark.usefixtures("home")
THEMES = ["textual-light", "ansi-light", "textual-dark", "solarized-light", "catppuccin-mocha"]


@pytest.mark.parametrize("name", sorted(n for n, t in BUILTIN_THEMES.items() if not t.ansi))
def test_text_colours_of_every_theme(name: str) -> None:
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


@pytest.mark.parametrize("name", [*THEMES, "ansi-dark"])
async def test_a_field_looks_like_one(name: str) -> None:
    machine, sampler = shared_machine()
    async with panel(machine, sampler=sampler) as (pilot, screen):
        await change_theme(pilot, name)
        field = screen.query_one("#f-batch-size", Input)
        style, around = field.rich_style, screen.query_one("#form").rich_style
        assert style.underline or style.bgcolor != around.bgcolor
        assert bool(style.underline) == name.startswith("ansi")


async def change_theme(pilot: Pilot[None], name: str) -> None:
    pilot.app.theme = name
    await quiet(pilot)  # the pause alone does not wait for the new style on a busy machine
    await pilot.pause()


async def read(pilot: Pilot[None], what: str) -> None:
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


def look_at_cursor(pilot: Pilot[None]) -> None:
    """The row under the cursor, the first one, stands out."""
    names = [ground for text, _, ground in painted(pilot.app) if text.startswith("A100")]
    grounds = names[:4]  # the border below names the one at the cursor once more
    assert len(names) == 5
    assert contrast(grounds[0], grounds[1]) > 1.15, pilot.app.theme
    assert len({g.hex for g in grounds[1:]}) == 1


@pytest.mark.timeout(180)
async def test_the_launch_screen_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PanelApp, "NOTIFICATION_TIMEOUT", 600)  # however long the looks take
    machine, sampler = shared_machine()
    async with panel(machine, sampler=sampler, notifications=True) as (pilot, screen):
        app = pilot.app
        await looked(pilot, screen)
        screen.bring_forward("form")
        screen.query_one("#f-batch-size", Input).value = "33"
        screen.query_one("#f-train-lr", Input).value = "x"
        await until(pilot, lambda: "lr: expected" in screen_text(app))
        looks: dict[str, set[frozenset[str]]] = defaultdict(set)

        async def seen(what: str) -> None:
            """Look at the screen as it is now. In the last round, also in the other theme of the
            last two: what is open is painted again in a new theme."""
            looks[what].add(look(pilot, what))
            if app.theme in last_two and what != "the palette":  # which does not change while open
                await change_theme(pilot, last_two[app.theme])
                looks[what].add(look(pilot, what))

        # Opening everything in a theme takes less than changing the theme with everything open.
        last_two = {THEMES[-2]: THEMES[-1], THEMES[-1]: THEMES[-2]}
        for name in THEMES[:-1]:
            await change_theme(pilot, name)
            screen.bring_forward("form")
            assert screen.focused is screen.devices
            await settled(pilot, screen)
            await seen("problems")
            look_at_cursor(pilot)
            await pilot.press("i")
            await settled(pilot, screen)
            await seen("table and details")
            await pilot.press("i", "2")
            screen.query_one("#task-choice", Choice).action_open()
            await until(pilot, lambda: isinstance(app.screen, ChoiceMenu))
            await seen("the list of tasks")
            await pilot.press("escape")
            screen.bring_forward("form")
            screen.query_one("#f-amp-dtype").focus()
            await settled(pilot, screen)
            await seen("a field with the focus")
            for key, words in (("f1", "Tick or untick"), ("ctrl+o", "shipped"),
                               ("ctrl+p", "copy line")):
                await pilot.press(key)
                await until(pilot, lambda words=words: words in screen_text(app))
                await seen("the palette" if key == "ctrl+p" else key)
                await pilot.press("escape")
            app.push_screen(Confirm("Stop?", "It runs.", yes="Stop it"))
            await pilot.pause()
            await seen("a dialog")
            app.pop_screen()
            for severity in ("information", "warning", "error"):
                app.notify("It is said", title="Said", severity=severity)
            await until(pilot, lambda: screen_text(app).count("It is said") == 3)
            await seen("notifications")
            app.clear_notifications()
            await pilot.press("escape")
            await until(pilot, lambda: "It is said" not in screen_text(app))
        for name in THEMES[-2:]:  # the first of them may have come last
            await change_theme(pilot, name)
            look_at_cursor(pilot)
            await pilot.press("ctrl+p")
            await until(pilot, lambda: "copy line" in screen_text(app))
            await seen("the palette")
            await pilot.press("escape")
        assert len(looks) == 9
        assert all(len(grounds) == len(THEMES) for grounds in looks.values()), looks


@pytest.mark.timeout(180)
async def test_a_runs_screen_can_be_read(tmp_path: Path) -> None:
    run = trained(tmp_path)
    run.write(1, ("warning", 50, {"message": "slow"}))
    app = Mini(run.run, at=50.5)
    async with app.run_test(size=(160, 48)) as pilot:
        await run_settled(pilot, lambda s: s.caught_up and s.view.warnings())
        await read(pilot, "a run that trains")
        await pilot.press("b", "m", "left", "4")
        app.run_screen.query_one(LogView).search("says")
        await until(pilot, lambda: not app.run_screen.query_one(LogView).following)
        app.at = 100.0
        await shown(pilot)
        await read(pilot, "a run that stands still, a band, and what was found")
        trace = "Traceback (most recent call last):\nValueError: no\n"
        run.write(1, ("error", 50.1, {"type": "ValueError", "message": "no", "traceback": trace,
                                      "phase": "forward", "step": 99}))
        run.state("failed", ended=T0 + 101, reason="rank 1: no",
                  cause=Cause("no", 1, "ValueError", trace))
        run.release()
        await run_settled(pilot, lambda s: s.state.state == "failed")
        await read(pilot, "a run that failed")
        await pilot.press("i")
        await shown(pilot)
        await read(pilot, "about it")
        await pilot.press("escape")
        run.state("completed", ended=T0 + 101)
        await app.run_screen.store.poll_now()
        await shown(pilot)
        await read(pilot, "a run that is completed")


async def test_the_theme_is_remembered(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_theme_that_cant_be_kept_is_said(
        home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ..conftest import slots

    monkeypatch.setattr(PanelApp, "NOTIFICATION_TIMEOUT", 600)  # however late this test looks
    (home / "panel.json").mkdir(parents=True)
    async with panel(slots(1), notifications=True) as (pilot, _):
        pilot.app.theme = "textual-light"
        await until(pilot, lambda: "can't be saved" in screen_text(pilot.app))
        assert (home / "panel.json").is_dir()
