"""notify.toml: what it may say, who may read it, and that no error names a secret."""

import os
import re

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.notify import config
from gpu_engine.notify.messages import USUAL

from .endpoint import private

SECRET = "hushhush"
WHOLE = f"""
[[to]]
name = "phone"
kind = "ntfy"
url = "https://ntfy.sh/{SECRET}"
token = "tk_{SECRET}"
on = ["failed", "stopped"]
min_seconds = 300

[[to]]
kind = "command"
command = ["notify-send", "{SECRET}"]
"""


@pytest.fixture
def given():
    return lambda text: private(config.path(), text)


def test_entries_are_read_with_what_they_leave_out(home, given):
    assert config.read() == []
    assert config.problem() is None
    assert given(WHOLE) == home / "notify.toml"
    phone, desk = config.read()
    assert (phone.name, phone.kind, phone.on, phone.min_seconds) == (
        "phone", "ntfy", ("failed", "stopped"), 300.0)
    assert (desk.name, desk.on, desk.token) == ("command", USUAL, None)
    assert (phone.where, desk.where) == ("https://ntfy.sh", "a command")
    assert SECRET not in repr([phone, desk])


def test_without_gpu_panel_home_it_stands_beside_hosts_toml(monkeypatch, tmp_path):
    from gpu_engine.remote.reach import hosts

    monkeypatch.delenv("GPU_PANEL_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config.path() == tmp_path / "gpu-panel" / "notify.toml"
    assert hosts.path().parent == config.path().parent


@pytest.mark.parametrize("mode", [0o640, 0o602])
def test_a_file_that_others_can_reach_is_refused_with_the_cure(given, mode):
    path = given(WHOLE)
    path.chmod(mode)
    with pytest.raises(UserError, match=re.escape(f"chmod 600 {path}")) as err:
        config.read()
    assert f"{mode:04o}" in str(err.value)
    assert SECRET not in str(err.value)
    path.chmod(0o400)
    assert len(config.read()) == 2


@pytest.mark.parametrize(("entry", "says"), [
    ('kind = "ntfi"\nurl = "S"', "entry number 1: kind: expected one of ntfy, apprise"),
    ('kind = "json"', "url: expected an address"),
    ('kind = "json"\nurl = "ftp://x/S"', "url: expected an address that begins with https://"),
    ('kind = "json"\nurl = "https://x:S/"', "url: expected an address"),
    ('kind = "json"\nurl = "https://x/ü-S"', "url: expected an address"),
    ('kind = "json"\nurl = "https://x/\\nS"', "control characters"),
    ('kind = "json"\nurl = "https://me:S@x/"', "url: a password or"),
    ('kind = "apprise"\nurl = "S"', "url: expected an address as Apprise writes it"),
    ('kind = "apprise"\nurl = "json://x/"\ntoken = "S"', "neither a command nor a token"),
    ('kind = "ntfy"\nurl = "https://ntfy.sh/"', "url: expected the address of a topic"),
    ('kind = "json"\nurl = "https://x/"\ntoken = "S S"', "without blanks"),
    ('kind = "json"\nurl = "https://x/"\ntoken = 7', "Expected `str | null`, got `int`"),
    ('kind = "json"\nurl = "https://x/"\ncommand = ["S"]', "and no command"),
    ('kind = "command"\ncommand = "S"', "Expected `array`, got `str`"),
    ('kind = "command"\ncommand = ["x"]\nurl = "S"', "a command has neither url nor token"),
    ('kind = "json"\nurl = "https://x/S"\non = "failed"', "on: expected a list of finished"),
    ('kind = "json"\nurl = "https://x/S"\non = ["fialed"]', "on: expected a list of finished"),
    ('kind = "json"\nurl = "https://x/S"\nmin_seconds = -1', "Expected `float` >= 0"),
    ('kind = "json"\nurl = "https://x/S"\nmin_seconds = true', "Expected `float`, got `bool`"),
    ('kind = "json"\nurll = "https://x/S"', "urll: no such key; did you mean url?"),
    ('name = "a\\u001bb"\nkind = "json"\nurl = "https://x/S"', "control characters"),
])
def test_a_mistake_is_named_and_the_secret_is_not(given, entry, says):
    given("[[to]]\n" + entry.replace("S", SECRET) + "\n")
    with pytest.raises(UserError) as err:
        config.read()
    text = str(err.value)
    assert text.startswith(f"{config.path()}: entry ")
    assert says.replace("S,", f"{SECRET},") in text
    assert SECRET not in text
    assert text.isprintable()


@pytest.mark.parametrize(("text", "says"), [
    (f'url = "{SECRET}', "not valid TOML (at "),
    (f"[[to]]\nname = {SECRET}", "not valid TOML (at line 2"),
    (f'[to]\nurl = "{SECRET}"', "expected a list of entries"),
    (f'to = ["{SECRET}"]', "expected a list of entries"),
    (f'[[too]]\nurl = "{SECRET}"', "each begun with [[to]], and nothing else"),
    (2 * '[[to]]\nname = "a"\nkind = "json"\nurl = "https://x/"\n', 'two entries are called "a"'),
    ("x = 1\n" * 20000, "larger than 64 KiB"),
    ("a = " + "[" * 5000, "nested too deeply")])
def test_a_file_that_is_no_list_of_entries(given, text, says):
    given(text)
    assert says in str(config.problem())
    assert SECRET not in str(config.problem())


def test_what_it_begins_with_is_private_and_every_example_in_it_is_right():
    path = config.begin()
    assert path.stat().st_mode & 0o777 == 0o600
    assert config.read() == []
    text = path.read_text()
    one, other = re.search("gpu-panel-[0-9a-f]{16}", text)[0], None
    uncommented = "\n".join(line.removeprefix("# ") for line in text.splitlines()
                            if line.startswith("# ") and ("=" in line or "[[" in line))
    private(path, uncommented.replace("…", "x"))
    assert [to.kind for to in config.read()] == list(config.KINDS)
    with pytest.raises(UserError, match="exists"):
        config.begin()
    path.unlink()
    other = re.search("gpu-panel-[0-9a-f]{16}", config.begin().read_text())[0]
    assert one != other, "a topic that everybody has is no password"


@pytest.mark.parametrize("kind", ["slack", "discord"])
def test_a_kind_of_an_earlier_file_goes_through_apprise_where_it_is(given, kind, monkeypatch):
    given(f'[[to]]\nkind = "{kind}"\nurl = "https://hooks.invalid/{SECRET}"\n')
    [there] = config.read()
    assert (there.name, there.kind, there.where) == (kind, "apprise", "https://")
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    assert 'entry number 1: it goes through Apprise, which is not installed: ' \
        in str(config.problem())
    assert "'apprise>=2.2'" in str(config.problem())


def test_a_fifo_in_its_place_is_not_waited_for(home):
    home.mkdir()
    os.mkfifo(config.path(), 0o600)
    with pytest.raises(UserError, match="it is a FIFO"):
        config.read()
