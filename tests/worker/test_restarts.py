"""Without a supervisor, ranks that their launcher starts once more go on in their old run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_engine.runs import job as slurm_job
from gpu_engine.runs.folder import Run

from ..cable import joined
from ..command_line import called
from ..conftest import wait_for
from ..training import ranks
from ..training.conftest import TOY, recorded
from ..training.test_listening import listening

STOPPED = 75


def words(*more: str, steps: int = 12, **params: object) -> list[str]:
    """The worker's arguments for the toy task."""
    keys = {"task.use": TOY, "batch.size": 24, "train.steps": steps, "train.checkpoint_every": 3,
            "train.workers": 0, "parallel.mode": "ddp", "devices.ids": "cpu:0",
            "parallel.timeout": 60} | {f"task.params.{k}": v for k, v in params.items()}
    return [w for k, v in keys.items() for w in ("--set", f"{k}={v}")] + list(more)


def bare(home: Path, **more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items()
           if k not in ("RANK", "WORLD_SIZE", "SLURM_JOB_ID", "GPU_PANEL_ATTEMPT")}
    return env | {"GPU_PANEL_HOME": str(home), "OMP_NUM_THREADS": "1"} | more


def state(run: Path) -> dict:
    return json.loads((run / "state.json").read_text())


def runs_of(home: Path) -> list[Path]:
    return sorted((p for p in (home / "runs").iterdir() if not p.name.startswith(".")),
                  key=lambda p: state(p)["created"])


# --- Slurm -------------------------------------------------------------------------------------

@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., list[ranks.Forked]]]:
    """Start two ranks as a step of Slurm job 71, which was requeued `requeued` times."""
    started: list[ranks.Forked] = []

    def start(requeued: int, *arguments: str, job: str = "71") -> list[ranks.Forked]:
        port = str(ranks.free_port())
        found = []
        for rank in range(2):
            env = bare(tmp_path / "home", SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank),
                       SLURM_STEP_ID="0", SLURM_STEP_NUM_TASKS="2", SLURM_JOB_ID=job,
                       SLURM_STEP_NODELIST="localhost", SLURM_NODEID="0", MASTER_PORT=port,
                       SLURM_STEP_TASKS_PER_NODE="2", SLURM_STEP_NUM_NODES="1")
            if requeued:
                env["SLURM_RESTART_COUNT"] = str(requeued)
            found.append(ranks.zygote().start(list(arguments), env, tmp_path / f"{rank}.log"))
        started.extend(found)
        return found

    yield start
    for process in started:
        process.kill()


def steps(run: Path, rank: int = 0) -> int:
    return max((e["step"] for e in ranks.read(run, rank, "step")), default=0)


def until(condition: Callable[[], object], processes: list[ranks.Forked]) -> None:
    wait_for(lambda: condition() or any(p.poll() is not None for p in processes))
    assert condition()


def test_a_requeued_job_goes_on_in_its_folder_where_it_was_stopped(job, tmp_path: Path) -> None:
    home, line = tmp_path / "home", words("--folder", "mine", steps=50, pause=0.1)
    first = job(0, *line)
    until(lambda: (home / "runs").exists() and runs_of(home) and steps(runs_of(home)[0]) > 5, first)
    first[1].send_signal(signal.SIGUSR1)  # Slurm's warning, at one rank
    assert [p.wait() for p in first] == [STOPPED, STOPPED]
    (run,) = runs_of(home)
    told = state(run)
    assert (told["state"], told["exit_code"], told["attempt"]) == ("stopped", 130, 1)
    reached = steps(run)
    assert (run / "checkpoints" / f"step-{reached:08d}").is_dir()

    assert [p.wait() for p in job(1, *line)] == [0, 0]
    assert runs_of(home) == [run]
    told = state(run)
    assert (told["state"], told["attempt"]) == ("completed", 2)
    assert [a["outcome"] for a in told["attempts"]] == ["stopped", "completed"]
    for rank in range(2):
        assert [e["attempt"] for e in ranks.read(run, rank, "start")] == [1, 2]
        schedules = ranks.read(run, rank, "schedule")
        assert [e["first_step"] for e in schedules] == [0, reached]
        assert steps(run, rank) == 50
    assert f"goes on as attempt 2, from step-{reached:08d}" in (tmp_path / "0.log").read_text()


def test_who_failed_first_is_the_cause_without_a_supervisor(job, tmp_path: Path) -> None:
    """Rank 0, which keeps the state, fails for it."""
    (tmp_path / "odd.py").write_text("""
import torch.distributed as dist
from toy import Toy

class Odd(Toy):
    def trouble(self, loss):
        if (dist.get_rank(), self.calls) == (1, 3):
            raise ValueError("odd")
        return loss
""")
    assert [p.wait(600) for p in job(0, *words("--set", f"task.use={tmp_path / 'odd.py'}:Odd"))] \
        == [1, 1]
    told = state(*runs_of(tmp_path / "home"))
    assert (told["state"], told["reason"]) == ("failed", "rank 1: ValueError: odd")
    assert (told["cause"]["rank"], told["cause"]["type"]) == (1, "ValueError")


def test_a_run_goes_on_in_a_named_folder(job, tmp_path: Path) -> None:
    home = tmp_path / "home"
    place = tmp_path / "deep" / "here"
    for folder, path in (("my-run", home / "runs" / "my-run"), (str(place), place)):
        for attempt, count in ((1, 3), (2, 5)):
            line = words("--folder", folder, steps=count)
            assert [p.wait() for p in job(0, *line, job=f"{attempt}")] == [0, 0]
            assert (state(path)["attempt"], steps(path)) == (attempt, count)
    assert [p.name for p in (home / "runs").iterdir() if p.is_dir()
            and not p.name.startswith(".")] == ["my-run"]


@pytest.mark.parametrize(("folder", "says"), [
    ("a b", "expected a name"), ("../x/file/y", "can't create a run folder there"),
    ("./full", "something that is not a run is there already")])
def test_a_wrong_folder_is_refused(job, tmp_path: Path, monkeypatch, folder: str,
                                   says: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    if folder.startswith("."):
        folder = str(tmp_path / folder.removeprefix(".").removeprefix("/").removeprefix("./"))
    assert [p.wait() for p in job(0, *words("--folder", folder))] == [2, 2]
    assert says in (tmp_path / "1.log").read_text()
    assert (tmp_path / "full" / "thesis.tex").exists()


def test_a_stop_while_waiting_for_ranks_that_do_not_come(job, tmp_path: Path) -> None:
    env = bare(tmp_path / "home", RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2",
               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ranks.free_port()))
    alone = ranks.zygote().start(words(), env, tmp_path / "log")
    try:
        wait_for(lambda: listening(alone.pid))
        alone.send_signal(signal.SIGTERM)
        assert alone.wait() == STOPPED
    finally:
        alone.kill()


# --- torchrun ----------------------------------------------------------------------------------

# test_start has one whose ranks are started by interpreters.

def torchrun(env: dict[str, str], log: Path, *words: str, program: Path = ranks.TORCHRUN
             ) -> ranks.Forked:
    """Start torchrun with `words`; its agent forks the ranks."""
    return ranks.zygote().start(list(words), env, log, program)


LATE = f"""
import os, signal, sys, time
from dataclasses import dataclass
sys.path.append({str(Path(__file__).parents[1] / "training")!r})
from toy import ATTEMPT, RANK, Toy

@dataclass
class Late(Toy):
    def train_data(self):
        if ATTEMPT == 1:
            if RANK == 1:
                raise OSError("the disk is not mounted yet")
            time.sleep(60)
        return super().train_data()

    def trouble(self, loss):
        if (ATTEMPT, RANK, self.calls) == (2, 1, 8):
            os.kill(os.getpid(), signal.SIGKILL)
        return loss

    def optimizer(self, model, lr):
        made = super().optimizer(model, lr)
        made.register_step_post_hook(self.stepped)
        return made

    def stepped(self, *about):
        # Torchrun's request to stop finds rank 0 between two steps.
        while (ATTEMPT, RANK, self.calls) == (2, 0, 7) and not (
                signal.getsignal(signal.SIGTERM).__self__.stop_requested):
            time.sleep(0.01)
"""


def test_torchruns_restarts_go_on_from_what_was_saved(make, tmp_path: Path) -> None:
    """First a rank fails before training. torchrun then ends the other one, which does not count as
    a stop. Later a rank is killed."""
    whole = ranks.train(make("whole", world=2, size=24, train={"steps": 12}))
    record = tmp_path / "again" / "record"
    record.mkdir(parents=True)
    (tmp_path / "late.py").write_text(LATE)
    agent = torchrun(
        bare(tmp_path / "home"), tmp_path / "log", "--standalone", "--nproc-per-node=2",
        "--max-restarts=2", "-m", "gpu_engine.worker",
        *words("--set", f"task.use={tmp_path / 'late.py'}:Late", "--set", "train.lr=0.01",
               record=record))
    assert agent.wait() == 0, (tmp_path / "log").read_text()
    (run,) = runs_of(tmp_path / "home")
    told = state(run)
    assert (told["state"], told["attempt"]) == ("completed", 3)
    assert [a["outcome"] for a in told["attempts"]] == ["stopped", "failed", "completed"]
    assert told["attempts"][1]["reason"].startswith("rank 1: ended without an error or an end")
    for rank in range(2):
        assert ranks.read(run, rank, "end")[-1]["steps"] == 12
        # Rank 1 was killed in its eighth pass: it goes on from the checkpoint of the sixth.
        assert recorded(tmp_path / "again", rank, 3) == recorded(whole, rank)[6:]


def test_torchrun_does_not_restart_stopped_ranks(tmp_path: Path) -> None:
    home = tmp_path / "home"
    agent = torchrun(bare(home), tmp_path / "log", "--standalone", "--nproc-per-node=2",
                     "--max-restarts=1", "-m", "gpu_engine.worker",
                     *words(steps=4000, pause=0.05))
    try:
        until(lambda: (home / "runs").exists() and runs_of(home)
              and steps(runs_of(home)[0]) > 2, [agent])
        (run,) = runs_of(home)
        for command, code, printed in (("logs", 2, ""), ("stacks", 1, "--- rank 0 ---\nprinted")):
            done = called(command, str(run))
            assert (done.returncode, done.stdout.startswith(printed)) == (code, True), done
            assert "its ranks print where torchrun" in done.stdout + done.stderr
        until(lambda: "most recent call first" in (tmp_path / "log").read_text(), [agent])
        os.kill(ranks.read(run, 0, "start")[-1]["pid"], signal.SIGTERM)  # a rank, not the agent
        assert agent.wait() == 0
    finally:
        agent.kill()
    assert (state(run)["state"], state(run)["attempt"]) == ("stopped", 1)
    assert runs_of(home) == [run]


# --- several machines --------------------------------------------------------------------------

ON_A_MACHINE = f"""
import ctypes, runpy, socket, subprocess, sys
name, node, hosts, hidden = sys.argv[1:5]
libc = ctypes.CDLL(None, use_errno=True)
with open("/run/netns/" + name) as net:
    assert libc.setns(net.fileno(), 0x40000000) == 0  # CLONE_NEWNET
assert libc.unshare(0x00020000 | 0x04000000) == 0  # CLONE_NEWNS, CLONE_NEWUTS
for words in (["--make-rprivate", "/"], ["--bind", hosts, "/etc/hosts"],
              ["-t", "tmpfs", "none", hidden]):
    subprocess.run(["mount", *words], check=True)
socket.sethostname("node" + node)
sys.argv[:5] = [""]
runpy.run_path({str(ranks.TORCHRUN)!r}, run_name="__main__")
"""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Callable[[int], tuple[Path, list[str]]]]:
    """Two machines, 10.78.0.1 and 10.78.0.2, which know each other by name; as on Debian, each
    one's own name means 127.0.1.1. Returns, for each of them, a program that runs torchrun there
    and its first arguments."""
    if not shutil.which("unshare"):
        pytest.skip("needs unshare")
    program = tmp_path / "on_a_machine.py"
    program.write_text(ON_A_MACHINE)
    with joined("10.78.0") as names:
        def on(node: int) -> tuple[Path, list[str]]:
            hosts = tmp_path / f"hosts{node}"
            hosts.write_text("127.0.0.1 localhost\n" + "".join(
                f"{'127.0.1.1' if i == node else f'10.78.0.{i + 1}'} node{i}\n" for i in (0, 1)))
            other = tmp_path / f"home{1 - node}"  # hidden: each has its own disk
            other.mkdir(exist_ok=True)
            return program, [names[node], str(node), str(hosts), str(other)]

        yield on


@pytest.mark.root
def test_two_machines_by_name_go_on_after_a_rank_was_killed(machines, tmp_path: Path) -> None:
    """Each machine resolves its own name to 127.0.1.1 and has its own disk."""
    nodes, logs = [], [tmp_path / f"log{node}" for node in (0, 1)]
    for node in (0, 1):
        program, place = machines(node)
        nodes.append(torchrun(
            bare(tmp_path / f"home{node}"), logs[node], *place, "--nnodes=2", "--nproc-per-node=1",
            f"--node-rank={node}", "--master-addr=node0", "--master-port=29533",
            "--max-restarts=2", "-m", "gpu_engine.worker", *words(die_at=8, rank=1),
            program=program))
    try:
        codes = [p.wait() for p in nodes]
    finally:
        for process in nodes:
            process.kill()
    assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
    (run,), (there,) = (runs_of(tmp_path / "home0"),
                        [p for p in (tmp_path / "home1" / "runs").iterdir()
                         if not p.name.startswith(".")])
    assert run.name == there.name
    assert (state(run)["state"], state(run)["attempt"]) == ("completed", 2)
    assert [e["first_step"] for e in ranks.read(run, 0, "schedule")] == [0, 6]
    assert [e["attempt"] for e in ranks.read(there, 1, "start")] == [1, 2]
    assert [e["node"] for e in ranks.read(there, 1, "start")] == [1, 1]
    plan = Run(run).require_plan()
    assert [(r.rank, r.node, r.host is None) for r in plan.ranks] == [(0, 0, True), (1, 1, False)]
    assert ranks.read(there, 1, "end")[-1]["steps"] == 12


def test_an_allocation_of_a_persons_own_is_not_the_runs_to_end() -> None:
    ours = {"GPU_PANEL_SLURM_JOB": "7", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "x"}
    found = slurm_job.here(ours)
    assert (found.id, found.restarts) == (7, 0)
    for env in ({"SLURM_JOB_ID": "7"}, ours | {"SLURM_JOB_ID": "8"}):
        assert slurm_job.here(env) is None
