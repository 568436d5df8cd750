"""Runs over two hosts, for real: started, mirrored, taken up again, stopped, resumed, ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.common.procs import environment
from gpu_engine.events.reader import backwards
from gpu_engine.events.schema import Schedule, Start
from gpu_engine.notify import journal
from gpu_engine.places.verbs import find, launch, prepare, resume
from gpu_engine.runs.folder import Run, all_runs
from gpu_engine.spec.read import from_dict
from tests.command_line import called
from tests.conftest import over, wait_for
from tests.notify.endpoint import endpoint, private

from .kit import (
    CUT,
    DIGITS,
    ENDLESS,
    PACED,
    TWO_HERE,
    left,
    losses,
    losses_here,
    losses_so_far,
    make_hosts,
    pids,
    there,
)

TWO = {"devices": {"hosts": ["a:cpu:0", "b:cpu:1"]}}


def stepped(run: Run, rank: int) -> bool:
    path = run.events(rank)
    return path.exists() and b'"losses"' in path.read_bytes()


def same_here_and_there(run: Run) -> None:
    for rank, host in enumerate("ab"):
        name = f"ranks/{rank:05d}.jsonl"
        assert (run.path / name).read_bytes() == (there(run, host) / name).read_bytes()


def folders(run: Run):
    return [run.path, *(there(run, host) for host in ("a", "b"))]


@pytest.fixture
def hosts(home):
    make_hosts(home, "a", "b", script=CUT)
    return home


def test_two_hosts_with_a_rank_each_train_as_one_with_two(hosts, tmp_path):
    """To the bit, and what is here of each is what is there. Whoever is to be told of it is told
    once, though the hosts know the address too. Then it goes on, with the first host as before, and
    though its part on the other was removed, while its checkpoints are there."""
    def removed_but_from(host):
        (cut := tmp_path / f"{host}.cut").touch()
        assert called("runs", "rm", "--yes", both.id).returncode == 1
        cut.unlink()

    with endpoint(200) as told:
        files = [folder / "notify.toml" for folder in (hosts, tmp_path / "a", tmp_path / "b")]
        for file in files:
            private(file, f'[[to]]\nkind = "json"\nurl = "{told.url}"\n')
        both = launch(from_dict(DIGITS | TWO))
        plain = launch(from_dict({"task": {"command": ["true"]}, "devices": {"ids": ["cpu:0"]}}))
        for run in (both, plain):
            assert over(run).state == "completed", run.state()
            wait_for(lambda run=run: journal.read(run.path))
        assert {got.json["run"]: (got.json["on"], got.json["step"]) for got in told.got} == {
            both.id: (["a", "b"], 6), plain.id: ([], None)}
        assert not any((there(both, host) / journal.FILE).exists() for host in "ab")
        for file in files:
            file.unlink()
    assert len(told.got) == 2
    before = [losses(both.path, rank) for rank in (0, 1)]
    assert before == losses_here(tmp_path / "two", TWO_HERE)
    for rank, host in enumerate("ab"):
        assert len(before[rank]) == 6
        for name in (f"ranks/{rank:05d}.jsonl", f"ranks/{rank:05d}.log"):
            assert (both.path / name).read_bytes() == (there(both, host) / name).read_bytes()
        assert (both.path / f"hosts/{host}.log").read_bytes() \
            == (there(both, host) / "supervisor.log").read_bytes()
    plan = both.require_plan()
    assert [(r.rank, r.host) for r in plan.ranks] == [(0, "a"), (1, "b")]
    assert (plan.mode, plan.world_size, plan.batch.per_gpu) == ("multinode", 2, 16)
    assert not left(*folders(both))

    with pytest.raises(SpecError, match="are on a, which has to stay the first host"):
        resume(both, ["devices.hosts=b:cpu:0,a:cpu:1", "train.steps=9"])
    removed_but_from("a")
    resume(both, ["train.steps=9"])
    assert over(both).state == "completed", both.state()
    for rank in (0, 1):
        assert losses(both.path, rank)[:6] == before[rank]
        assert len(losses(both.path, rank)) == 9
    removed_but_from("b")
    with pytest.raises(UserError, match="its checkpoints were removed from a"):
        resume(both, ["train.steps=12"])
    assert called("runs", "rm", "--yes", both.id).returncode == 0


def test_ranks_on_hosts_trace_their_next_steps_and_a_host_says_whose_they_are(
        whole_torch, hosts, tmp_path, monkeypatch):
    run = launch(from_dict(ENDLESS | TWO))
    wait_for(lambda: stepped(run, 0) and stepped(run, 1))
    done = called("trace", run.id, "--steps", "1", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank, (host, one) in enumerate(zip("ab", json.loads(done.stdout), strict=True)):
        assert (one["rank"], one["problem"]) == (rank, None)
        name, _, path = one["path"].partition(":")
        assert (name, Path(path).parent) == (host, there(run, host) / "traces")
        assert Path(path).stat().st_size
    with monkeypatch.context() as at_b:  # its user looks
        at_b.setenv("GPU_PANEL_HOME", str(tmp_path / "b"))
        part = there(run, "b").name
        listed, used = called("runs").stdout, called("usage", "--by", "run").stdout
        words = listed.splitlines()[1].split()
        assert words[:4] == [part, "running", run.id, socket.gethostname()]
        assert f"{run.id} of {socket.gethostname()}" in used
        assert f"is part of run {run.id}" in called("stop", part).stderr
    assert run.state().live
    (tmp_path / "b.cut").touch()
    done = called("trace", run.id, "--rank", "1")
    assert (done.returncode, "rank 1: b: " in done.stdout) == (1, True), done.stdout
    run.stop(now=True)
    (tmp_path / "b.cut").unlink()
    over(run)


def test_a_killed_mirror_is_taken_up_once_and_loses_nothing(hosts):
    """By whichever command comes next, of several at a time, and by a `run` that follows it; then
    stopped, saved and resumed, until a rank is killed on one host, which ends both and is the
    cause."""
    follows = subprocess.Popen(
        [sys.executable, "-m", "gpu_engine", "run", "--json",
         *(word for key in (f"task.use={PACED}", "batch.size=32", "train.steps=1000000",
                            "train.workers=0", "train.checkpoint_every=20",
                            "devices.hosts=a:cpu:0,b:cpu:1") for word in ("--set", key))],
        stdout=subprocess.PIPE, text=True)
    run = wait_for(lambda: next(iter(all_runs()), None))
    wait_for(lambda: stepped(run, 0) and stepped(run, 1))
    first = run.state().pid
    os.kill(first or 0, signal.SIGKILL)
    wait_for(lambda: run.state().live and run.state().pid not in (None, first))
    second = run.state().pid
    os.kill(second or 0, signal.SIGKILL)
    wait_for(lambda: not run.supervised() or run.state().pid != second)  # `run` may be quicker
    size = run.events(0).stat().st_size
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: find(run.id), range(4)))
    wait_for(lambda: run.events(0).stat().st_size > size)
    assert run.state().live
    argv = [b"-P", b"-m", b"gpu_engine.remote.run", os.fsencode(run.path)]
    holding = [pid for pid in pids() if _arguments(pid)[1:5] == argv]
    assert holding == [run.state().pid]
    run.stop()
    assert over(run).state == "stopped"
    assert json.loads(follows.communicate()[0].splitlines()[-1])["state"] == "stopped"
    same_here_and_there(run)
    steps = len(losses(run.path, 0))
    assert not left(*folders(run))
    resume(run)
    wait_for(lambda: all(len(losses_so_far(run.path, rank)) > steps for rank in (0, 1)))
    start = next(backwards(run.events(1), Start))
    os.kill(start.pid or 0, signal.SIGKILL)
    state = over(run)
    assert (state.state, bool(state.cause), bool(state.reason)) == ("failed", True, True)
    assert (state.cause.rank, state.cause.host) == (1, "b")
    assert "SIGKILL" in state.cause.message
    assert state.reason.startswith("rank 1 on b: ")
    assert not left(*folders(run))
    same_here_and_there(run)
    for rank in (0, 1):
        assert next(backwards(run.events(rank), Schedule)).first_step == steps
    out = hosts / "weights.safetensors"
    export = [sys.executable, "-m", "gpu_engine", "export", run.id, str(out)]
    refused = subprocess.run(export, capture_output=True, text=True)
    assert f"scp -r a:{there(run, 'a')}/checkpoints/step-" in refused.stderr
    shutil.copytree(there(run, "a") / "checkpoints", run.path / "checkpoints", dirs_exist_ok=True)
    subprocess.run(export, check=True)
    assert out.stat().st_size > 1000


def test_a_killed_mirror_is_not_told_as_a_lost_run(hosts):
    """Where nobody gives a command: whoever tells of the run has it mirrored again."""
    with endpoint(200) as told:
        private(hosts / "notify.toml", f'[[to]]\nkind = "json"\nurl = "{told.url}"\n')
        run = launch(from_dict(ENDLESS | {"devices": {"hosts": ["a:cpu:0"]}}))
        wait_for(lambda: stepped(run, 0))
        first = run.state().pid
        os.kill(first or 0, signal.SIGKILL)
        wait_for(lambda: run.state().live and run.state().pid not in (None, first))
        size = run.events(0).stat().st_size
        wait_for(lambda: run.events(0).stat().st_size > size)
        run.stop()
        assert over(run).state == "stopped"
        wait_for(lambda: not any(os.fsencode(run.path) in _arguments(p) for p in pids()))
    assert not told.got, "that somebody has stopped it is not told"


def test_everything_that_is_wrong_is_named_before_anything_starts(hosts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()  # by it two names are known for one machine, if it is there for both
    text = (hosts / "hosts.toml").read_text()
    (hosts / "hosts.toml").write_text(
        text + f'[hosts.twin]\nvia = ["env", "GPU_PANEL_HOME={tmp_path / "a"}"]\n'
        f'python = "{sys.executable}"\n[hosts.none]\nvia = ["/no/such/program"]\n'
        '[hosts.bare]\nvia = ["env"]\npython = "/no/such/python"\n')

    def said(hosts, **more):
        with pytest.raises(SpecError) as caught:
            prepare(from_dict(DIGITS | {"devices": {"hosts": hosts}} | more))
        return {(p.key, p.value): p.message for p in caught.value.problems}

    found = said(["a:cpu:0", "none:cpu:0", "bare:cpu:0", "twin:cpu:0"])
    assert "can't be started" in found["devices.hosts", "none"]
    assert "/no/such/python" in found["devices.hosts", "bare"]
    assert "same machine as a" in found["devices.hosts", "twin"]
    found = said(["a:cpu:77", "b:cpu:0"])
    assert "no such device" in found["devices.hosts", "a:cpu:77"]
    found = said(["a:cpu:0", "b:cpu:0"], run={"python": "/no/such/python"})
    assert "b: there is no such interpreter" in found["run.python", "/no/such/python"]
    found = said(["a:cpu:0", "b:cpu:0"], parallel={"mode": "dp"})
    assert "multinode" in found["parallel.mode", "dp"]
    assert not list((tmp_path / "a").glob("runs/*"))


def _arguments(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            return file.read().split(b"\0")
    except OSError:
        return []


def test_the_connection_between_hosts_is_tried_without_training(hosts):
    done = subprocess.run([sys.executable, "-m", "gpu_engine", "check", "--json", "--set",
                           "task.use=gpu_engine.tasks.digits:Digits", "--set",
                           "devices.hosts=a:cpu:0,b:cpu:1"], capture_output=True, text=True)
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    assert said["ok"], done
    assert sorted(r["rank"] for r in said["ranks"]) == [0, 1]
    assert {r["ranks"] for r in said["reductions"]} == {2}
    assert not list((hosts / "runs").iterdir())
    for place in (hosts.parent / "a", hosts.parent / "b"):
        assert not list((place / "parts").iterdir())


def test_a_launcher_of_ones_own_that_is_told_of_both_machines_trains_in_one_world(hosts, tmp_path):
    """Two ranks on each of two hosts; rank r's loss is (w - r)², so that w follows from all four.
    Every rank is seen, and a stop ends all."""
    (script := tmp_path / "world.py").write_text(WORLD)
    run = launch(from_dict({
        "devices": {"hosts": ["a:cpu:0,cpu:1", "b:cpu:0,cpu:1"]}, "task": {"command": [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "{nodes}", "--node-rank",
            "{node_rank}", "--master-addr", "{master_addr}", "--master-port", "{master_port}",
            "--nproc-per-node", "2", str(script)]}}))
    wait_for(lambda: all(stepped(run, rank) for rank in range(4)) or not run.state().live)
    assert run.state().state == "running", run.state()
    assert (run.require_plan().mode, run.require_plan().world_size) == ("multinode", 4)
    assert called("stop", run.id).returncode == 0
    state = over(run)
    assert state.state == "stopped", state
    w = [0.0]
    for _ in range(3):
        w.append(w[-1] - 0.1 * 2 * (w[-1] - 1.5))
    for rank in range(4):
        assert losses(run.path, rank)[:4] == pytest.approx([(at - rank) ** 2 for at in w], abs=1e-4)
        start = next(backwards(run.events(rank), Start))
        assert (start.world_size, start.node) == (4, rank // 2)
        assert f"rank {rank} of 4" in run.output(rank).read_text()
    assert not left(*folders(run))


WORLD = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("rank", rank, "of", dist.get_world_size(), flush=True)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
model = torch.nn.parallel.DistributedDataParallel(model)
descent = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    descent.zero_grad()
    (model(torch.ones(1, 1)) - rank).square().mean().backward()
    descent.step()
    time.sleep(0.05)
"""


DEAF = [sys.executable, "-c", """
import signal, time
for n in (signal.SIGINT, signal.SIGTERM):
    signal.signal(n, lambda n, _: print(n, flush=True))
print("up", flush=True)
while True: time.sleep(0.1)
"""]


def test_a_second_stop_is_sigterm_there_and_one_at_once_reaches_who_was_away(hosts, tmp_path):
    """Though each had been told of the stop before."""
    run = launch(from_dict({"task": {"command": DEAF},
                            "parallel": {"mode": "ddp"}, "run": {"grace": 600.0},
                            "devices": {"hosts": ["a:cpu:0", "b:cpu:1"]}}))
    far, said = [there(run, name) for name in ("a", "b")], "up"
    for told in ("", "2", "15"):
        said = f"{said} {told}".strip()
        wait_for(lambda said=said: all(run.log(r).exists() and run.log(r).read_text().split()
                                       == said.split() for r in (0, 1)))
        if told != "15":
            run.stop()
    (tmp_path / "b.cut").touch()
    for pid in pids():
        if b"follow" in _arguments(pid) and os.fsencode(far[1].name) in _arguments(pid):
            os.kill(pid, signal.SIGKILL)
    done = called("stop", run.id, "--now")
    assert (done.returncode, run.state().reason) == (1, (
        f"b can't be reached: what runs there goes on until gpu-engine stop {run.id} reaches it"))
    done = called("stop", run.id, "--now")
    assert (done.returncode, "b: " in done.stderr) == (1, True)
    assert Run(far[1]).state().live
    (tmp_path / "b.cut").unlink()
    assert called("stop", run.id, "--now").returncode == 0
    assert over(Run(far[1])).reason == "the ranks were killed at once, as was asked"
    assert not left(*folders(run))


def test_one_host_that_was_told_and_then_is_away_is_told_more(hosts, tmp_path):
    run = launch(from_dict({"task": {"command": DEAF}, "run": {"grace": 600.0},
                            "devices": {"hosts": ["a:cpu:0"]}}))
    far = Run(there(run, "a"))
    # "running" is said before the script has its handlers, and SIGINT would end it there.
    wait_for(lambda: run.log(0).exists() and run.log(0).read_text() == "up\n")
    run.stop()
    wait_for(lambda: far.state().state == "stopping")
    (tmp_path / "a.cut").touch()
    for pid in pids():
        if b"follow" in _arguments(pid) and os.fsencode(far.id) in _arguments(pid):
            os.kill(pid, signal.SIGKILL)
    assert over(run).state == "stopped"
    assert called("stop", run.id, "--now").returncode == 1
    assert run.state().reason.startswith("a can't be reached: what runs there goes on until")
    (tmp_path / "a.cut").unlink()
    assert called("stop", run.id, "--now").returncode == 0
    assert over(far).state == "stopped"


def test_a_way_that_hangs_ends_with_the_process_that_tried_it(home, tmp_path):
    make_hosts(home, "a", script='[ -e "$GPU_PANEL_HOME.cut" ] && sleep 600; exec "$@"')
    run = launch(from_dict({"task": {"command": ["sleep", "500"]},
                            "devices": {"hosts": ["a:cpu:0"]}}))
    far = Run(there(run, "a"))
    wait_for(lambda: run.state().state == "running")
    (tmp_path / "a.cut").touch()
    for pid in pids():
        if b"follow" in _arguments(pid) and os.fsencode(far.id) in _arguments(pid):
            os.kill(pid, signal.SIGKILL)

    home_there = f"GPU_PANEL_HOME={tmp_path / 'a'}".encode()

    def hang() -> bool:
        with suppress(OSError):  # one that is gone just now
            return any(home_there in environment(pid) for pid in pids()
                       if _arguments(pid) == [b"sleep", b"600", b""])
        return False

    wait_for(hang)
    run.stop()
    assert over(run).state == "stopped"
    wait_for(lambda: not hang())
    (tmp_path / "a.cut").unlink()
    assert called("stop", run.id, "--now").returncode == 0
    over(far)
