"""Every text of every file of a run folder, and of a person's own files, holds what a terminal
would obey. Every command that shows them prints none of it."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_engine.queue import serve
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job, notes, sweep, waiting
from gpu_engine.runs.create import create_run
from gpu_engine.runs.state import AttemptRecord, Cause, RankProcess, State

from .. import event_lines
from ..command_line import called
from ..plans import plan

BAD = ("MARK\x1b]52;c;QQ==\x07\x1b]0;title\x1b\\\x1b[2J\x1b[3;4H\x1b[31m\x1bP$qm\x1b\\\x1b[c"
       "\x1b]8;;http://x\x07\x9b2J\x9d0;t\x9c\x1b_x\x1b\\\x9b6n\u202ea\u2066b\u200f\x7f\x00\x08"
       "\x1b\U000e0041[bold]")
KEPT = {"state", "sweep", "mode", "device_type", "source", "backend", "kind", "boot", "after",
        "host", "meaning", "rule"}
"""Fields whose text decides what is read at all."""


def poisoned(value: Any, key: str = "") -> Any:
    """With all texts in it followed by BAD."""
    if isinstance(value, str):
        return value if key in KEPT else value + BAD
    if isinstance(value, dict):
        return {k: poisoned(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(v, key) for v in value]
    return value


def poison(path: Path) -> None:
    """All texts of a JSON file, or of each line of one."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] \
        if path.suffix == ".jsonl" else [json.loads(path.read_text())]
    path.write_text("".join(json.dumps(poisoned(one)) + "\n" for one in lines))


def events(run: runs.Run, rank: int) -> None:
    """All kinds of them, with bad names of values too."""
    now = time.time()
    for kind, fields in {
        "start": {"rank": rank, "local_rank": rank, "node": 0, "pid": 1, "started": 1,
                  "world_size": 2, "device": ["CPU"]},
        "schedule": {"total_steps": 9, "steps_per_epoch": 3, "epochs": 3, "examples": 9,
                     "dropped": 0, "batch": 3},
        "step": {"step": 3, "n": 3, "loss": 1.0, "losses": [1.0, 1.0, 1.0], "lr": 0.1, "epoch": 0,
                 "skipped": 0, "others": {"1": {"name": "adam", "step": 3, "n": 3, "loss": 1.0}}},
        "metric": {"step": 3, "m" + BAD: 1.0},
        "eval": {"step": 3, "e" + BAD: 1.0},
        "checkpoint": {"step": 3, "path": "checkpoints/3", "seconds": 1.0, "bytes": 9},
        "phase": {"phase": "data", "since": now, "step": 3, "detail": "waits"},
        "warning": {"message": "careful"},
        "error": {"type": "ValueError", "message": "wrong", "traceback": "File x", "phase": "data",
                  "step": 3},
        "end": {"outcome": "failed", "steps": 3, "seconds": 2.0}}.items():
        event_lines.append(run.events(rank), event_lines.line(kind, poisoned(fields, kind), t=now))


def hostile(state: str = "failed", member: int = 1) -> runs.Run:
    """A run folder of which every text is bad."""
    spec = {"name": "toy", "task": {"command": ["python", "train.py", "a"]}}
    run, lock = create_run("toy", '[train]\nsteps = 9\n', plan(
        spec=spec, lines=("python train.py",), warnings=("careful",)))
    os.close(lock)
    now = time.time()
    (run.path / "ranks").mkdir(exist_ok=True)
    for rank in (0, 1):
        events(run, rank)
        run.log(rank).write_text(f"loss 3{BAD}\n{BAD}\r{BAD}\n")
    (run.path / f"node1{BAD}.log".replace("\0", "").replace("/", "")).write_text(BAD)
    (run.path / "supervisor.log").write_text(BAD)
    attempts = (AttemptRecord(1, now, now, "failed", "why", ("batch.size=3",)),
                AttemptRecord(2, now, now, "failed", "why", ("batch.size=4",)))
    run.write_state(State(
        state, run.id, "toy", now, now, None if state == "queued" else now + 3, 2,
        reason="a reason", attempts=attempts, changed=("batch.size=4",),
        processes=(RankProcess(0, 1, 1),) if state == "failed" else (),
        cause=Cause("wrong", 0, "ValueError", "File x\n  line") if state == "failed" else None))
    notes.change(run.path, lambda old: replace(old, name="own", note="note\nmore", tags=("tag",)))
    sweep.write(run.path, sweep.Member("s1", "sweep", member, 2, now, {"batch.size": str(member)}))
    if state != "queued":
        job.write(run.path, job.Job(7, "FAILED", "reason", nodes="n1", words="words",
                                    doubt="doubt", ended=now))
    (run.path / "environment.json").write_text(json.dumps(
        {"python": "3.11", "torch": "2.9", "host": "h", "commit": "c", "packages": {"a": "1"}}))
    (run.path / "hosts").mkdir()
    (run.path / "hosts" / "gpu1.json").write_text(json.dumps(
        {"host": {"name": "gpu1"}, "node": 0, "ranks": [0], "spec": {}, "folders": ["f"],
         "key": "k", "path": "/p", "state": "failed"}))
    (run.path / "notify.log").write_text(
        f"2026-11-22 14:03:11\tfailed 2\tphone{BAD}\tno answer{BAD}\n")
    if state == "queued":
        waiting.write(run.path, waiting.Entry(
            submitted=now, number=1, host=socket.gethostname(), ids=("cpu:0",)))
        waiting.enter(run.path)
    for path in run.path.rglob("*.json*"):
        if path.parent.name != "ranks":
            poison(path)
    state_now = State.from_dict(json.loads((run.path / "state.json").read_text()))
    assert state_now is not None
    assert BAD in state_now.name
    assert run.plan() is not None
    return run


def harmless(done: Any) -> str:
    """What was printed. Fails if a terminal would obey any of it."""
    text = done.stdout + done.stderr
    obeyed = {c for c in text if not c.isprintable() and c not in "\n\t"}
    assert not obeyed, (done.args, obeyed, text)
    assert "Traceback (most" not in done.stderr, done.stderr
    return text


@pytest.fixture
def alone(home, monkeypatch):
    monkeypatch.setattr(serve, "ensure", lambda *more: None)


@pytest.fixture
def three(home, alone) -> dict[str, runs.Run]:
    return {"failed": hostile(), "completed": hostile("completed", 2),
            "queued": hostile("queued", 3)}


SHOWN = ["runs", "runs --json", "runs --filter toy", "show failed", "show queued", "logs failed",
         "logs failed --supervisor", "compare failed completed",
         "compare failed completed --markdown", "note failed", "note failed --json",
         "show failed --json", "compare failed completed --json", "queue", "queue --json", "sweep",
         "sweep s1", "sweep s1 --json", "stop failed", "stacks failed",
         "resume failed", "resume completed", "export failed x.pt", "runs rm queued",
         "runs prune --keep 0"]


@pytest.mark.parametrize("words", SHOWN)
def test_run_folders(three, words):
    (three["failed"].path.parent / "a\x1b]52;c;QQ==\x07").mkdir()
    text = harmless(called(*(three[word].id if word in three else word for word in words.split())))
    if words in ("runs", "runs --json", "show failed", "logs failed", "queue",
                 "compare failed completed", "compare failed completed --markdown", "note failed",
                 "sweep s1", "logs failed --supervisor", "show failed --json"):
        assert "MARK" in text


def test_files_that_are_made_of_them(three, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, two = three["failed"].id, three["completed"].id
    for words in (["report", one, "-o", "r.html"], ["report", one, two, "-o", "two.html"],
                  ["export", one, "--to", "csv", "-o", "r.csv"]):
        done = called(*words)
        harmless(done)
        assert done.returncode == 0, done.stderr
    for name in ("r.html", "two.html", "r.csv"):
        text = (tmp_path / name).read_text()
        assert "MARK" in text
        assert not {c for c in text if not c.isprintable() and c not in "\n\t"}, name


def test_a_command_in_a_plan_is_shown_whole_and_harmless(home, alone):
    text = harmless(called("plan", "--devices", "cpu:0", "--", "python", "-c", "pass\x1b]52;c\x07"))
    assert r"$'pass\033]52;c\007'" in text
    harmless(called("plan", "--devices", "cpu:0", "--json", "--", "python", "x\x9b\u202e"))


def escaped_toml(text: str) -> str:
    return json.dumps(text.replace("\U000e0041", ""))


def test_presets(home, alone, tmp_path):
    bad = escaped_toml(BAD)
    (home / "presets").mkdir(parents=True)
    (home / "presets" / "evil.toml").write_text(
        f'name = {bad}\ndescription = {bad}\n[task]\ncommand = ["python", {bad}]\n'
        f'[parallel]\nmaster_addr = {bad}\n')
    (home / "presets" / "broken.toml").write_text(f'[{bad}]\n{bad} = {bad}\n[amp]\ndtype = {bad}\n')
    for words in ("presets", "presets --json", "presets evil", "presets evil --json",
                  "presets broken", "plan evil", "plan broken", "run broken", "run evil"):
        text = harmless(called(*words.split()))
        assert "MARK" in text, words
    shown = harmless(called("presets", "evil"))
    assert r"\u001b]52;c;QQ==\u0007" in shown  # whole, for a person who looks


def test_own_files(home, alone):
    bad = escaped_toml(BAD)
    home.mkdir()
    for name, text in {
        "hosts.toml": f'[gpu1]\nssh = "gpu1"\nlabel = {bad}\nfolder = {bad}\npython = {bad}\n',
        "notify.toml": f'[phone]\ncommand = ["x", {bad}]\n',
        "settings.toml": f'[panel]\ntheme = {bad}\n{bad} = 3\n'}.items():
        (home / name).write_text(text)
        for words in ("hosts", "hosts --json", "notify", "notify --json", "settings",
                      "settings --json", "doctor", "runs", "hosts check gpu1"):
            harmless(called(*words.split()))
        (home / name).unlink()


def test_a_task(home, alone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(
        f'from dataclasses import dataclass\n\n@dataclass\nclass T:\n    {BAD!a}\n'
        f'    a: int = 3\n    {BAD!a}\n    b: str = {BAD!a}\n')
    for words in ("describe t.py:T", "describe t.py:T --json"):
        done = called(*words.split())
        assert "MARK" in harmless(done), done.stderr


def test_answers_to_a_shell(three, monkeypatch):
    home = three["failed"].path.parent.parent
    for at, name in enumerate(("evil\nplain,evil", "evil\x1b]52;c;QQ==\x07", "$(evil)", "evil;evil",
                               "-evil", "evil*", "~evil", "evil evil")):
        (home / "runs" / name).mkdir()
        (home / "runs" / f"aaa{at}").mkdir()
        (home / "runs" / f"aaa{at}" / "sweep.json").write_text(json.dumps({"sweep": name}))
    (home / "notify.toml").write_text(f'[[to]]\nname = {escaped_toml(BAD)}\nkind = "command"\n'
                                      'command = ["x"]\n')
    seen = ""
    for line in ("show ", "run ", "sweep ", "stop ", "notify --test ", "logs ", "plan "):
        for shell in ("bash", "zsh", "fish"):
            monkeypatch.setenv("_GPU_ENGINE_COMPLETE", f"{shell}_complete")
            monkeypatch.setenv("COMP_WORDS", f"gpu-engine {line}")
            monkeypatch.setenv("COMP_CWORD", "" if shell == "fish" else str(1 + len(line.split())))
            seen += harmless(called())
    assert three["failed"].id in seen
    assert "evil" not in seen
