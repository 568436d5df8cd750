"""settings.toml: what is in force and from where, and what is said of a wrong one."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from gpu_engine.common.values import convert, in_toml
from gpu_engine.launching import notifier
from gpu_engine.settings import file
from gpu_engine.settings.schema import Settings, every

from ..command_line import called


def test_the_beginning_has_every_default_and_changes_nothing(home: Path):
    out = called("settings", "--init")
    assert out.returncode == 0
    text = file.path().read_text()
    assert file.read() == Settings()
    # Without its #, each line is the default.
    lines = [line.removeprefix("# ") for line in text.splitlines()
             if line.startswith("[") or (line.startswith("# ") and " = " in line)]
    said = tomllib.loads("\n".join(lines))
    assert said.pop("keys") == {"devices": {"tick": "space"}}
    assert {f"{s}.{k}": convert(v, every()[f"{s}.{k}"].kind)
            for s, table in said.items() for k, v in table.items()} == {
        name: setting.default for name, setting in every().items()}
    assert called("settings", "--init").returncode == 2, "what is there is never written over"
    assert file.path().read_text() == text


def test_what_is_in_force_and_from_where(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEXTUAL_THEME", "nord")
    home.mkdir()
    file.path().write_text('[panel]\nrefresh = 2\n[runs]\nlisted = 1\n[keys]\n"help" = "h"\n')
    said = json.loads(called("settings", "--json").stdout)
    found = {s["name"]: (s["value"], s["source"]) for s in said["settings"]}
    assert found["panel.refresh"] == (2.0, "file")
    assert found["panel.theme"] == ("auto", "environment (TEXTUAL_THEME=nord)")
    assert found["panel.mouse"] == (True, "default")
    assert said["keys"] == {"help": "h"}
    assert "panel.refresh        2.0              file" in called("settings").stdout
    for name in "ab":
        (home / "runs" / name).mkdir(parents=True)
    out = called("runs")
    assert out.stdout.count("\n") == 2  # the heads, and a run
    assert "and 1 older" in out.stderr


@pytest.mark.parametrize(("text", "said"), [
    ("[panel]\nmouse = 3", "panel.mouse = 3: expected true or false"),
    ("\n[panel]\nmosue = true", "panel.mosue = true: no such setting; did you mean mouse?"),
    ("[pannel]\nx = 1", "pannel = {x = 1}: no such table; did you mean panel?"),
    ("panel = 1", "panel = 1: expected a table, [panel]"),
    ('[panel]\nascii = "yes"', 'panel.ascii = "yes": expected one of auto, always, never'),
    ("[panel]\nrefresh = 0.01", "panel.refresh = 0.01: expected a number"),
    ("panel.refresh = 99", "panel.refresh = 99: expected a number"),
    ("[keys]\ndevices.tick = 3", "keys.devices.tick = 3: expected a text"),
    ("[panel", "not valid TOML"), ("[panel]\na = 1\nb = 2", "panel.b = 2")])
def test_what_is_wrong_is_named_with_file_and_value(home: Path, text: str, said: str):
    home.mkdir()
    file.path().write_text(text)
    out = called("settings")
    assert out.returncode == 2
    assert f"{file.path()}" in out.stderr
    assert said in out.stderr, out.stderr


def test_keys_of_commands_are_shown_with_where_they_are_checked(home: Path):
    home.mkdir()
    file.path().write_text('[commands.size]\nkey = "x"\nrun = "du"\n')
    out = called("settings")
    assert out.returncode == 0
    assert 'commands.size.key    "x"' in out.stdout
    assert "gpu-panel --keys" in out.stderr


def test_notify_false_tells_nobody(home: Path, monkeypatch: pytest.MonkeyPatch):
    home.mkdir()
    (home / "notify.toml").write_text("broken")
    (home / "notify.toml").chmod(0o600)
    assert notifier.doubt() is not None
    file.path().write_text("[runs]\nnotify = false\n")
    assert notifier.doubt() is None
    file.path().write_text("[runs]\nnotify = 7\n")
    assert notifier.doubt() is not None, "a wrong file turns nothing off"


def test_the_documentation_has_every_setting_with_its_default():
    text = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    rows = {row.split("`")[1]: row.split("`")[3] for row in text.splitlines()
            if row.startswith("| `")}
    assert rows == {name: in_toml(setting.default) for name, setting in every().items()}
