"""Runs over machines that are reached by the system's ssh, and what can go wrong on the way."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.places.verbs import find, launch, prepare, resume, start, stop
from gpu_engine.queue import submit
from gpu_engine.queue.turns import When
from gpu_engine.remote.run import parts
from gpu_engine.runs import leftovers
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict

from ..command_line import called
from ..conftest import over, wait_for
from ..remote.run.kit import (
    DIGITS,
    ENDLESS,
    losses,
    losses_so_far,
    there,
)
from .rig import PATH, Rig, answers

emit = Path(__file__).parents[2] / "bench" / "emit.py"
pytestmark = pytest.mark.root
TWO = {"devices": {"hosts": ["gpu1:cpu:0", "gpu2:cpu:1"]}}
RECORDING = {"task": {"command": [sys.executable, "-S", "-E", str(emit), "20"]}}
"""Ranks that only record losses: training is not what is tried."""


@pytest.fixture
def hosts(home: Path, rig: Rig) -> Rig:
    """The nodes, with the interpreter that has our program."""
    home.mkdir()
    home.joinpath("hosts.toml").write_text("".join(
        f"[hosts.{n.name}]\npython = \"{sys.executable}\"\n" for n in rig.nodes))
    return rig


def many(run: Run, rank: int, more: int = 1) -> bool:
    """Whether the rank has recorded `more` losses. Fails once the run has ended."""
    state = run.state()
    assert state.live or state.state == "lost", state
    return run.events(rank).exists() and len(losses_so_far(run.path, rank)) >= more


def goes_on(run: Run) -> None:
    """Wait until both ranks' losses here are more than now."""
    now = [len(losses_so_far(run.path, rank)) for rank in (0, 1)]
    for rank in (0, 1):
        wait_for(lambda rank=rank: many(run, rank, now[rank] + 3))


def same_here_and_there(run: Run) -> None:
    for rank, host in enumerate(("gpu1", "gpu2")):
        for name in (f"ranks/{rank:05d}.jsonl", f"ranks/{rank:05d}.log"):
            written = (there(run, host) / name).read_bytes()
            if written or name.endswith(".jsonl"):  # an empty log is not mirrored
                assert (run.path / name).read_bytes() == written


def nothing_left(rig: Rig) -> None:
    for node in rig.nodes[:2]:
        wait_for(lambda node=node: not [a for a in node.processes().values() if "gpu_engine" in a])


def test_two_machines_whose_time_is_up_stop_at_the_same_step_and_have_completed(hosts: Rig):
    run = launch(from_dict(ENDLESS | TWO | {"run": {"limit": 2.0}}))
    wait_for(lambda: run.state().until)
    state = over(run)
    assert (state.state, state.exit_code) == ("completed", 0), state
    assert state.reason == f"time was up after 00:02 at step {len(losses(run.path, 0))}"
    assert len(losses(run.path, 0)) == len(losses(run.path, 1))
    nothing_left(hosts)


@pytest.mark.parametrize("launcher", ["direct", "torchrun", "its own"])
def test_an_own_script_meets_over_gloo_though_its_hosts_name_is_loopback(
        hosts: Rig, tmp_path: Path, launcher: str):
    script = tmp_path / "all_reduce.py"
    script.write_text("import torch, torch.distributed as dist\n"
                      "dist.init_process_group('gloo')\n"
                      "x = torch.ones(1)\ndist.all_reduce(x)\n"
                      "import os; print('sum', x.item(), os.environ['HF_HOME'], flush=True)\n"
                      # Who leaves with something unread resets the others' connections, and gloo's
                      # threads abort an interpreter that ends before they release `x` (ddp.py).
                      "dist.monitored_barrier()\nos._exit(0)\n")
    own = ["-m", "torch.distributed.run", "--nnodes", "{nodes}", "--node-rank", "{node_rank}",
           "--master-addr", "{master_addr}", "--master-port", "{master_port}"]
    told = {"launcher": launcher, "timeout": 120.0} if launcher != "its own" else {}
    run = launch(from_dict(TWO | {
        "task": {"command": [sys.executable, *(() if told else own), str(script)]},
        "run": {"env": {"HF_HOME": "/data/hf"}}, "parallel": told}))
    assert over(run).state == "completed", run.state()
    for rank in (0, 1):
        assert "sum 2.0 /data/hf" in run.output(rank).read_text()
    nothing_left(hosts)


def test_broken_connections_change_nothing_and_a_machine_that_reboots_ends_all(hosts: Rig):
    """One channel killed, all killed, a cable pulled for five seconds, the process here killed:
    training goes on, and so does the mirror. Then a power cut: the cause names the machine, and
    the run resumes."""
    second = hosts.nodes[1]
    run = launch(from_dict(ENDLESS | TWO))
    wait_for(lambda: many(run, 0) and many(run, 1))
    second.end_connections()
    goes_on(run)
    for node in hosts.nodes:
        node.end_connections()
    goes_on(run)
    second.cut()
    time.sleep(5)  # the length of the cut is what is tried
    second.mend()
    goes_on(run)
    os.kill(run.state().pid or 0, signal.SIGKILL)
    wait_for(lambda: not run.supervised())
    find(run.id)
    goes_on(run)
    assert run.state().live
    assert run.state().attempt == 1

    second.reboot()
    state = over(run)
    assert state.state == "failed", state
    assert state.cause is not None
    assert state.cause.host == "gpu2"
    assert "the machine was restarted" in state.cause.message, state
    nothing_left(hosts)
    done = max(len(losses(run.path, 0)), 1)
    resume(run, [f"train.steps={done + 40}"])
    assert over(run).state == "completed", run.state()
    nothing_left(hosts)


@pytest.mark.skipif(shutil.which("nft", path=PATH) is None, reason="needs nft (nftables)")
def test_a_line_that_loses_packets_and_is_slow_loses_no_event(hosts: Rig):
    """A tenth of them in each direction, 200 ms there and back: the check before the launch, the
    ranks' own events, a stop."""
    second = hosts.nodes[1]
    second.lose(10)
    hosts.write_config(delays={"gpu2": 0.1})
    run = launch(from_dict(RECORDING | TWO))
    wait_for(lambda: many(run, 0) and many(run, 1))
    goes_on(run)
    wait_for(lambda: second.lost() > 10)
    goes_on(run)
    run.stop()
    assert over(run).state == "stopped"
    same_here_and_there(run)
    nothing_left(hosts)


def test_a_cable_that_is_pulled_for_good_ends_both_sides(hosts: Rig):
    """After parallel.timeout, though neither hears of the other's end."""
    second = hosts.nodes[1]
    run = launch(from_dict(ENDLESS | TWO | {"parallel": {"timeout": 20.0}}))
    wait_for(lambda: many(run, 0) and many(run, 1))
    sides = [Run(there(run, host)) for host in ("gpu1", "gpu2")]
    second.cut()
    for side in sides:
        cause = over(side).cause
        assert cause is not None
        assert cause.type == "PeerLost"
    wait_for(lambda: not [a for a in second.processes().values() if "worker" in a])
    second.mend()
    state = over(run)
    assert state.state == "failed"
    assert state.cause is not None
    assert state.cause.host in ("gpu1", "gpu2")
    assert "can't be reached" in state.cause.message  # by the other rank, or from here
    nothing_left(hosts)


def test_a_stop_ends_the_run_here_and_another_one_reaches_who_could_not_be_reached(hosts: Rig):
    """Though nobody has noticed that the cable is pulled."""
    second = hosts.nodes[1]
    run = launch(from_dict(RECORDING | TWO))
    wait_for(lambda: many(run, 0) and many(run, 1))
    second.cut()
    run.stop()
    state = over(run)
    assert (state.state, state.unheard) == ("stopped", ()), state
    assert state.reason == (f"gpu2 can't be reached: what runs there goes on until gpu-engine stop "
                            f"{run.id} reaches it")
    far = Run(there(run, "gpu2"))
    assert far.state().state == "running"
    with pytest.raises(UserError, match="gpu2"):
        stop(run)
    for words in (("logs", run.id, "-n", "1"), ("export", run.id, "--to", "csv", "-o",
                   str(run.path.parents[1] / "x.csv"))):
        assert "warning: gpu2 was away when the run ended: what it has of rank 1 since " \
            in called(*words).stderr
    assert f"gpu-engine stop {run.id}  # fetches it" in called("show", run.id).stdout
    second.mend()
    wait_for(lambda: answers(second.address))  # the kernel asks who has it anew
    stop(run)
    assert over(far).state == "stopped", far.state()
    assert run.state().reason is None
    wait_for(lambda: not find(run.id).state().warnings)  # whoever looks has it fetched
    same_here_and_there(run)
    nothing_left(hosts)


def test_one_of_several_machines_is_taken_whatever_is_wrong_with_the_others(hosts: Rig):
    """A run waits though nobody answers when it is submitted; at once and from the queue, a
    machine whose disk is full is passed by; and one that is cut off when it is told to start."""
    first, second, _ = hosts.nodes
    asked = from_dict(RECORDING | {"devices": {"hosts": ["gpu1", "gpu2"], "pick": 1}})
    for node in (first, second):
        node.cut()
    waits = submit.submit(asked, When())
    wait_for(lambda: "gpu1 is away" in (waits.state().reason or ""))
    (first.home / ".local").mkdir()
    first.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(first.home / ".local")])
    for node in (first, second):
        node.mend()
    wait_for(lambda: waits.state().state == "running")
    at_once = launch(asked)
    first.run(["umount", str(first.home / ".local")])
    wait_for(lambda: at_once.state().state == "running")
    for run in (waits, at_once):
        assert [p.host for p in parts.read(run.path)] == ["gpu2"], run.state()
        assert "gpu1: no space left" in run.require_plan().chosen
        run.stop()
        assert over(run).state == "stopped", run.state()

    planned = prepare(asked)
    assert [p.host for p in planned.parts] == ["gpu1"]
    first.cut()
    run = start(planned)
    wait_for(lambda: run.state().state == "running")
    assert [p.host for p in parts.read(run.path)] == ["gpu2"]
    run.stop()
    assert over(run).state == "stopped", run.state()
    nothing_left(hosts)


def test_a_machine_that_can_not_be_reached_is_told_as_that(hosts: Rig):
    """Its ranks go on, and look still from here."""
    second = hosts.nodes[1]
    run = launch(from_dict(RECORDING | TWO))
    wait_for(lambda: many(run, 0) and many(run, 1))
    second.stop_sshd()
    second.end_connections()
    wait_for(lambda: "gpu2 has not been reached since" in (run.state().reason or ""))
    assert parts.read(run.path)[1].problem
    assert run.state().unheard == (1,)
    said = called("show", run.id).stdout
    assert "at its last heartbeat" in said
    assert "stuck" not in said
    second.start_sshd()
    wait_for(lambda: not run.state().unheard)
    goes_on(run)
    run.stop()
    assert over(run).state == "stopped"
    same_here_and_there(run)
    nothing_left(hosts)


def test_a_disk_that_gets_full_there_is_told_with_what_is_not_saved(hosts: Rig):
    first = hosts.nodes[0]
    kept = first.home / ".local"
    kept.mkdir()
    first.run(["mount", "-t", "tmpfs", "-o", "size=256m", "none", str(kept)])
    run = launch(from_dict(ENDLESS | TWO))
    wait_for(lambda: leftovers.last_checkpoint(run.path))
    first.run(["mount", "-o", "remount,size=1m", str(kept)])
    wait_for(lambda: run.state().unheard == (0,))
    said = run.state().reason or ""
    assert said.startswith("gpu1: no space left, so nothing is recorded of the ranks"), said
    assert "no checkpoint can be written there, the last is step-" in said, said
    assert "make room in" in said
    first.run(["mount", "-o", "remount,size=256m", str(kept)])
    wait_for(lambda: not run.state().unheard)
    run.stop()
    assert over(run).state == "stopped", run.state()
    nothing_left(hosts)


def test_restarts_wait_for_a_machine_that_reboots(hosts: Rig):
    second = hosts.nodes[1]
    run = launch(from_dict(ENDLESS | TWO | {
        "parallel": {"timeout": 20.0},
        "train": ENDLESS["train"] | {"restarts": 1}}))
    wait_for(lambda: many(run, 0) and many(run, 1))
    second.off()
    wait_for(lambda: "waits for its hosts" in (run.state().reason or ""))
    assert run.state().state == "starting"
    assert "gpu2" in (run.state().reason or "")
    second.boot()
    wait_for(lambda: run.state().attempt == 2 and run.state().state == "running")
    goes_on(run)
    run.stop()
    assert over(run).state == "stopped"
    nothing_left(hosts)


def test_restarts_outlive_a_reboot_of_the_one_machine_of_a_run(hosts: Rig):
    first = hosts.nodes[0]
    run = launch(from_dict(ENDLESS | {"devices": {"hosts": ["gpu1:cpu:0"]},
                                      "train": ENDLESS["train"] | {"restarts": 1}}))
    wait_for(lambda: many(run, 0))
    first.reboot()
    wait_for(lambda: run.state().attempt == 2 and run.state().state == "running")
    now = len(losses_so_far(run.path, 0))
    wait_for(lambda: many(run, 0, now + 3))
    run.stop()
    assert over(run).state == "stopped"
    nothing_left(hosts)


def test_a_supervisor_that_is_killed_there_ends_all_and_is_the_cause(hosts: Rig):
    run = launch(from_dict(RECORDING | TWO))
    wait_for(lambda: many(run, 0) and many(run, 1))
    first = hosts.nodes[0]
    holding = [pid for pid, args in first.processes().items() if "gpu_engine.supervisor" in args]
    # The second of the two is the supervisor, the first its guard.
    first.run(["kill", "-9", str(max(holding))])
    state = over(run)
    assert state.state == "failed"
    assert state.cause is not None
    assert (state.cause.host, state.cause.rank) == ("gpu1", None), state.cause
    nothing_left(hosts)


def test_who_can_not_be_reached_is_told_with_what_to_do(hosts: Rig, home: Path):
    first, second, third = hosts.nodes
    second.change_key()
    third.start_sshd("AuthorizedKeysFile /dev/null")
    with pytest.raises(SpecError) as caught:
        prepare(from_dict(DIGITS | {"devices": {"hosts": [
            "gpu1:cpu:0", "gpu2:cpu:0", "gpu3:cpu:0", "nowhere:cpu:0"]}}))
    said = {p.value: p.message for p in caught.value.problems}
    assert set(said) == {"gpu2", "gpu3", "nowhere"}
    assert "host key" in said["gpu2"]
    assert f"ssh-keygen -R {second.address}" in said["gpu2"]
    assert "ssh-copy-id gpu3" in said["gpu3"]
    assert "no host of that name" in said["nowhere"]
    first.cut()
    with pytest.raises(SpecError, match=r"gpu1.*(no answer|no way to it)"):
        prepare(from_dict(DIGITS | {"devices": {"hosts": ["gpu1:cpu:0"]}}))
    assert not list(home.glob("runs/*"))


@pytest.mark.parametrize("length", [49, 50])
def test_a_home_of_any_length_reaches_its_hosts(hosts: Rig, monkeypatch, length: int):
    """ssh's socket below it may have a path of 107 characters, of which ssh adds 58."""
    with tempfile.TemporaryDirectory(prefix="h") as folder:
        home = Path(folder, "h" * (length - len(f"{folder}//ssh")))
        home.mkdir()
        home.joinpath("hosts.toml").write_text(f'[hosts.gpu1]\npython = "{sys.executable}"\n')
        monkeypatch.setenv("GPU_PANEL_HOME", str(home))
        assert len(str(home / "ssh")) == length
        prepared = prepare(from_dict(DIGITS | {"devices": {"hosts": ["gpu1:cpu:0"]}}))
        assert prepared.plan.ranks[0].host == "gpu1"
        assert (length <= 49) == any((home / "ssh").glob("*")), "connections are shared"
        hosts.nodes[0].end_connections()


def test_a_port_that_is_closed_between_machines_is_named(hosts: Rig):
    first = hosts.nodes[0]
    closed = first.run(["sh", "-c", "iptables -A INPUT -p tcp --dport 29511 -j DROP 2>/dev/null || "
                        "ip route add blackhole " + hosts.nodes[1].address], check=False)
    assert closed.returncode == 0, closed
    with pytest.raises(SpecError) as caught:
        prepare(from_dict(DIGITS | TWO | {"parallel": {"master_port": 29511}}))
    first.run(["sh", "-c", "iptables -F; ip route del blackhole " + hosts.nodes[1].address],
              check=False)
    assert [p.key for p in caught.value.problems] == ["parallel.master_addr"]
    assert "gpu2 can't reach gpu1" in caught.value.problems[0].message
    assert first.address in caught.value.problems[0].message


@pytest.mark.parametrize("bashrc", [
    "", "echo welcome; echo '{\"id\":1}'; printf 'no newline: '\n",
    "read -p 'Which modules? ' which; read again"], ids=["plain", "noisy", "asks"])
def test_whatever_the_login_shell_prints_and_reads(hosts: Rig, bashrc: str, home: Path):
    (hosts.nodes[0].home / ".bashrc").write_text(bashrc)
    prepared = prepare(from_dict(DIGITS | {"devices": {"hosts": ["gpu1:cpu:0"]}}))
    assert prepared.plan.ranks[0].host == "gpu1"
