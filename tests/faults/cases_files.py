"""Files that are cut short, damaged, gone, or dated in the future."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
import zipfile
from pathlib import Path

from gpu_engine.runs import folder as runs
from gpu_engine.runs.follow import Follower

from ..conftest import wait_for
from .kit import Box, case, checkpoints, events, logs, members, steps, verified

GARBAGE = [b"", b"{", b"null", b"[]", b"\x00" * 4096, b"\xff\xfe\xfd", b'{"state": []}',
           b'{"state": "running"}', b"[" * 100_000, b'{"state": "completed", "id": 1}',
           b'{"state":"completed","id":"x","name":"x","created":"yesterday","pid":[]}']


@case("A rank is killed within a line of its events; the run restarts",
      "the next attempt begins a new line; one torn line is counted, nothing else is lost")
def a_torn_last_line(box: Box) -> None:
    run = box.go("""
start(); step(1)
if attempt == 1:
    os.write(out._file.descriptor(), b'{"t":1.0,"kind":"step","st')
    os.kill(os.getpid(), signal.SIGKILL)
train(3)
""", ranks=1, train={"restarts": 1})
    state = box.ended(run)
    assert (state.state, state.attempt) == ("completed", 2)
    follower = Follower(run)
    assert len(follower.poll(budget=2)) == 11
    assert follower.skipped == 1
    assert [a.outcome for a in state.attempts] == ["failed", "completed"]
    assert "SIGKILL" in state.attempts[0].reason


@case("Garbage between events: binary, a megabyte in one line, ten thousand deep, not JSON, odd "
      "types", "every whole event is read, the rest counted; the run completes")
def garbage_lines(box: Box) -> None:
    run = box.go(r"""
start(); step(1)
for junk in (b"\x00\xff\n", b"x" * 1_000_000 + b"\n", b"[" * 10_000 + b"\n", b"42\n", b"{}\n",
             b'{"t":"x","kind":"step"}\n', b'{"t":1,"kind":{}}\n', b"\n\n",
             b'{"t":1e400,"kind":"step","step":"NaN","losses":{},"loss":[]}\n',
             b'{"t":1,"kind":"phase","phase":[],"since":{},"step":null}\n',
             b'{"t":1,"kind":"end2"}\n'):
    os.write(out._file.descriptor(), junk)
train(3)
""")
    assert box.ended(run).state == "completed"
    assert steps(run) == 3
    shown = json.loads(box.cli("show", run.id, "--json").stdout)
    assert [r["step"] for r in shown["ranks"]] == [3, 3]


@case("The events file shrinks while the run goes on", "read anew from there; the run completes")
def events_that_shrink(box: Box) -> None:
    run = box.go("start(); train(200)")
    box.stepping(run, 20)
    follower = Follower(run)
    follower.poll()
    os.truncate(run.events(0), 10)
    state = box.ended(run)
    assert state.state == "completed", (state, logs(run))
    while follower.poll():
        pass
    assert follower.ranks[0].step == 200


@case("Eleven megabytes of events by the time the run ends", "all are read: completed, not failed")
def a_long_events_file(box: Box) -> None:
    run = box.go("""
start()
for n in range(1, 200):
    tell("warning", message="x" * 60_000)
    step(n)
finish("completed", 199)
""", ranks=1)
    assert box.ended(run).state == "completed"
    assert run.events(0).stat().st_size > 11_000_000


@case("state.json damaged in ten ways while the run goes on",
      "the lock tells its state meanwhile; the file is written anew at the end")
def a_damaged_state_of_a_live_run(box: Box) -> None:
    run = box.go("start(); train(150)")
    box.running(run)
    for text in GARBAGE:
        (run.path / "state.json").write_bytes(text)
        if text != b'{"state": "running"}':
            assert run.state().state == "running", text
        assert box.cli("runs").returncode == 0
        if run.state().state != "running":
            break
    assert wait_for(lambda: not run.supervised() or None)
    assert run.state().state == "completed"


@case("state.json, plan.json and spec.toml of an ended run damaged in ten ways",
      "runs, show, logs and resume say so without a traceback; rm removes it")
def damaged_files_of_an_ended_run(box: Box) -> None:
    run = box.go("start(); train(2)", ranks=1)
    box.ended(run)
    wait_for(lambda: not run.supervised())
    for name in ("state.json", "plan.json", "spec.toml"):
        good = (run.path / name).read_bytes()
        for text in GARBAGE[::3] if not box.full else GARBAGE:
            (run.path / name).write_bytes(text)
            assert box.cli("runs").returncode == 0
            assert box.cli("show", run.id).returncode == 0, text
            if name != "state.json":
                assert box.cli("resume", run.id, "--set", "train.lr=x").returncode == 2
        (run.path / name).write_bytes(good)
    (run.path / "state.json").write_bytes(b"\x00")
    assert run.state().state == "lost"
    assert box.cli("runs", "rm", "--yes", run.id).returncode == 0
    assert not run.path.exists()


@case("Presets that are binary, unfinished, of wrong types, deep, or full of unknown keys",
      "exit code 2 with file and place; nothing runs, nothing is made")
def damaged_presets(box: Box) -> None:
    path = box.tmp / "p.toml"
    texts = [b"\x00\xff", b"[task", b'task = "x"', b"[task]\nuse = 1", b"a = " + b"[" * 5000,
             b"[devices]\nids = [1, 2]", b"[train]\nlr = nan\nsteps = 99999999999999999999999",
             b"[nope]\nx = 1", b'[task]\nuse = "os:system"\n[task.params]\ncommand = "touch x"',
             b'[task]\nuse = "../../x.py:Y"', b'name = "\x1b]52;c;x"\n[task]\nuse = "a:b"']
    for text in texts if box.full else texts[::2]:
        path.write_bytes(text)
        done = box.cli("run", str(path))
        assert done.returncode == 2, (text, done)
        assert done.stderr.strip()
        assert "\x1b" not in done.stderr
    assert runs.all_runs() == []


def trained(box: Box) -> runs.Run:
    """A completed run of the real worker with three checkpoints: a copy of it after the first
    case."""
    kept = box.tmp.parent / "trained"
    if kept.exists():
        shutil.copytree(kept, box.home / "runs", symlinks=True)
        (run,) = runs.all_runs()
        return run
    run = box.toy(train={"steps": 15, "checkpoint_every": 5})
    assert box.ended(run).state == "completed", logs(run)
    assert len(checkpoints(run)) == 3
    shutil.copytree(run.path, kept / run.path.name, symlinks=True)
    return run


@case("A byte flipped, a file cut short, a page of zeros, a manifest gone: the newest checkpoint",
      "resume warns, goes on from the one before, and completes")
def damaged_checkpoints(box: Box) -> None:
    run = trained(box)

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    ways = [lambda p: flip(p / "state.pt"), lambda p: os.truncate(p / "state.pt", 100),
            lambda p: (p / "state.pt").write_bytes(bytes((p / "state.pt").stat().st_size)),
            lambda p: (p / "manifest.json").unlink()]
    at = 15
    for damage in ways if box.full else ways[:1]:  # tests/training has them all
        newest = checkpoints(run)[-1]
        damage(newest)
        assert not verified(newest)
        at += 5
        done = box.cli("resume", run.id, "--set", f"train.steps={at}")
        assert done.returncode == 0, (done, logs(run))
        assert newest.name in events(run, 0, "warning")[-1]["message"]
        # The damaged checkpoint is replaced the next time that step is saved.
        assert events(run, 0, "end")[-1]["steps"] == at
        if newest.exists() and not verified(newest):
            shutil.rmtree(newest)


@case("A checkpoint that is a pickle bomb, with a manifest whose hashes are right",
      "refused; nothing in it runs")
def a_pickle_bomb(box: Box) -> None:
    import hashlib

    run = trained(box)
    canary = box.tmp / "canary"

    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch '{canary}'",)

    for newest in checkpoints(run):
        path = newest / "state.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("state/data.pkl", pickle.dumps(Bomb(), protocol=2))
            archive.writestr("state/version", "3\n")
        manifest = json.loads((newest / "manifest.json").read_text())
        data = path.read_bytes()
        manifest["files"]["state.pt"] = {"size": len(data),
                                         "sha256": hashlib.sha256(data).hexdigest()}
        (newest / "manifest.json").write_text(json.dumps(manifest))
    done = box.cli("resume", run.id, "--set", "train.steps=20")
    assert done.returncode == 1
    assert not canary.exists()
    assert run.state().state == "failed"
    assert "can't be loaded" in run.state().reason


@case("The clock jumps back an hour, and another rank's is a day ahead",
      "order is by step; completed, and every screen can be drawn")
def a_clock_that_jumps(box: Box) -> None:
    run = box.go("""
start()
for n in range(1, 6):
    jump = 86400 if rank else (-3600 if n > 2 else 0)
    tell("step", t=time.time() + jump, step=n, n=1, epoch=0, loss=1.0, losses=[1.0], lr=0.1)
    beat(step=n, since=time.time() + jump)
    time.sleep(0.05)
stepped = body.with_name("rank 1 has stepped")
if rank:
    stepped.touch()
while not stepped.exists():  # the end of rank 0 ends rank 1
    time.sleep(0.01)
tell("error", t=1.0, type="Odd", message="from long ago", traceback="")
finish("completed" if rank else "failed", 5)
""")
    state = box.ended(run)
    assert (state.state, state.cause.rank) == ("failed", 0)
    follower = Follower(run)
    follower.poll(budget=2)
    assert [v.step for v in follower.ranks.values()] == [5, 5]
    # A run from the future, as after the clock was set back, is still listed and can be removed.
    ahead = json.loads((run.path / "state.json").read_text())
    for name in ("created", "started", "ended"):
        ahead[name] += 1e6
    (run.path / "state.json").write_text(json.dumps(ahead))
    assert box.cli("runs").returncode == 0


@case("A writer was killed between temporary file and rename",
      "the next attempt removes what it left, and nobody reads it")
def left_temporary_files(box: Box) -> None:
    run = box.go("start(); train(2)", ranks=1)
    box.ended(run)
    wait_for(lambda: not run.supervised())
    old = [run.path / ".state.json.1.ab.tmp", run.path / "ranks" / ".00000.log.1.tmp"]
    for path in old:
        path.write_text("{")
        os.utime(path, (1, 1))
    assert box.cli("runs").returncode == 0
    box.patch.setenv("FAULT_BODY", str(box.tmp / "body-1.py"))
    assert box.cli("resume", run.id).returncode == 0
    assert not [p for p in old if p.exists()]


@case("An earlier attempt's error is still in the events; the next attempt dies without one",
      "the cause is the new one, not the old")
def an_old_error_is_not_blamed_again(box: Box) -> None:
    run = box.go("""
if attempt == 2:
    os._exit(9)
start()
tell("error", type="ValueError", message="of the first attempt", traceback="")
finish("failed")
""", ranks=1, train={"restarts": 1})
    state = box.ended(run)
    assert state.attempt == 2
    assert "of the first attempt" in state.attempts[0].reason
    assert "exited with 9" in state.reason


@case("The whole run folder is deleted under a running run",
      "none of its processes is left; it is gone from the list, and the next run starts")
def a_deleted_run_folder(box: Box) -> None:
    run = box.go("start(); train(every=5)", run={"grace": 2.0})
    state = box.running(run)
    shutil.rmtree(run.path, ignore_errors=True)
    shutil.rmtree(run.path, ignore_errors=True)
    os.kill(state.pid, 15)
    wait_for(lambda: not members(run))
    shutil.rmtree(run.path, ignore_errors=True)  # a rank may have written once more
    assert runs.all_runs() == []
    assert box.ended(box.go("start(); train(2)")).state == "completed"


@case("Output that is not UTF-8, with escapes, NULs and a traceback of such bytes",
      "nothing reaches the terminal that could harm it; the cause can be read")
def output_of_any_bytes(box: Box) -> None:
    run = box.go(r"""
start()
os.write(1, bytes(range(256)) * 100 + b"\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b2J\n")
os.write(2, b"Traceback (most recent call last):\n  File \"x\", line 1\nValueError: "
            b"bad \xff\xfe \x1b]0;title\x07 data\n")
os._exit(1)
""", ranks=1)
    state = box.ended(run)
    assert state.cause.type == "ValueError"
    for words in (("logs", run.id), ("show", run.id), ("runs",)):
        done = box.cli_process(*words)
        assert done.returncode == 0
        for bad in ("\x1b", "\x07", "\x9b", "\x00"):
            assert bad not in done.stdout + done.stderr


@case("A home with spaces, quotes and letters of all kinds in its path",
      "the command line launches, shows, stops and removes there")
def a_path_of_all_kinds(box: Box) -> None:
    home = box.tmp / "hö me 'quoted' \"two\" $(touch x) 日本 %s"
    box.patch.setenv("GPU_PANEL_HOME", str(home))
    text = box.tmp / "b.py"
    text.write_text("start(); train(3)")
    box.patch.setenv("FAULT_BODY", str(text))
    done = box.cli_process("run", "--devices", "cpu:0", "--json", "--set",
                           "task.use=gpu_engine.tasks.bytes_gpt:BytesGPT", "--set",
                           f"run.python={box.interpreter()}")
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout.splitlines()[-1])
    assert state["state"] == "completed"
    assert box.cli("show", state["id"]).returncode == 0
    assert [p.name for p in (home / "runs").iterdir()] == [state["id"]]
    assert not (Path.cwd() / "x").exists()


@case("A supervisor dies, and its run is resumed", "attempt 2 completes; both are on record")
def a_lost_run_is_resumed(box: Box) -> None:
    run = box.go("start(); train(40 if attempt == 1 else 3)")
    state = box.running(run)
    os.kill(state.pid, 9)
    wait_for(lambda: run.state().state == "lost" and not members(run))
    time.sleep(0.1)
    done = box.cli("resume", run.id)
    assert done.returncode == 0, done.stderr
    state = run.state()
    assert (state.state, state.attempt) == ("completed", 2)
    assert [a.outcome for a in state.attempts] == ["lost", "completed"]
