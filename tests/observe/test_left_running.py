"""A command that ends and leaves something running, as scripts with `&` at their end do."""

from __future__ import annotations

from pathlib import Path

from gpu_engine.common import procs

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
