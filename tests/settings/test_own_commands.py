"""[commands.NAME] of settings.toml: what is a command, and what is put into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_engine.settings import file, own_commands
from gpu_engine.settings.own_commands import OwnCommand


def parsed(text: str) -> OwnCommand:
    [found] = file.parse(text, Path("settings.toml")).commands
    return found


def test_a_line_is_split_before_anything_is_put_into_it():
    command = parsed('[commands.size]\nkey = "f9"\nconfirm = true\n'
                     'run = "du -sh {run.dir} \'a b\'"')
    assert command == OwnCommand("size", "f9", ("du", "-sh", "{run.dir}", "a b"), confirm=True)
    assert command.needs == ("run.dir",)
    hostile = "/x/a b; rm -rf ~ $(id) {pid}"
    assert command.filled({"run.dir": hostile, "pid": "7"}) == ["du", "-sh", hostile, "a b"]


def test_a_value_never_becomes_an_option():
    for value in ("--exec=x", "-delete", "-"):
        with pytest.raises(ValueError, match=f"would be the option {value}"):
            OwnCommand("a", "f9", ("find", "{run.id}")).filled({"run.id": value})
    assert OwnCommand("a", "f9", ("kill", "-{pid}")).filled({"pid": "7"}) == ["kill", "-7"]


@pytest.mark.parametrize(("text", "said"), [
    ('run = "x"', 'commands.a.key = \"\": expected a key'),
    ('key = "f9"', "commands.a.run = \"\": expected a program"),
    ('key = "f9"\nrun = []', "expected a program"),
    ('key = "f9"\nrun = ["x", 3]', "expected a program"),
    ('key = "f9"\nrun = 3', "commands.a.run = 3: expected a list of texts or a text"),
    ('key = "f9"\nrun = "x \'"', "can't be split into words"),
    ('key = "f9"\nrun = "x {run.name}"', "{run.name} is unknown; there are {run.dir}, {run.id}"),
    ('key = "f9"\nrun = "{run.dir}/x"', "the program itself has no placeholder"),
    ('key = "f9"\nrun = ["bash", "-lc", "ls {run.dir}"]', "a shell would run what is put in there"),
    ('key = "f9"\nrun = ["bash", "-ce", "{run.id}"]', "a shell would run what is put in there"),
    ('key = "f9"\nrun = ["env", "sh", "-c", "ls {run.dir}"]', "a shell would run"),
    ('key = "f9"\nrun = ["ssh", "{host}", "ls {run.dir}"]', "a shell would run"),
    ('key = "f9"\nrun = ["python3", "-c", "open({run.id}, 1)"]', "another program that takes"),
    ('key = "f9"\nrun = "/bin/sh -c \'ls {run.dir}\'"', "a shell would run what is put in there"),
    ('key = "f9"\nrun = "x"\nwhere = "moon"', "expected one of pane, terminal, background"),
    ('key = "f9"\nrun = "x"\nconfirm = 1', "commands.a.confirm = 1: expected true or false"),
    ('key = "f9"\nrun = "x"\nsure = 1', "no such setting; there are key, run, help")])
def test_what_is_wrong_is_named(text: str, said: str):
    with pytest.raises(file.SettingsError) as err:
        file.parse(f"[commands.a]\n{text}", Path("settings.toml"))
    assert said in str(err.value)


@pytest.mark.parametrize("text", [
    "commands = 3", "[commands]\na = 3", '[commands."A b"]\nkey = "x"'])
def test_what_is_no_command_is_refused(text: str):
    with pytest.raises(file.SettingsError):
        file.parse(text, Path("settings.toml"))


def test_a_shell_may_get_values_as_arguments():
    given = ["sh", "-c", 'du -sh "$1"', "sh", "{run.dir}"]
    found, wrong = own_commands.read({"a": {"key": "f9", "run": given}})
    assert not wrong
    assert found[0].filled({"run.dir": "$(id)"})[-1] == "$(id)"
