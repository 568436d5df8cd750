"""The supervisor, on real processes that need no torch: states, causes, stops, nothing left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from gpu_engine.common import procs
from gpu_engine.events.paths import events_path
from gpu_engine.places.verbs import launch
from gpu_engine.runs import folder as runs
from gpu_engine.runs.create import create_run
from gpu_engine.spec.read import from_dict
from gpu_engine.supervisor.children import Child, descendants
from gpu_engine.supervisor.stopping import Stopping

from ..conftest import over, patience, slots, wait_for
from ..faults.kit import Box

SCRIPT = """
import os, signal, subprocess, sys, time
rank = os.environ.get("RANK", "0")
print("hello from", rank, flush=True)
def wait(): time.sleep(120)
"""


@pytest.fixture
def go(home, tmp_path):
    """Launch a script's text as a DDP run of two ranks over made-up slots."""

    def start(body: str, *, ranks: int = 2, **sections) -> runs.Run:
        script = tmp_path / "script with spaces ü.py"
        script.write_text(SCRIPT + body)
        cores = sorted(os.sched_getaffinity(0))
        data = {"task": {"command": [sys.executable, str(script)]},
                "devices": {"ids": [f"cpu:{i}" for i in range(ranks)]},
                "parallel": {"mode": "ddp"}} | sections
        inventory = slots(ranks)
        object.__setattr__(inventory, "devices", tuple(
            _on(d, cores[i % len(cores)]) for i, d in enumerate(inventory.devices)))
        return launch(from_dict(data), inventory=inventory)

    return start


def _on(device, core):
    from dataclasses import replace

    return replace(device, cores=(core,))


def running(run: runs.Run) -> runs.State:
    return wait_for(lambda: (s := run.state()).state == "running"
                    and all(run.log(p.rank).stat().st_size for p in s.processes) and s)


def none_left(state: runs.State) -> None:
    wait_for(lambda: not any(procs.alive(p.pid, p.ticks) for p in state.processes))


def test_ranks_that_all_end_well_complete_the_run(go):
    run = go("sys.exit(0)")
    state = over(run)
    assert (state.state, state.exit_code, state.cause) == ("completed", 0, None)
    assert [p.exit for p in state.processes] == [0, 0]
    assert run.log(1).read_text() == "hello from 1\n"
    assert state.started <= state.ended
    wait_for(lambda: not run.supervised())
    assert {str(p.relative_to(run.path)) for p in run.path.rglob("*") if p.is_file()} >= {
        "spec.toml", "plan.json", "state.json", "lock", "supervisor.log", "ranks/00000.log",
        "ranks/00001.log"}


def test_another_stop_signal_reaches_the_ranks_and_not_what_they_started(go):
    run = go(run={"stop_signal": "SIGTERM"}, body="""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
def stop(*_):
    print("asked; child alive:", child.poll() is None, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
wait()
""")
    running(run)
    wait_for(lambda: all(b"ready" in run.log(r).read_bytes() for r in (0, 1)))
    below = descendants(run.state().pid)
    assert len(below) == 4
    run.stop()
    state = over(run)
    assert (state.state, state.exit_code) == ("stopped", 130)
    for rank in (0, 1):
        assert "asked; child alive: True" in run.log(rank).read_text()
    assert not [p for p in below if procs.start_ticks(p)]


GOES_ON = """
def heard(number, frame):
    print(signal.Signals(number).name, flush=True)
signal.signal(signal.SIGINT, heard)
signal.signal(signal.SIGTERM, heard)
print("up", flush=True)
while True: time.sleep(1)
"""


@pytest.mark.parametrize("writes", [False, True])
def test_a_stop_is_sigint_then_sigterm_and_sigkill_after_the_grace(go, tmp_path, writes):
    """Or after grace_most, where it writes more than a mebibyte a second, which is how a script
    that saves looks."""
    run = go(GOES_ON.replace("time.sleep(1)", f"""
    with open({str(tmp_path / "w")!r} + os.environ["RANK"], "wb", 0) as file:
        file.write(os.urandom(1 << 20))
    time.sleep(0.1)""" if writes else "time.sleep(1)"), run={"grace": 1.0, "grace_most": 2.0})
    running(run)
    wait_for(lambda: all(b"up" in run.log(r).read_bytes() for r in (0, 1)))
    run.stop()
    if writes:
        said = wait_for(lambda: (s := run.state()).reason and s)
        assert said.state == "stopping"
        assert said.reason.startswith(
            "its ranks still write to disk, as in saving, and may finish it beyond run.grace = 1 "
            "s, for 00:02 at most (run.grace_most); ")
    state = over(run)
    assert state.state == "stopped"
    assert "did not stop in time" in state.reason
    for rank in (0, 1):
        assert run.log(rank).read_text().split()[-3:] == ["up", "SIGINT", "SIGTERM"]
    none_left(state)


def test_a_second_stop_sends_sigterm_at_once(go):
    run = go(GOES_ON.replace("heard)\nprint", "signal.SIG_DFL)\nprint"))
    running(run)
    for name in (b"up", b"SIGINT"):
        wait_for(lambda name=name: all(name in run.log(r).read_bytes() for r in (0, 1)))
        run.stop()
    state = over(run)
    assert [p.exit for p in state.processes] == [-signal.SIGTERM] * 2
    assert state.reason == "its ranks got SIGTERM as it was stopped a second time: what they had " \
        "not saved is lost"


def test_a_shell_that_is_held_at_a_stop_is_told_and_starts_nothing_more(tmp_path):
    """What ignores SIGINT gets SIGTERM, and what reads its output none, as it has its end to show.
    """
    shell = subprocess.Popen(["sh", "-c", "trap '' INT; trap 'touch told; exit' TERM; "
                              "sleep 600 | cat; touch next"], cwd=tmp_path, start_new_session=True)
    child = Child((0,), "rank", shell.pid, procs.start_ticks(shell.pid), shell)
    stop = Stopping(signal.SIGINT)
    try:
        below = wait_for(lambda: (found := {procs.program(pid): pid for pid in descendants(
            shell.pid)}).keys() == {"sleep", "cat"} and found)
        wait_for(lambda: stop.advance([child], {}) or shell.poll() is not None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert [pid for pid, _ in stop.signalled] == [below["sleep"]]
    assert [path.name for path in tmp_path.iterdir()] == ["told"]


def test_a_stop_that_nobody_commanded_says_where_it_came_from(go):
    run = go("wait()")
    pid = running(run).pid
    shell = subprocess.Popen(["sh", "-c", f"kill -TERM {pid}; read x"], stdin=subprocess.PIPE)
    try:
        state = over(run)
        assert state.state == "stopped"
        assert state.reason == f"asked to stop by a signal from sh (pid {shell.pid})"
    finally:
        shell.communicate()


def test_orphans_of_a_rank_are_ended_too(go):
    run = go("""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("orphan", os.getpid(), flush=True)
        os.execvp("sleep", ["sleep", "120"])
    os._exit(0)
os.wait()
while b"orphan" not in open(os.environ["GPU_PANEL_RUN"] + f"/ranks/0000{rank}.log", "rb").read():
    time.sleep(0.01)
""")
    state = over(run)
    assert state.state == "completed"
    orphans = [int(line.split()[1]) for r in (0, 1) for line in run.log(r).read_text().splitlines()
               if line.startswith("orphan")]
    assert len(orphans) == 2
    assert not [p for p in orphans if procs.start_ticks(p)]
    told = run.events(0).read_text()
    assert "running was ended with it: " in told
    assert all(f"sleep (pid {p})" in told for p in orphans)


def supervised(plan, change):
    """The run of this plan, ended, under a supervisor with this `change`."""
    run, lock = create_run("test", "", plan)
    os.close(lock)
    code = ("import sys; from pathlib import Path; from gpu_engine.runs.folder import Run; "
            f"from gpu_engine.supervisor import supervise; {change}; "
            "supervise.Supervisor(Run(Path(sys.argv[1])), 0o22).supervise()")
    subprocess.run([sys.executable, "-c", code, str(run.path)], check=True, timeout=patience())
    return run


def test_memory_that_others_lacked_before_is_not_blamed(home, tmp_path, monkeypatch):
    made = Box(home, tmp_path, monkeypatch).prepared("start()\nos.kill(os.getpid(), 9)", ranks=1)
    run = supervised(made.plan, "supervise.oom_kills = lambda: 7")
    assert "not for lack of memory" in run.state().cause.message


@pytest.mark.parametrize(("said", "state"), [(True, "completed"), (False, "failed")])
def test_a_rank_that_has_completed_may_end_slowly(home, tmp_path, monkeypatch, said, state):
    """With an upload at its end, for example. One that has not completed is ended."""
    made = Box(home, tmp_path, monkeypatch).prepared(f"""
start()
meet()
if rank == 1 or {said}:
    tell("end", outcome="completed", steps=1, seconds=1.0)
if rank == 0:
    time.sleep({3 if said else 600})
    tell("warning", message="uploaded")
""")
    run = supervised(made.plan, "supervise.LINGER = 0.2")
    assert run.state().state == state
    assert ("still running" in (run.state().reason or "")) == (not said)
    assert ("uploaded" in events_path(run.path, 0).read_text()) == said


def test_a_deleted_working_directory_is_named(go, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    import shutil

    real = os.getcwd
    monkeypatch.setattr(os, "getcwd", lambda: str(gone))
    shutil.rmtree(gone)
    run = go("sys.exit(0)")
    monkeypatch.setattr(os, "getcwd", real)
    state = over(run)
    assert state.state == "failed"
    assert str(gone) in state.cause.message


def test_binary_output_and_plenty_of_it_blocks_nobody(go):
    run = go("sys.stdout.buffer.write(bytes(range(256)) * 40_000)", ranks=1,
             parallel={"mode": "single"})
    assert over(run).state == "completed"
    assert run.log(0).stat().st_size > 10_000_000


def test_a_script_may_make_itself_a_process_group(go):
    """As in a shell it leads one already, and no session; and what it sends to all of its group
    reaches nobody else."""
    run = go("""
os.setpgrp()
print("leads", os.getpgrp() == os.getpid() != os.getsid(0), flush=True)
child = subprocess.Popen(["sleep", "120"])
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
os.killpg(0, signal.SIGTERM)
child.wait()
""")
    state = over(run)
    assert state.state == "completed", state.reason
    for rank in (0, 1):
        assert run.log(rank).read_text() == f"hello from {rank}\nleads True\nheard\n"


def test_each_rank_of_a_task_leads_a_session(home, tmp_path, monkeypatch):
    """On busy cores Linux gives each session its share, and a run one for each of its ranks."""
    made = Box(home, tmp_path, monkeypatch).prepared(
        "start()\nassert os.getsid(0) == os.getpid()\ntell('end', outcome='completed', steps=1, "
        "seconds=1.0)")
    assert supervised(made.plan, "pass").state().state == "completed"


def test_a_pid_that_ended_is_not_signalled_nor_who_took_it_over():
    process = subprocess.Popen(["sleep", "100"])
    try:
        ticks = procs.start_ticks(process.pid)
        assert not procs.send(process.pid, ticks + 1, signal.SIGKILL)  # another with its pid
        assert not procs.send(process.pid, ticks, signal.SIGKILL, lambda pid: False)
        assert process.poll() is None
        assert procs.send(process.pid, ticks, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
        assert not procs.send(process.pid, ticks, signal.SIGKILL)
    finally:
        process.kill()
