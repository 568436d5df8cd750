"""[commands.NAME] of settings.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_engine.settings import file
from gpu_engine.settings.schema import OwnCommand


def test_a_table_is_a_command_with_the_variables_that_it_needs():
    [command] = file.parse('[commands.size]\nkey = "f9"\nconfirm = true\n'
                           'run = \'du -sh "$GPU_PANEL_RUN_DIR"\'', Path("s.toml")).commands
    assert command == OwnCommand("size", "f9", 'du -sh "$GPU_PANEL_RUN_DIR"', confirm=True)
    assert command.needs == ["GPU_PANEL_RUN_DIR"]


@pytest.mark.parametrize(("text", "said"), [
    ('[commands.a]\nrun = "x"', "expected a key, as"),
    ('[commands.a]\nkey = "f9"', "a line for sh"),
    ('[commands.a]\nkey = "f9"\nrun = " "', "commands.a.run = \" \": expected a text"),
    ('[commands.a]\nkey = "f9"\nrun = ["x"]', "commands.a.run = [\"x\"]: expected a text"),
    ('[commands.a]\nkey = "f9"\nrun = "x"\nwhere = "moon"', "expected one of pane, terminal"),
    ('[commands.a]\nkey = "f9"\nrun = "x"\nsure = 1', "no such setting; "),
    ("commands = 3", "expected a table"), ("[commands]\na = 3", "expected a table, [commands.a]"),
    ('[commands."A b"]\nkey = "x"', "expected a name of small letters")])
def test_what_is_wrong_is_named(text: str, said: str):
    with pytest.raises(file.SettingsError) as err:
        file.parse(text, Path("settings.toml"))
    assert said in str(err.value)
