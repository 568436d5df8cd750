"""What a run folder says of itself is not acted on: docs/trust.md."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from dataclasses import asdict

import pytest

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import write_json
from gpu_engine.common.paths import queue_folder
from gpu_engine.launching import ask_torch
from gpu_engine.places import verbs
from gpu_engine.places.verbs import launch, resume
from gpu_engine.queue import serve
from gpu_engine.remote.run import parts
from gpu_engine.runs import folder, notes, sweep, trust, waiting
from gpu_engine.runs import job as jobs
from gpu_engine.runs.create import create_run
from gpu_engine.runs.folder import Run
from gpu_engine.slurm import commands, watch

from ..command_line import called
from ..conftest import over
from ..odd_runs import ended
from ..queue import kit


def received(run: Run, name="5e4d") -> Run:
    """`run` as somebody who unpacks it has it: the folder was copied into the runs."""
    target = Run(run.path.with_name(name))
    shutil.copytree(run.path, target.path)
    target.path.chmod(0o700)
    return target


def test_a_list_outside_of_the_folders_says_what_was_started_here(home):
    run = ended()
    assert trust.started_here(run.path)
    other = received(run)
    assert not trust.started_here(other.path)
    shutil.rmtree(run.path)  # and another folder in its place
    shutil.copytree(other.path, run.path.with_name("new"))
    run.path.with_name("new").rename(run.path)
    run.path.chmod(0o700)
    assert not trust.started_here(run.path)
    run.remove()
    assert not (home / "started" / run.id).exists()


@pytest.mark.parametrize("words", [["resume"], ["runs", "rm", "--yes"]], ids=str)
def test_no_command_contacts_a_host_that_only_a_folder_names(home, tmp_path, words):
    marker, run = tmp_path / "marker", received(ended())
    state = json.loads((run.path / "state.json").read_text())
    write_json(run.path / "state.json", state | {
        "state": "running", "ended": None, "exit_code": None, "boot": procs.boot_id()})
    parts.write(run.path, parts.Part(host="evil", node=0, ranks=(0,), spec={}, folders=("~",),
                                     key="k", run="1af1", path="/there"))
    (home / "hosts.toml").write_text(f'[hosts.evil]\nvia = ["sh", "-c", "touch {marker}"]\n')
    called(*words, run.id)
    assert not marker.exists()
    assert not verbs.look(run)


def test_a_host_is_what_hosts_toml_says_now(home):
    run, lock = create_run("t", "", folder.LaunchPlan.from_dict(
        json.loads((ended().path / "plan.json").read_text())))
    os.close(lock)
    part = parts.Part(host="b", node=0, ranks=(0,), spec={}, folders=(), key="k")
    parts.write(run.path, part)
    assert parts.host_of(run.path, part).destination == "b"
    (home / "hosts.toml").write_text('[hosts.b]\nssh = "me@10.0.0.8"\n')
    assert parts.host_of(run.path, part).destination == "me@10.0.0.8"
    assert "10.0.0.8" not in (run.path / "hosts/b.json").read_text()


def test_stop_signals_no_process_that_the_kernel_does_not_give_to_the_run(home):
    run = ended()
    with subprocess.Popen(["sleep", "600"]) as other, (run.path / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # by somebody who is not that process
        state = json.loads((run.path / "state.json").read_text())
        named = {"pid": other.pid, "ticks": procs.start_ticks(other.pid)}
        write_json(run.path / "state.json", state | named | {
            "state": "running", "ended": None, "exit_code": None, "boot": procs.boot_id(),
            "processes": [{"rank": 0} | named]})
        for now in (False, True):
            with pytest.raises(UserError, match="its supervisor is no process that is seen here"):
                run.stop(now=now)
        assert other.poll() is None, "a process that is no part of the run was signalled"
        other.kill()


def test_a_link_in_place_of_the_lock_makes_no_process_part_of_a_run(home, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.touch()
    run = received(ended())
    with theirs.open("a") as file, subprocess.Popen(["sleep", "600"], stdout=file) as process:
        for link in (os.link, os.symlink):
            (run.path / "lock").unlink()
            link(theirs, run.path / "lock")
            assert not trust.belongs(process.pid, run.path)
        process.kill()


@pytest.mark.parametrize("change", ["mode", "owner"])
def test_a_folder_that_is_not_ours_alone_is_only_shown(change):
    run = ended()
    if change == "mode":
        run.path.chmod(0o777)
    else:
        if os.geteuid() != 0:
            pytest.fail("the suite runs as root where it tries owners")
        os.chown(run.path, 12345, 12345)
    assert run.state().state == "completed"
    assert called("show", run.id).returncode == 0
    assert "only shown" in called("runs").stdout
    for act in (run.stop, lambda: resume(run), lambda: notes.change(run.path, lambda old: old)):
        with pytest.raises(UserError, match="is only shown"):
            act()
    if change == "owner":
        with pytest.raises(UserError, match="is only shown"):
            run.remove()
    else:
        run.remove()


def test_slurm_is_neither_asked_nor_told_because_of_a_folder(monkeypatch):
    asked: list[object] = []
    for name in ("jobs", "finished", "cancel", "call"):
        monkeypatch.setattr(commands, name, lambda *a, **k: asked.append(a) or {})
    ours = ended()
    run = received(ours)
    jobs.write(run.path, jobs.Job(41007))
    jobs.ask_to_stop(run.path)
    watch.refresh(at_once=True)
    assert called("stop", run.id).returncode == 2
    assert asked == []
    jobs.write(ours.path, jobs.Job(41008))
    watch.refresh(at_once=True)
    assert asked


def test_export_starts_no_interpreter_that_a_folder_names(tmp_path, monkeypatch):
    marker, evil = tmp_path / "marker", tmp_path / "python"
    evil.write_text(f"#!/bin/sh\ntouch {marker}\n")
    evil.chmod(0o755)
    run = ended()
    data = json.loads((run.path / "plan.json").read_text())
    data["spec"]["run"] = {"python": str(evil)}
    data["cwd"] = str(tmp_path)
    write_json(run.path / "plan.json", data)
    (run.checkpoints / "step-00000005").mkdir(parents=True)
    said = called("export", run.id, str(tmp_path / "w.pt"))
    assert said.returncode == 2
    assert not marker.exists()
    monkeypatch.setattr(ask_torch.choose, "current", lambda: ask_torch.choose.Chosen(None, ""))
    said = called("export", run.id, str(tmp_path / "w.pt"))
    assert f"--python PATH names one; the run's own is said to be {evil}" in said.stderr
    called("export", run.id, str(tmp_path / "w.pt"), "--python", str(evil))
    assert marker.exists()  # the person's own choice


def test_without_torch_here_no_checkpoint_is_brought_from_a_host(tmp_path, monkeypatch):
    run = ended()
    parts.write(run.path, parts.Part(host="nowhere", node=0, ranks=(0,), spec={}, folders=("~",),
                                     key="key/0", run="ab12"))
    monkeypatch.setattr(ask_torch.choose, "current", lambda: ask_torch.choose.Chosen(None, ""))
    said = called("export", run.id, str(tmp_path / "w.pt"))
    assert "--python PATH names one" in said.stderr
    assert "w.txt: the end of its name" in called("export", run.id, str(tmp_path / "w.txt")).stderr


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "s1/../../x", "s1\0", ".", "S1"])
def test_no_file_is_named_after_a_sweep_that_a_folder_made_up(name):
    run = ended()
    write_json(run.path / "sweep.json", asdict(sweep.Member(name, "n", 1, 1, 0.0)))
    assert sweep.read(run.path) is None
    assert called("sweep", name.replace("\0", "")).returncode == 2
    waiting.write(run.path, waiting.Entry(submitted=1.0, number=1.0, host="h", sweep=name))
    assert waiting.read(run.path) is None
    (run.path / waiting.FILE).unlink()
    write_json(run.path / "sweep.json", asdict(sweep.Member("s3f2a", "n", 1, 1, 0.0)))
    assert sweep.read(run.path) is not None


def test_a_received_run_that_waits_is_moved_by_nobody():
    run = received(kit.queue("true", begin=False))
    with pytest.raises(UserError, match="not started from here"):
        serve.move(run, "first")
    assert run.id not in waiting.ids(queue_folder())


def test_a_received_run_that_a_person_resumes_is_theirs_from_then_on():
    run = received(wait_over(launch(kit.spec("true"))))
    assert not trust.started_here(run.path)
    resume(run)
    assert trust.started_here(run.path)
    assert wait_over(run).state().attempt == 2


def wait_over(run: Run) -> Run:
    over(run)
    return run
