"""Tab in real shells, on a terminal: what the person sees on their command line afterwards."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.shell_completion import CompletionItem
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.cli import cli
from gpu_engine.common.errors import UserError
from gpu_engine.completion import answers, scripts, sources
from gpu_engine.completion import install as place
from gpu_engine.completion.answers import trimmed, words

from ..command_line import called
from ..conftest import patience

BIN = Path(sys.executable).parent


def answered(line: str) -> list[CompletionItem]:
    """What is answered to `line`, in this process."""
    answers.register()
    return answers.Zsh(cli, {}, "gpu-engine", "").get_completions(*words(line))


def values(line: str) -> list[str]:
    return [item.value for item in answered(line)]


@pytest.fixture
def runs(home: Path) -> Path:
    """Three runs, the oldest first: 0ab1 trains and has a name, 77aa and 77bb have ended."""
    for age, (name, state) in enumerate((("0ab1", "running"), ("77aa", "failed"),
                                         ("77bb", "completed"))):
        folder = home / "runs" / name
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"name": "ddp", "state": state}))
        if name == "0ab1":
            (folder / "notes.json").write_text(json.dumps({"name": "long one", "tags": ["lr"]}))
            (folder / "sweep.json").write_text(json.dumps({"sweep": "s12", "name": "g", "of": 6}))
        os.utime(folder, (age + 1, age + 1))
    (home / "hosts.toml").write_text('[hosts.gpu1]\nlabel = "below the window"\n')
    (home / "presets").mkdir()
    (home / "presets" / "mine.toml").write_text("")
    return home


def test_what_can_be_typed(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "x.toml").touch()
    for line, wanted in {
            "gpu-engine sto": ["stop"], "gpu-engine run --det": ["--detach"],
            "gpu-engine run m": ["mine", "multinode"], "gpu-engine run a": ["a b/"],
            "gpu-engine run 'a b/": ["a b/x.toml"],
            "gpu-engine show ": ["77bb", "77aa", "0ab1", "last"], "gpu-engine show 77": ["77bb",
                                                                                      "77aa"],
            "gpu-engine stop ": ["0ab1"], "gpu-engine stop 77": ["77bb", "77aa"],
            "gpu-engine compare 77aa 0": ["0ab1"], "gpu-engine queue move 0ab1 f": ["first"],
            "gpu-engine queue mo": ["move"], "gpu-engine sweep ": ["retry", "stop", "s12", "last"],
            "gpu-engine sweep stop ": ["s12", "last"], "gpu-engine hosts check ": ["gpu1"],
            "gpu-engine run --set batch.me": ["batch.meaning="],
            "gpu-engine run --set batch.meaning=": ["batch.meaning=global",
                                                    "batch.meaning=per_gpu"],
            "gpu-engine run --set=amp.tf32=t": ["--set=amp.tf32=true"],
            "gpu-engine resume 77aa --set parallel.mode=s": ["parallel.mode=single"],
            "gpu-engine run --set devices.ids=cpu:0,cpu:0": [],
            "gpu-engine run --set devices.hosts=": ["devices.hosts=gpu1"],
            "gpu-engine run --grid amp.dtype=off,b": ["amp.dtype=off,bf16"],
            "gpu-engine run --mode d": ["dp", "ddp"], "gpu-engine run --after 0": ["0ab1"],
            "gpu-engine runs --filter sta": ["state:"],
            "gpu-engine runs --columns id,train.we": ["id,train.weight_decay"],
            "gpu-engine runs --filter 'tag:lr -state:lo": ["tag:lr -state:lost"],
            "gpu-engine runs --filter tag:": ["tag:lr"], "gpu-engine note 77aa --tag l": ["lr"],
            "gpu-engine export 77aa --to c": ["csv"],
            "gpu-engine 'sta": ["stacks"],
    }.items():
        assert [v for v in values(line) if v] == wanted, line
    kinds = {line: [i.type for i in answered(line)] for line in (
        "gpu-engine run -- ", "gpu-engine run -- python tr", "gpu-engine report 77aa --out ")}
    assert list(kinds.values()) == [["command"], ["file"], ["file"]]


def test_help_says_what_a_run_is(runs: Path):
    assert {i.value: i.help for i in answered("gpu-engine show ")} == {
        "0ab1": "running · long one · ddp", "77aa": "failed · ddp", "77bb": "completed · ddp",
        "last": "the newest run"}
    told = {i.value: i.help for i in answered("gpu-engine ")}
    assert told["stop"].startswith("Stop RUN")
    assert all(told.values())


def test_every_parameter_that_names_something_is_completed():
    """A command that is added, with a run or a preset as its argument, is completed too, or named
    here."""
    free = {"note.text", "describe.python", "add.name", "agent.word", "priority.number"}
    missing = set()

    def look(command: click.Command, ctx: click.Context) -> None:
        if isinstance(command, click.Group):
            for name in command.list_commands(ctx):
                below = command.get_command(ctx, name)
                assert below is not None
                look(below, click.Context(below, ctx, info_name=name))
        for one in command.params:
            if isinstance(one, click.Argument) and answers.source_of(ctx, one) is None \
                    and not isinstance(one.type, click.Choice):
                missing.add(f"{ctx.info_name}.{one.name}")

    look(cli, click.Context(cli, info_name="gpu-engine"))
    assert missing <= free


def test_a_thousand_runs_are_told_newest_first_and_few_are_read(home: Path, monkeypatch):
    for i in range(1000):
        folder = home / "runs" / f"{i:04x}"
        folder.mkdir(parents=True)
        os.utime(folder, (i, i))
    read: list[Path] = []
    monkeypatch.setattr(sources, "json_inside", lambda run, name: read.append(run))
    found = sources.runs("")
    assert [a.value for a in found[:2]] == ["03e7", "03e6"]
    assert len(found) == 1000
    assert len(read) < 100


@pytest.mark.parametrize("line", ["gpu-engine ", "gpu-engine run d", "gpu-engine stop 0",
                                  "gpu-engine run --devices "])
def test_nothing_slow_is_imported(runs: Path, line: str):
    """Its time on the processor: see bench. Here: what of the slow packages came in."""
    out = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpu_engine"], capture_output=True,
        text=True, timeout=patience(),
        env=os.environ | {"_GPU_ENGINE_COMPLETE": "zsh_complete", "COMP_LINE": line})
    assert out.stdout.count("\n") >= 1, out.stderr[-500:]
    came = {row.rpartition("|")[2].strip() for row in out.stderr.splitlines()}
    assert "click" in came
    assert not came & {"textual", "torch", "rich", "psutil", "pynvml", "numpy", "subprocess",
                       "gpu_engine.launching.launcher", "gpu_engine.devices.discover"}


@given(st.text("ab '\"\\=:", max_size=12))
def test_any_line_has_words(text: str):
    whole, typed = words("gpu-engine " + text)
    assert isinstance(typed, str)
    assert all(isinstance(w, str) for w in whole)


@pytest.mark.parametrize(("line", "whole", "typed"), [
    ("x ", [], ""), ("x a", [], "a"), ("x a ", ["a"], ""), ("x 'a b", [], "a b"),
    ('x "a b" c\\ d', ["a b"], "c d"), ("", [], ""), ("x --set a=", ["--set"], "a=")])
def test_words(line: str, whole: list[str], typed: str):
    assert words(line) == (whole, typed)


@pytest.mark.parametrize(("value", "typed", "current", "told"), [
    ("batch.size=8", "batch.size=", "=", "8"), ("batch.size=8", "batch.size=", "", "8"),
    ("amp.dtype=bf16", "amp.dtype=b", "b", "bf16"), ("cpu:0,cpu:1", "cpu:0,cpu:", ":", "1"),
    ("batch.size=", "bat", "bat", "batch.size="), ("state:lost", "state:l", "'state:l",
                                                   "state:lost")])
def test_bash_replaces_what_stands_behind_its_word_breaks(value, typed, current, told):
    assert trimmed(value, typed, current) == told


@pytest.mark.parametrize("quote", ['"', "'"])
def test_behind_a_quote_bash_gets_a_text_that_stays_one(monkeypatch, quote):
    tag = "a$(id)`id`\\\"'!x"
    monkeypatch.setenv("COMP_LINE", f"gpu-engine note x --tag {quote}a")
    monkeypatch.setenv("COMP_CURRENT", f"{quote}a")
    line = answers.Bash(cli, {}, "gpu-engine", "").format_completion(CompletionItem(tag))
    word = quote + line.partition("\t")[2] + quote
    said = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert said.stdout.decode() == tag


# --- installing -----------------------------------------------------------------------------------

@pytest.mark.parametrize(("shell", "packaged"), [("bash", False), ("bash", True), ("zsh", False),
                                                 ("fish", False)])
def test_it_is_installed_once(tmp_path: Path, shell: str, packaged: bool):
    if packaged:
        (tmp_path / "usr/share/bash-completion").mkdir(parents=True)
        (tmp_path / "usr/share/bash-completion/bash_completion").touch()
    start = tmp_path / "home" / f".{shell}rc"
    start.parent.mkdir()
    start.write_text("alias x=y")  # without a newline at its end
    env = {"HOME": str(start.parent)}
    first = place.install(shell, env, tmp_path)
    after = start.read_text()
    assert all(file.read_text() == scripts.text(shell) for file in first.written)
    assert not first.was_there
    itself = shell == "fish" or packaged
    assert (first.begun_in, after == "alias x=y") == ((None, True) if itself else (start, False))
    again = place.install(shell, env, tmp_path)
    assert again.was_there
    assert start.read_text() == after
    assert again.written == first.written


def test_where_it_was_put_is_said_and_what_fails_is_said(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    out = called("completion", "--install")
    assert out.stdout.split() == [str(tmp_path / f".config/fish/completions/{name}.fish")
                                  for name in place.COMMANDS]
    assert "already" in called("completion", "--install").stdout
    assert called("completion", "zsh").stdout == scripts.text("zsh")
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    out = called("completion")
    assert (out.returncode, "yours is /bin/tcsh" in out.stderr) == (2, True)
    (tmp_path / "taken").touch()
    with pytest.raises(UserError, match="can't be written"):
        place.install("fish", {"HOME": str(tmp_path / "taken")})


@pytest.mark.parametrize(("login", "own", "found"), [
    ("/usr/bin/zsh", "/usr/bin/zsh", "zsh"), ("/bin/sh", "/bin/sh", None), ("", None, None),
    (None, None, None)])
def test_where_shell_is_not_set_the_user_database_knows(monkeypatch, login, own, found):
    """As in containers and under cron."""
    def getpwuid(uid: int):
        if login is None:
            raise KeyError(f"getpwuid(): uid not found: {uid}")
        return SimpleNamespace(pw_shell=login)

    monkeypatch.setattr(place.pwd, "getpwuid", getpwuid)
    for env in {}, {"SHELL": ""}:
        assert (place.own_shell(env), place.shell_of(env)) == (own, found)
    assert place.shell_of({"SHELL": "/bin/bash"}) == "bash"


# --- real shells ----------------------------------------------------------------------------------

class Terminal:
    """A shell on a terminal of its own, at which somebody types."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, env)
        self.seen = ""

    def type(self, text: str, until: str) -> str:
        """Type `text`, and wait until `until` is shown after it. Returns what was shown."""
        start = len(self.seen)
        os.write(self.fd, text.encode())
        end = time.monotonic() + patience()
        while until not in self.seen[start:]:
            assert time.monotonic() < end, self.seen[start:]
            if select.select([self.fd], [], [], 1.0)[0]:
                read = os.read(self.fd, 65536).decode(errors="replace")
                self.seen += read
                if "\x1b[c" in read:  # fish asks what the terminal is
                    os.write(self.fd, b"\x1b[?1;2c")
        return self.seen[start:]

    def close(self) -> None:
        os.close(self.fd)  # the shell gets a SIGHUP
        os.waitpid(self.pid, 0)


STARTS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"],
          "fish": ["fish", "--no-config", "-i"]}


@pytest.fixture(params=["bash", "zsh", "fish"])
def terminal(request, runs: Path, tmp_path: Path) -> Iterator[Terminal]:
    shell = request.param
    if shell != "bash" and shutil.which(shell) is None:  # bash is everywhere, and must work
        pytest.skip(f"no {shell} here")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "ZDOT"))}
    env |= {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb",
            "PS1": "$ ", "ENV": "", "LC_ALL": "C.UTF-8"}
    file = tmp_path / "script"
    file.write_text(scripts.text(shell))
    found = Terminal(STARTS[shell], env)
    found.type(f". {file}; printf 'rea%s\\n' dy\r", "ready\r\n")
    yield found
    found.close()


def test_tab_completes_in_a_real_shell(terminal: Terminal):
    """What the tabs have made of a line is handed to printf by the shell itself."""
    for typed, wanted in (
            ("gpu-engine compa\t", "[gpu-engine][compare]"),
            ("gpu-engine resume 0\t", "[gpu-engine][resume][0ab1]"),
            ("gpu-engine run --det\t", "[gpu-engine][run][--detach]"),
            ("gpu-engine run --set batch.me\tg\t", "[run][--set][batch.meaning=global]"),
            ("gpu-engine runs --filter 'tag:x state:l\t", "[runs][--filter][tag:x state:lost"),
            ("gpu-engine run --devices 0,cpu:0\t", "[run][--devices][0,cpu:0]"),
            ("gpu-panel mul\t", "[gpu-panel][multinode]")):
        # To the line's beginning (ctrl+a) with printf, to its end (ctrl+e) with a last word.
        shown = terminal.type(f"{typed}\x01printf '[%s]' \x05 .\r", "[.]")
        assert wanted in shown, (typed, shown)
