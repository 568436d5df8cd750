"""Runs that wait for devices of any of several machines: `a`, `b` and `local` have three GPUs of a
stand-in driver each, and homes of their own; `away` does not answer."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.devices import leases
from gpu_engine.devices.discover import discover
from gpu_engine.places.verbs import find, launch
from gpu_engine.queue import serve, submit
from gpu_engine.queue.turns import When
from gpu_engine.remote.reach import hosts
from gpu_engine.remote.run import parts
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import apply_sets, from_dict

from ..command_line import called
from ..conftest import wait_for
from ..devices.conftest import as_this_machine, standin, standin_library  # noqa: F401
from ..remote.run.kit import make_hosts
from .kit import over, queue, reason, state

EMIT = (sys.executable, "-S", "-E", str(Path(__file__).parents[2] / "bench" / "emit.py"), "20")
SHOW = ("sh", "-c", "echo $GPU_PANEL_RUN $CUDA_VISIBLE_DEVICES")
BETWEEN = Path(__file__).with_name("between.py")


@pytest.fixture
def machines(as_this_machine, home, line):  # noqa: F811
    if shutil.which("cc") is None:
        pytest.skip("no compiler")
    as_this_machine("count 3", "gpu * util 0")
    make_hosts(home, "a", "b", script=f'exec {sys.executable} -S -E {BETWEEN} "$@"')
    known = home / "hosts.toml"
    known.write_text(known.read_text().replace("python =", 'groups = ["lab"]\npython =')
                     + '[hosts.away]\nvia = ["false"]\n')
    return home.parent


@contextlib.contextmanager
def happens(machines: Path, host: str, what: str = "away"):
    """On the way to this host, as between.py has it."""
    file = machines / f"{host}.does"
    file.write_text(what)
    yield
    file.unlink()


def held(home: Path, *indices: int) -> leases.Leases:
    devices = discover().devices
    return leases.acquire(home / "leases", [devices[i] for i in indices], "77aa", share=False)


def spec(*command: str, count: int | None = 2, hosts: str | list[str] = "any", **more):
    return from_dict({"name": "t", "task": {"command": list(command)},
                      "devices": {"hosts": [hosts] if isinstance(hosts, str) else hosts}
                      | ({"pick": count} if count else {}),
                      "parallel": {"mode": "ddp" if count != 1 else "single"}} | more)


def host(run: Run) -> str:
    return wait_for(lambda: next((p.host for p in parts.read(run.path) if p.run), ""))


def test_a_run_waits_until_one_machine_has_enough_and_starts_on_the_freest(machines, home):
    with held(home, 0, 1), held(machines / "a", 1, 2):
        with held(machines / "b", 0, 1):
            run = submit.submit(spec(*SHOW), When())
            # A machine that is away is passed over and said.
            wait_for(lambda: reason(run).startswith(
                "waits for any 2 GPUs of any host: a: 1 of 3 free; b: 1 of 3 free; "
                "local: 1 of 3 free; away is away: "))
        over(run)
    assert state(run) == "completed", reason(run)
    assert host(run) == "b"
    assert run.output(0).read_text().endswith(" 0,1\n")
    assert run.require_plan().chosen.startswith(
        "on b: GPU 0, GPU 1: the freest of 4 machines; away is away: ")
    assert not list((machines / "a").glob("parts/*"))  # nobody else was told anything


def test_they_start_in_their_order_each_where_there_is_room(machines, home):
    """A sweep, from the command line; those behind do not ask the machines."""
    with held(home, 0, 1, 2), held(machines / "a", 1, 2):
        said = called("run", "--queue", "-n", "2", "--set", "devices.hosts=a,b", "--set",
                      "parallel.mode=ddp", "--grid", "run.grace=7,8", "--", *EMIT)
        assert said.returncode == 0, said.stderr
        first, second = [w.run for w in serve.line()]
        wait_for(lambda: state(first) == "running")
        assert host(first) == "b"
        wait_for(lambda: reason(second).startswith("waits for any 2 GPUs on a or b: a: 1 of 3"))
        first.stop()
        over(first)
        wait_for(lambda: state(second) == "running")
        assert host(second) == "b"
        second.stop()
        over(second)


def test_what_waits_on_a_machine_goes_first_there(machines, home):
    os.environ["GPU_PANEL_HOME"] = str(machines / "b")
    with held(machines / "b", 0):
        there = submit.submit(from_dict({"name": "t", "task": {"command": ["true"]},
                                         "devices": {"ids": ["0"]}}), When())
        os.environ["GPU_PANEL_HOME"] = str(home)
        run = submit.submit(spec(*SHOW, hosts="b"), When())
        wait_for(lambda: "a run waits on b, and what waits there goes first" in reason(run))
    over(there, run)
    assert (state(there), state(run)) == ("completed", "completed"), reason(run)


def test_who_takes_the_devices_meanwhile_has_it_wait_on_and_start_elsewhere(machines, home):
    with held(home, 0, 1, 2), held(machines / "b", 0):
        with happens(machines, "a", "hold start"):
            run = submit.submit(spec(*SHOW), When())
            wait_for(lambda: parts.read(run.path))  # it was checked, and is about to be started
            taken = held(machines / "a", 0, 1)
        with taken:
            over(run)
    assert "a: could not start it: devices.ids = \"0\": GPU 0 is held by run 77aa" \
        in run.require_plan().chosen
    assert state(run) == "completed", reason(run)
    assert host(run) == "b"
    assert not list((machines / "a").glob("parts/*"))


def test_a_process_that_is_killed_while_it_starts_leaves_one_run_that_goes_on(machines, home):
    with held(home, 0, 1, 2), held(machines / "b", 0, 1):
        with happens(machines, "a", "hold start"):
            run = submit.submit(spec(*EMIT), When())
            wait_for(lambda: parts.read(run.path))
            os.kill(run.state().pid, signal.SIGKILL)
            wait_for(lambda: not run.supervised())
        assert state(run) == "queued"
        serve.ensure()
        wait_for(lambda: state(run) == "running")
        assert len(list((machines / "a").glob("parts/*"))) == 1
        run.stop()
        over(run)
        assert state(run) == "stopped", reason(run)


def queued(asked) -> Run:
    return submit.submit(asked, When())


@pytest.mark.parametrize(("begin", "what", "why"), [
    (launch, "cut check", "a: the connection broke"),
    (launch, "away after check", "a is away: its shell ended with 255"),  # by then it is
    (queued, "cut hello", "a: the connection broke"),
    (queued, "cut send code", "a: the code could not be sent: the connection broke"),
    (queued, "away after check", "a is away: its shell ended with 255")])
def test_what_fails_before_ranks_start_has_the_next_machine_taken(
        machines, home, begin, what, why, monkeypatch):
    (project := machines / "project").mkdir()
    monkeypatch.chdir(project)
    subprocess.run(["git", "init", "-q"], check=True)
    (project / "train.sh").write_text("echo trained")
    with held(machines / "b", 0), happens(machines, "a", what):
        run = begin(spec("sh", "train.sh", hosts="@lab", run={"sync": "send"}))
        over(run)
    assert (state(run), host(run)) == ("completed", "b"), reason(run)
    assert why in run.require_plan().chosen
    assert not list((machines / "a").glob("parts/*"))
    assert run.output(0).read_text() == "trained\n"


def test_who_may_have_begun_it_is_asked_until_it_answers_and_nobody_else_takes_it(machines, home):
    """Though the process that holds the run is killed meanwhile."""
    with held(machines / "b", 0):
        with happens(machines, "a", "mute start"):
            run = submit.submit(spec(*EMIT, hosts="@lab"), When())
            wait_for(lambda: reason(run) == "a may have begun it, and is asked until it answers: "
                     "its shell ended with 255 before it ran anything; look at what it starts with "
                     "there (~/.bashrc): " + shlex.join((*hosts.find("a").via, "true")))
            os.kill(run.state().pid, signal.SIGKILL)
            wait_for(lambda: not run.supervised())
            serve.ensure()
            wait_for(lambda: run.supervised() and reason(run).startswith("a may have begun it"))
        wait_for(lambda: state(run) == "running")
    assert [p.host for p in parts.read(run.path)] == ["a"]
    assert [len(list((machines / name).glob("parts/*"))) for name in "ab"] == [1, 0]
    run.stop()
    over(run)
    assert state(run) == "stopped", reason(run)


def test_a_stop_reaches_who_may_have_begun_it(machines, home):
    with held(machines / "b", 0):
        with happens(machines, "a", "mute start"):
            run = launch(spec(*EMIT, hosts="@lab"))
            wait_for(lambda: reason(run).startswith("a may have begun it"))
            assert called("stop", run.id).returncode == 1  # it may go on
        there = Run(next((machines / "a").glob("parts/*")))
        assert (state(run), state(there)) == ("stopped", "running")
        assert reason(run).startswith("a can't be reached: what runs there goes on until")
        assert called("stop", run.id).returncode == 0
        over(there)
    assert (state(there), reason(run)) == ("stopped", "")
    wait_for(lambda: not find(run.id).state().warnings)  # what it has is fetched, by its key
    assert run.events(0).read_bytes() == there.events(0).read_bytes()


def test_where_nobody_takes_it_each_one_s_reason_is_told(machines, home):
    with happens(machines, "a", "cut check"), happens(machines, "b", "cut hello"), \
            pytest.raises(UserError, match="2 devices are needed on one machine; "
                                           "a: the connection broke; b: the connection broke"):
        launch(spec(*SHOW, hosts="@lab"))
    with happens(machines, "a", "away after check"), happens(machines, "b", "away after check"), \
            held(machines / "b", 0):
        run = launch(spec(*SHOW, hosts="@lab"))
        over(run)
    assert state(run) == "failed"
    assert "a is away: its shell ended with 255" in reason(run)
    assert "b is away: its shell ended with 255" in reason(run)


def test_one_waits_though_nobody_answers_when_it_is_submitted(machines, home):
    with happens(machines, "a"), happens(machines, "b"):
        run = submit.submit(spec(*SHOW, hosts="@lab"), When())
        wait_for(lambda: reason(run).startswith(
            "waits for any 2 devices on @lab: a is away: its shell ended"))
    over(run)
    assert state(run) == "completed", reason(run)


def test_another_attempt_waits_for_the_machine_that_has_the_run(machines, home):
    with held(home, 0, 1, 2), held(machines / "b", 0, 1):
        run = submit.submit(spec("sh", "-c", "[ $GPU_PANEL_ATTEMPT = 2 ]"), When())
        over(run)
        assert (state(run), host(run)) == ("failed", "a"), reason(run)
    with held(machines / "a", 0, 1):
        submit.submit(spec(*run.require_plan().spec.task.command, hosts="a"), When(), again=run)
        wait_for(lambda: reason(run) == "waits for any 2 GPUs on a: a: 1 of 3 free")
    over(run)
    assert state(run) == "completed", reason(run)
    assert [a.outcome for a in run.state().attempts] == ["failed", "completed"]
    assert len(list((machines / "a").glob("parts/*"))) == 1


def test_one_that_is_stopped_while_it_waits_asks_nobody_any_more(machines, home):
    with held(home, 0, 1, 2), held(machines / "a", 0, 1), held(machines / "b", 0, 1):
        run = submit.submit(spec(*SHOW), When())
        wait_for(lambda: reason(run).startswith("waits for any 2 GPUs of any host: "))
        run.stop()
        over(run)
    assert (state(run), reason(run)) == ("stopped", "while it waited for its turn")
    assert not parts.read(run.path)


def test_a_run_waits_for_the_devices_that_it_names_on_a_host(machines, home):
    """And not for others that are free there; a sweep's members do so one after another."""
    with held(machines / "a", 1):
        run = submit.submit(spec(*SHOW, count=None, hosts="a:2,1"), When())
        wait_for(lambda: reason(run).startswith(
            "waits for a:2,1: a: GPU 1 is not free: held by run 77aa"))
    over(run)
    assert state(run) == "completed", reason(run)
    assert run.output(0).read_text().endswith(" 2,1\n")
    with pytest.raises(SpecError, match=r"a:7.*there is no such device; a has GPUs"):
        submit.submit(spec(*SHOW, count=None, hosts="a:7"), When())


BOTH = {"count": None, "hosts": ["a:0", "b:0"], "parallel": {"mode": "multinode"}}


@pytest.mark.parametrize("what", ["taken", "killed"])
def test_several_hosts_begin_together_or_none_does(machines, home, what):
    """The last device is taken while the run has the first one; or its process is killed then."""
    with held(machines / "b", 0):
        run = submit.submit(spec(*EMIT, **BOTH), When())
        wait_for(lambda: reason(run).startswith(
            "waits for a:0 and b:0: b: GPU 0 is not free: held by run 77aa"))
    with happens(machines, "b", "hold start"):
        first = Run(wait_for(lambda: next((machines / "a").glob("parts/[0-9a-f]*"), None)))
        wait_for(lambda: state(first) == "running")
        taken = contextlib.ExitStack()
        if what == "taken":
            taken = held(machines / "b", 0)
        else:
            os.kill(run.state().pid, signal.SIGKILL)
            wait_for(lambda: not run.supervised())
    with taken:
        if what == "taken":
            wait_for(lambda: "waits as b could not start it: " in reason(run))
            assert not first.path.exists()
            assert not parts.read(run.path)
        else:
            assert serve.ensure() == 1
    wait_for(lambda: state(run) == "running")
    assert first.path.exists() is (what == "killed")
    assert len(list(machines.glob("[ab]/parts/*"))) == 2
    run.stop()
    over(run)
    assert state(run) == "stopped", reason(run)


def test_two_runs_over_the_same_hosts_do_not_wait_for_each_other(machines, home):
    """Of two machines, which do not know of each other."""
    shutil.copytree(home, machines / "other")
    ends = sys.executable, "-S", "-E", "-c", "pass"
    first = submit.submit(spec(*ends, **BOTH), When())
    os.environ["GPU_PANEL_HOME"] = str(machines / "other")
    second = submit.submit(spec(*ends, **BOTH | {"hosts": ["b:0", "a:0"]}), When())
    over(second)
    os.environ["GPU_PANEL_HOME"] = str(home)
    over(first)
    assert [state(run) for run in (first, second)] == ["completed"] * 2, reason(first)


def test_a_run_waits_for_one_ahead_only_where_that_could_use_the_same_device(machines, home):
    with held(machines / "a", 0):
        named = submit.submit(spec(*SHOW, count=None, hosts="a:0"), When())
        over(submit.submit(spec(*SHOW, count=None, hosts="a:1"), When()))
        over(submit.submit(spec(*SHOW, count=1, hosts="a"), When()))
        same = submit.submit(spec(*SHOW, count=None, hosts="a:0,1"), When())
        large = submit.submit(spec(*SHOW, count=3, hosts="a"), When())
        small = submit.submit(spec(*SHOW, count=1, hosts="a"), When())
        elsewhere = submit.submit(spec(*SHOW, count=1, hosts=["a", "b"]), When())
        over(elsewhere)
        assert host(elsewhere) == "b"
        wait_for(lambda: reason(small).endswith(
            "a: none of 3 free, as runs ahead of it get 3"))
        assert reason(same).startswith(f"waits for runs ahead of it: {named.id} is the first")
        known = (home / "hosts.toml").read_text()
        (home / "hosts.toml").write_text("[hosts")  # no reason for any of them to end
        wait_for(lambda: all("hosts.toml" in reason(run) for run in (same, small)))
        (home / "hosts.toml").write_text(known)
    over(named, same, large, small)
    assert {state(run) for run in (named, same, large, small)} == {"completed"}


def test_who_comes_next_waits_only_until_it_is_known_what_the_one_ahead_takes(machines, home):
    with happens(machines, "a", "hold start"), happens(machines, "b", "hold start"):
        runs = [submit.submit(spec(*SHOW, count=1, hosts=["a", "b"]), When()) for _ in range(2)]
        wait_for(lambda: all(reason(run).startswith("starts on ") for run in runs))
        assert reason(runs[0]) != reason(runs[1])
    over(*runs)
    assert {state(run) for run in runs} == {"completed"}


@pytest.mark.parametrize(("devices", "why"), [
    ({"hosts": ["@nobody"], "pick": 1}, "no host in .*hosts.toml is of that group"),
    ({"hosts": ["a:0"], "pick": 1}, "devices.hosts names devices")])
def test_what_can_not_wait_is_refused(machines, devices, why):
    with pytest.raises(UserError, match=why):
        submit.submit(from_dict({"task": {"command": ["true"]}, "devices": devices}), When())
    assert not serve.line()


def test_hosts_that_are_typed_take_all_their_devices_unless_one_is_to_be_chosen():
    def typed(*sets: str, **devices: object) -> object:
        data = {"devices": dict(devices)}
        apply_sets(data, sets)
        return data["devices"]

    assert typed("devices.hosts=a,b", pick=2) == {"hosts": ["a", "b"]}
    assert typed("devices.hosts=any", pick=2) == {"hosts": ["any"], "pick": 2}
    assert typed("devices.pick=2", "devices.hosts=a,b") == {"hosts": ["a", "b"], "pick": 2}
    assert typed("devices.pick=3", hosts=["@lab"], pick=2) == {"hosts": ["@lab"], "pick": 3}
    with pytest.raises(SpecError, match="this means devices of the machine in front of you"):
        typed("devices.pick=2", hosts=["a", "b"])


def test_a_run_that_follows_one_on_a_host_asks_there_before_it_gives_up(home, line, tmp_path):
    make_hosts(home, "a")
    go = tmp_path / "go"
    first = launch(from_dict({
        "task": {"command": ["sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done"]},
        "devices": {"hosts": ["a:cpu:0"]}, "parallel": {"mode": "single"}}))
    host(first)
    wait_for(lambda: state(first) == "running")
    follows = queue(when=When(after=first.id), slot=1)
    wait_for(lambda: "to complete" in reason(follows))
    before = first.state().pid
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: state(first) == "running" and first.state().pid not in (None, before))
    go.touch()
    over(first, follows)
    assert (state(first), state(follows)) == ("completed", "completed")
