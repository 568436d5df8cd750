"""A command that ends and leaves something running, as scripts with `&` at their end do."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace

from gpu_engine.common import procs
from gpu_engine.observe import identity, recorder

from .kit import PYTHON, SCRIPTS, Ran, engine_run


def shell(folder: Path, text: str) -> tuple[str, ...]:
    script = folder / "run.sh"
    script.write_text(text)
    return "bash", str(script)


def test_what_would_run_for_ever_beside_it_is_ended_and_named(home, tmp_path):
    run, state = engine_run("--devices", "cpu:0", "--", *shell(
        tmp_path, f"sleep 1000 & echo $! > {tmp_path}/pid\n{PYTHON} {SCRIPTS}/plain.py\n"))
    assert state["state"] == "completed"
    pid = int((tmp_path / "pid").read_text())
    assert procs.start_ticks(pid) is None
    (told,) = Ran(run, state, None).of("warning")
    assert told["message"] == f"what the command has left running was ended with it: " \
                              f"sleep (pid {pid})"


def test_a_training_in_the_background_that_has_not_begun_fails_the_run(home, tmp_path):
    _, state = engine_run("--devices", "cpu:0", "--", *shell(
        tmp_path, f"{PYTHON} -c 'open(\"{tmp_path}/on\", \"w\"); import time; time.sleep(1000)' &\n"
                  f"until [ -e {tmp_path}/on ]; do sleep 0.05; done\n"))
    assert state["state"] == "failed"
    assert "has ended and left running python" in state["reason"]
    assert "end with wait" in state["reason"]


def test_a_supervisor_that_was_not_seen_for_a_moment_ends_nobody(monkeypatch):
    clock, killed = SimpleNamespace(now=0.0), []
    seen = iter([True, False, True, False, False, False])
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(recorder, "time", clock)
    monkeypatch.setattr(recorder.procs, "alive", lambda pid, ticks: next(seen))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(number))
    line = recorder.Lifeline(7, 8)
    for _ in range(5):
        line.check()
        clock.now += 1.1
    assert killed == []
    line.check()
    assert killed == [signal.SIGKILL]


def test_who_looks_for_the_holder_of_a_rank_does_not_claim_it(tmp_path):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/00000.jsonl").touch()
    first, second, third = (recorder.Claim(tmp_path / "ranks/00000.jsonl") for _ in range(3))
    assert first.acquire()
    assert not second.acquire()
    assert second.held_by_another()
    os.close(first._file.descriptor())  # by the script
    assert not first.held_by_another()
    assert not third.acquire()
    first.release()
    assert not second.held_by_another()
    assert third.acquire()


def test_a_rank_has_the_device_that_it_uses_else_that_of_its_place(monkeypatch):
    monkeypatch.setenv("GPU_PANEL_DEVICES", "GPU 4;GPU 6")
    second, third = (identity.Identity(rank, 4, rank, 0) for rank in (1, 2))
    assert identity.device_labels(second, None) == ("GPU 6",)
    assert identity.device_labels(second, 0) == ("GPU 4",)
    assert identity.device_labels(third, None) == ("?",)
    assert identity.device_labels(identity.Identity(0, 1, None, 0), 1) == ("GPU 4", "GPU 6")
