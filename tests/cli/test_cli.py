"""The command line as a script uses it: exit codes, JSON, refusals without tracebacks."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys

import click
import pytest

from gpu_engine.cli import cli
from gpu_engine.runs import folder as runs

from .. import odd_runs
from ..command_line import called
from ..conftest import wait_for


def engine(*args: str, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gpu_engine", *args], capture_output=True,
                          text=True, timeout=600, **more)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import sys, time\n"
                    "print('args', sys.argv[1:], flush=True)\n"
                    "if 'fail' in sys.argv: raise ValueError('as asked')\n"
                    "if 'wait' in sys.argv: time.sleep(100)\n")
    return [sys.executable, str(path)]


def test_run_completes_with_0_and_fails_with_1(script):
    out = engine("run", "--devices", "cpu:0", "--", *script, "{batch.per_gpu}")
    assert out.returncode == 0
    first, last = out.stdout.splitlines()
    assert first == "args ['64']"
    assert "completed" in last
    assert engine("logs").stdout == "args ['64']\n"
    out = engine("run", "--devices", "cpu:0", "--", *script, "fail")
    assert out.returncode == 1
    assert "rank 0 failed first: ValueError: as asked" in out.stderr


TALKING = "import sys; print('a\\tb'); print('err', file=sys.stderr); print('no end', end='')"


@pytest.mark.parametrize("quiet", [True, False])
def test_a_pipe_gets_what_the_script_prints_and_the_result(quiet):
    out = engine("run", *(["-q"] if quiet else []), "--", sys.executable, "-uc", TALKING)
    *said, result = out.stdout.splitlines()
    assert said == ["a       b", "err", "no end"]  # a tab is widened, and nothing cut for it
    assert result.startswith(f"{runs.all_runs()[0].id} completed")
    assert (out.stderr == "") == quiet
    assert quiet or "on CPU" in out.stderr or "on GPU" in out.stderr


def test_ranks_in_a_pipe_are_told_apart():
    out = engine("run", "-q", "--mode", "ddp", "--devices", "cpu:0,cpu:1", "--", sys.executable,
                 "-c", "import os; print('I am', os.environ['RANK'])")
    assert sorted(out.stdout.splitlines()[:-1]) == ["rank 0| I am 0", "rank 1| I am 1"]


def test_it_comes_while_the_run_goes_on(tmp_path):
    os.mkfifo(tmp_path / "gate")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_engine", "run", "-q", "--devices", "cpu:0", "--",
         sys.executable, "-uc", f"print('first'); open({str(tmp_path / 'gate')!r}).read()"],
        stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "first\n"
    (tmp_path / "gate").write_text("go on")
    assert "completed" in process.stdout.read()
    assert process.wait() == 0


@pytest.mark.parametrize(("args", "says"), [
    (["run", "defalt"], "did you mean default"),
    (["run"], "name a preset"),
    (["run", "default", "--set", "batch.sice=3"], "did you mean batch.size"),
    (["run", "single", "--set", "task.params.widht=1"], "no such parameter"),
    (["run", "default", "--queue", "--set", "task.params.text=/nonexist"], "no such file"),
    (["run", "default", "--grid", "task.params.width=128,130"], "width = 130: expected a multiple"),
    (["stop", "zzzz"], "no run 'zzzz'"),
    (["show"], "no runs yet"),
    (["lgos"], "did you mean logs"),
    (["presets", "nope"], "no preset"),
    (["describe", "nope"], "write module:Class"),
])
def test_a_mistake_is_2_and_its_words_without_a_traceback(args, says):
    out = called(*args)
    assert out.returncode == 2
    assert says in out.stderr
    assert "Traceback" not in out.stderr
    assert not runs.all_runs()


def test_a_taken_port_is_named_with_a_free_one(script):
    import socket

    with socket.socket() as sock:
        sock.bind(("", 0))
        sock.listen()
        port = sock.getsockname()[1]
        out = called("run", "--mode", "ddp", "--devices", "cpu:0", "--set",
                     f"parallel.master_port={port}", "--", *script)
    assert out.returncode == 2
    assert f"parallel.master_port = {port}: the port is taken" in out.stderr
    assert "is free" in out.stderr


def test_ctrl_c_stops_the_run_and_is_130(script):
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_engine", "run", "--devices", "cpu:0", "--", *script, "wait"],
        stderr=subprocess.PIPE, text=True)
    run = wait_for(lambda: runs.all_runs() and runs.all_runs()[0])
    wait_for(lambda: run.log(0).exists() and run.log(0).stat().st_size)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "stopping: the command gets SIGINT, as from Ctrl-C; press Ctrl-C again" in err
    assert run.state().state == "stopped"


def test_detach_prints_the_id_and_stop_ends_it(script):
    out = called("run", "--detach", "--devices", "cpu:0", "--", *script, "wait")
    assert out.returncode == 0
    run = runs.find(out.stdout.strip())
    wait_for(lambda: run.log(0).exists() and run.log(0).stat().st_size)
    assert called("runs", "rm", run.id).returncode == 2
    stopped = called("stop", run.id[:3])
    assert stopped.returncode == 0
    assert "stopped" in stopped.stdout
    assert called("runs", "rm", "--yes", run.id).returncode == 0
    assert not run.path.exists()


def test_prune_keeps_the_newest(home):
    ids = [odd_runs.ended(age=age).id for age in (3, 1, 2)]
    called("runs", "prune", "--keep", "1", "--yes")
    assert [r.id for r in runs.all_runs()] == [ids[1]]


def test_removing_asks_and_says_what_goes(monkeypatch):
    one, two = odd_runs.ended(age=1), odd_runs.ended(age=2)
    for words in (["rm", one.id, two.id, one.id], ["prune", "--keep", "0"]):
        refused = called("runs", *words)
        assert refused.returncode == 2
        assert re.search(r"2 runs with their checkpoints, [\d.]+ KiB here\. Nothing brings them "
                         r"back\. Nobody can be asked here: --yes removes", refused.stderr)
    for answer, words, left in (("", ["rm", one.id], 2), ("n", ["rm", one.id], 2),
                                ("y", ["rm", one.id], 1), ("y", ["prune", "--keep", "0"], 0)):
        typed = io.StringIO(f"{answer}\n")
        monkeypatch.setattr(typed, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", typed)
        said = called("runs", *words)
        assert said.stderr.startswith("1 run with its checkpoints, "), said
        assert said.stderr.count("[y/N]") == 1
        assert len(runs.all_runs()) == left
    assert called("runs", "prune", "--keep", "0").stderr == "0 B in all\n", "nothing to ask"


def test_logs_are_harmless_in_a_terminal(tmp_path):
    path = tmp_path / "t.py"
    path.write_text(r"import sys; sys.stdout.buffer.write("
                    r"b'a\x1b]52;c;ZXZpbA==\x07b\x1b[2Jc\xff\nlast without newline')")
    called("run", "--devices", "cpu:0", "--", sys.executable, str(path))
    clean = called("logs").stdout
    assert "\x1b" not in clean
    assert "\x07" not in clean
    assert clean.splitlines()[-1] == "last without newline"
    assert called("logs", "-n", "1").stdout == "last without newline\n"
    assert called("logs", "-n", "9" * 30).stdout == clean
    assert called("logs", "--rank", "5").returncode == 2


def test_output_cut_short_is_no_error():
    out = subprocess.run(f"{sys.executable} -m gpu_engine describe | head -c 1", shell=True,
                         capture_output=True, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert out.stderr == ""


def test_the_help_lists_each_command_once_below_what_it_is_for():
    said = called("--help").stdout.partition("Options:\n")[2].splitlines()
    named = [line.split()[0] for line in said if re.match(r"  [a-z]", line)]
    with click.Context(cli) as context:
        shown = [name for name in cli.list_commands(context)
                 if not cli.get_command(context, name).hidden]
    assert sorted(named) == sorted(shown)
