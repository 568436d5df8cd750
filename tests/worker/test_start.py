"""How a rank is started: by file in a bare interpreter, by torchrun, srun or by hand."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch.distributed as dist

from gpu_engine.common.errors import UserError
from gpu_engine.worker.check import _pairs
from gpu_engine.worker.rank import group, peers
from gpu_engine.worker.rank.group import pack_first, unpack_first
from gpu_engine.worker.rank.job import Identity, first_host, identify
from gpu_engine.worker.rank.peers import PeerLost, Peers
from gpu_engine.worker.rank.recorder import Progress

from ..training import ranks
from ..training.conftest import TOY

AT = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(("env", "who"), [
    ({}, Identity()),
    ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **AT},
     Identity(3, 4, 1, 2, "10.0.0.1", 29500, "torchrun", 1, 2)),
    ({"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4",
      "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_ID": "71",
      "SLURM_STEP_NODELIST": "gpu[03-04]"},
     Identity(3, 4, 1, 2, "gpu03", 20071, "srun", 1, 2)),
    # With fewer tasks on the last machine.
    *(({"SLURM_PROCID": str(rank), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node), "SLURM_STEP_NUM_NODES": "3",
        "SLURM_JOB_ID": "71", "SLURM_STEP_NODELIST": "gpu[03-05]"},
       Identity(rank, 5, local, 2, "gpu03", 20071, "srun", node, 3))
      for rank, local, node in ((0, 0, 0), (3, 1, 1), (4, 0, 2))),
    # In an sbatch script but outside of srun there is a single rank.
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Identity()),
])
def test_rank_and_world_size_from_each_launcher(env: dict, who: Identity) -> None:
    assert identify(env) == who


def test_rank_and_world_size_from_arguments() -> None:
    who = identify({"RANK": "9", "WORLD_SIZE": "10"}, init_method="tcp://10.0.0.1:23456", rank=1,
                   world_size=2)
    assert who == Identity(1, 2, 1, 2, "10.0.0.1", 23456, "arguments")
    for wrong in ({"init_method": "tcp://x"}, {"rank": 0},
                  {"init_method": "file:///x", "rank": 0, "world_size": 2},
                  {"init_method": "tcp://h:1", "rank": 2, "world_size": 2}):
        with pytest.raises(UserError):
            identify({}, **wrong)


def test_contradictions_are_refused() -> None:
    with pytest.raises(UserError, match="RANK=4"):
        identify({"RANK": "4", "WORLD_SIZE": "4", **AT})
    with pytest.raises(UserError, match="MASTER_ADDR"):
        identify({"RANK": "1", "WORLD_SIZE": "4"})


def test_first_host() -> None:
    assert [first_host(x) for x in ("n1", "n1,n2", "gpu[03-05,9],login1", "a[1,2]-ib")] == [
        "n1", "n1", "gpu03", "a1-ib"]


def test_the_first_trouble_packs_into_the_largest_number() -> None:
    packed = [pack_first(s, r, 4) for s, r in ((7, 0), (5, 3), (5, 1))]
    assert unpack_first(max([*packed, pack_first(None, 2, 4)]), 4) == (5, 1)
    assert unpack_first(0.0, 4) is None


def test_a_rank_needs_torch_and_nothing_else(make, tmp_path: Path) -> None:
    """With an interpreter that has torch and what torch needs, and nothing of gpu-panel's."""
    bare = tmp_path / "bare.py"
    bare.write_text(
        "import sys, runpy\n"
        "class Wall:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'msgspec', 'click', 'psutil', 'textual',\n"
        "                'tomlkit', 'platformdirs', 'pynvml', 'gpu_panel'}:\n"
        "            raise ImportError('behind the wall: ' + name)\n"
        "sys.meta_path.insert(0, Wall())\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "sys.path[:] = [p for p in sys.path if not p.endswith('/engine')]\n"
        "found = __import__('importlib.util').util.find_spec('gpu_engine')\n"
        # An editable install leaves a folder of that name there, with nothing but the presets.
        "own = __import__('pathlib').Path(sys.argv[1]).parents[1] / '__init__.py'\n"
        "assert found is None or found.loader is None or found.origin == str(own), found\n"
        "sys.argv = sys.argv[1:]\n"
        "sys.path[0] = __import__('os').path.dirname(sys.argv[0])\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n")
    run = make(size=24, train={"steps": 2})
    done = subprocess.run([sys.executable, str(bare), str(ranks.WORKER), "--run", str(run)],
                          env=dict(os.environ, OMP_NUM_THREADS="1"), capture_output=True,
                          text=True, timeout=600, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ranks.read(run, 0, "end")[-1]["outcome"] == "completed"


@pytest.mark.parametrize(("kind", "text", "echo"), [
    (RuntimeError, "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error "
                   "[10.0.0.2]:6421: Connection reset by peer", True),
    (dist.DistBackendError, "NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or "
                            "there was a network error, ncclRemoteError", True),
    (dist.DistNetworkError, "failed to recv, got 0 bytes", True),
    (dist.DistStoreError, "wait timeout after 300000ms, keys: /pg/0", True),
    # Errors of this rank itself, whatever raises them and whatever they mention.
    (dist.DistBackendError, "NCCL error: invalid usage, Duplicate GPU detected : rank 0 and "
                            "rank 1 both on CUDA device 3000", False),
    (dist.DistBackendError, "NCCL error: unhandled cuda error, ncclUnhandledCudaError", False),
    (RuntimeError, "my_nccl_config: no such preset", False),
    (RuntimeError, "DataLoader timed out after 10 seconds", False),
    (OSError, "Broken pipe", False),
])
def test_another_ranks_failure_is_known_by_what_raised_the_error(kind: type, text: str, echo: bool
                                                                ) -> None:
    err = kind(text)
    blamed = Peers(0, 1, dist.HashStore(), 10.0).blame(err)
    assert isinstance(blamed, PeerLost) if echo else blamed is err


def test_a_rank_whose_link_is_cut_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is on another machine. PyTorch would wait a quarter of an hour for its answer."""
    monkeypatch.setattr(peers, "_PATIENCE", 0.01)

    class Cut:
        def check(self, keys: list[str]) -> bool:
            return threading.Event().wait()

        compare_set = check

    cut = Peers(1, 2, cast("group.Store", Cut()), 10.0)
    err = RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms")
    assert "its machine can't be reached" in str(cut.blame(err))
    cut.announce("ValueError: bad")


def test_the_first_failure_of_several_is_told_to_all_but_its_own_rank() -> None:
    store = dist.HashStore()
    first, second = (Peers(rank, 3, store, 10.0) for rank in (1, 2))
    first.announce("ValueError: bad")
    second.announce("RuntimeError: it only follows")
    assert second.failure_of_others() == "rank 1: ValueError: bad"
    assert first.failure_of_others() is None


def test_a_rank_that_hangs_after_anothers_failure_ends_once_its_checkpoint_is_written(
        monkeypatch) -> None:
    clock, store, left, told = SimpleNamespace(now=100.0), dist.HashStore(), [], []
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(peers, "time", clock)
    Peers(1, 2, store, 10.0).announce("ValueError: bad")
    rec: Any = SimpleNamespace(phase="backward", writing=Progress(), step_now=7, leave=left.append,
                               details=lambda: "", write=told.append)
    mine = Peers(0, 2, store, 10.0)
    for writing, seconds in ((Progress(), 60), (Progress(), 60), (None, 1), (None, 9)):
        rec.writing = writing
        clock.now += seconds
        mine.tick(rec, store)
    assert left == []
    clock.now += 2
    mine.tick(rec, store)
    assert left == ["failed"]
    assert told[0].message.startswith("rank 1: ValueError: bad")


def test_only_of_a_process_on_this_machine_it_is_known_that_it_has_ended() -> None:
    store = dist.HashStore()
    peers.come(store, 1)
    machine, pid, ticks = json.loads(store.get("gpu-panel/here/1"))
    told = ([machine, pid, ticks], [machine, pid, ticks - 1], ["another", pid, ticks - 1], {}, [1])
    assert [peers._is_gone(json.dumps(one)) for one in told] == [False, True, False, False, False]


def test_of_many_ranks_only_neighbours_are_tried() -> None:
    assert _pairs(3) == [[0, 1], [0, 2], [1, 2]]
    assert _pairs(17) == [[rank, rank + 1] for rank in range(16)]


def test_connections_to_the_store_end_when_nothing_is_acknowledged() -> None:
    """Those of all threads of a rank, after parallel.timeout."""
    made = group.tcp_store("127.0.0.1", 0, 1, holds=True, timeout=timedelta(seconds=7))
    own = group.another_connection(group.prefixed("x", made))
    own.set("key", "1")
    assert made.check(["x/key"])
    limits = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as one:
            if one.getpeername()[1] == cast("Any", made).port:
                limits.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    assert limits == [7000, 7000]


def test_missing_ranks_are_named(make) -> None:
    run = make("run", world=3, size=24, parallel={"timeout": 2.0})
    with ranks.started(run, only=[0]) as first:
        assert first.wait() == [1]
    error = ranks.read(run, 0, "error")[-1]
    assert error["type"] == "CannotMeet"
    assert "ranks 1, 2 of 3 did not come" in error["message"]
    assert error["traceback"] == ""


def test_check_verifies_and_measures(make) -> None:
    run = make("run", world=2, size=24)
    ranks.train(run, args=("--check",))
    sizes = [e["bytes"] for e in ranks.read(run, 0, "metric")]
    assert sizes == [1 << 10, 1 << 20, 16 << 20]
    assert all(e["bytes_per_s"] > 0 for e in ranks.read(run, 1, "metric"))
    assert ranks.read(run, 1, "end")[-1]["outcome"] == "completed"
    assert not (run / "checkpoints").exists()


def test_under_torchrun_output_goes_to_the_ranks_own_log(make, tmp_path: Path) -> None:
    run = make("run", world=2, size=24, train={"steps": 3})
    agent = ranks.zygote().start(
        ["--standalone", "--nproc-per-node=2", "--", str(ranks.WORKER), "--run", str(run)],
        dict(os.environ), tmp_path / "log", ranks.TORCHRUN)
    assert agent.wait() == 0, (tmp_path / "log").read_text()
    for rank in range(2):
        assert ranks.read(run, rank, "end")[-1]["outcome"] == "completed"
        assert "completed after step 3" in (run / "ranks" / f"{rank:05d}.log").read_text()
    assert "completed" not in (tmp_path / "log").read_text()


PLAIN = ["--set", f"task.use={TOY}", "--set", "batch.size=24", "--set", "train.steps=4",
         "--set", "train.workers=0", "--set", "parallel.mode=ddp", "--set", "devices.ids=cpu:0"]


@pytest.mark.parametrize("how", ["torchrun", "arguments"])
def test_without_panel_under_torchrun_and_by_hand(tmp_path: Path, how: str) -> None:
    """torchrun starts an interpreter for each rank, as it does for everybody; by hand they are
    forked here."""
    base = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    base |= {"GPU_PANEL_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    port = str(ranks.free_port())
    if how == "torchrun":
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
             "-m", "gpu_engine.worker", *PLAIN], env=base, capture_output=True, text=True,
            timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        by_hand = [["--init-method", f"tcp://127.0.0.1:{port}", "--rank", str(r),
                    "--world-size", "2"] for r in range(2)]
        logs = [tmp_path / f"{r}.log" for r in range(2)]
        started = [ranks.zygote().start([*PLAIN, *by_hand[r]], base, logs[r])
                   for r in range(2)]
        try:
            assert [p.wait() for p in started] == [0, 0], [log.read_text() for log in logs]
        finally:
            for p in started:
                p.kill()
    (run,) = (p for p in (tmp_path / "home" / "runs").iterdir() if not p.name.startswith("."))
    assert json.loads((run / "state.json").read_text())["state"] == "completed"
    plan = json.loads((run / "plan.json").read_text())
    assert [(r["rank"], r["local_rank"]) for r in plan["ranks"]] == [(0, 0), (1, 1)]
    for rank in range(2):
        assert ranks.read(run, rank, "end")[-1]["outcome"] == "completed"
    assert (run / "checkpoints" / "step-00000004").is_dir()


def test_without_panel_mistakes_are_refused(tmp_path: Path) -> None:
    env = dict(os.environ, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1",
               GPU_PANEL_HOME=str(tmp_path))
    argv = [*PLAIN, "--set", "batch.size=25"]
    assert ranks.zygote().start(argv, env, tmp_path / "log").wait() == 2
    assert "24 or 26 would" in (tmp_path / "log").read_text()


def test_a_rank_is_visible_before_torch_is_imported() -> None:
    """Its record begins with what `start` itself imports; torch takes seconds."""
    subprocess.run([sys.executable, "-c", "import sys, gpu_engine.worker.start\n"
                    "assert 'torch' not in sys.modules"], check=True)
