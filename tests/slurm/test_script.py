"""The batch script, run by bash with stand-ins for Slurm's own programs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.cli.spec_options import choose_spec
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.plan.records import WORKER
from gpu_engine.slurm.script import Place, batch_script, job_of
from gpu_engine.spec.schema import RunSpec

from ..cli.test_cli import engine

STAND_INS = {
    "srun": """printf '%s\\0' "$@" > "$SAID/argv"; env > "$SAID/env"
[ -z "$LEAVES" ] || { mkdir -p "$STATE"; printf '{"state": "%s"}' "$LEAVES" > "$STATE/state.json"; }
exit "${EXIT:-0}" """,
    "scontrol": """case $1:$2 in
show:hostnames) printf '%s' "$HOSTS" ;;
show:node) echo "NodeName=$3 NodeAddr=$NODE_ADDR NodeHostName=$3 Version=22.05" ;;
requeue:*) echo "$2" > "$SAID/requeued" ;;
esac""",
    "getent": """[ "$2" != plain ] || echo 10.1.2.3 STREAM plain
[ "$2" != debian ] || echo 127.0.1.1 STREAM debian
[ "$2" != both ] || { echo "::1 STREAM both"; echo "10.1.2.4 STREAM"; }
[ "$2" != 10.9.9.9 ] || echo 10.9.9.9 STREAM""",
    "squeue": "echo ${JOB_STATE:-RUNNING}",
}


class Cluster:
    """A folder of stand-ins, and what they were given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, text in STAND_INS.items():
            path = folder / "bin" / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)

    def run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        for name in ("argv", "env", "requeued"):
            (self.folder / name).unlink(missing_ok=True)
        told = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "SAID": str(self.folder),
                "SLURM_JOB_ID": "41007", "SLURM_JOB_NODELIST": "plain", "HOSTS": "plain\nother\n",
                "STATE": str(self.folder / "home/runs/slurm-41007")}
        return subprocess.run(["bash", "-s"], input=script, env=told | env, text=True,
                              capture_output=True, check=False, timeout=600)

    def argv(self) -> list[str]:
        return (self.folder / "argv").read_bytes().decode().split("\0")[:-1]

    def environment(self) -> dict[str, str]:
        lines = (self.folder / "env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    @property
    def requeued(self) -> bool:
        return (self.folder / "requeued").exists()

    def script(self, *sets: str, nodes: int = 2, per_node: int = 2, options: tuple[str, ...] = (),
               **place: str) -> str:
        where = {"python": os.environ.get("PYTHON", "python3"), "folder": str(self.folder),
                 "home": str(self.folder / "home")} | place
        spec = spec_of(*sets)
        return batch_script(spec, job_of(spec, nodes, per_node, options), Place(**where))


def spec_of(*sets: str) -> RunSpec:
    return choose_spec(None, ["task.use=m:T", "parallel.mode=ddp", "batch.size=8", *sets]).spec


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_what_is_asked_of_slurm(cluster):
    head = cluster.script(options=("time=04:00:00", "account=a b#c", "exclusive"),
                          per_node=4).partition("\n\n")[0]
    assert head.splitlines()[0] == "#!/bin/bash"
    assert [line.removeprefix("#SBATCH --") for line in head.splitlines()[1:]] == [
        "job-name=run", "nodes=2", "ntasks-per-node=4", "gpus-per-node=4", "signal=USR1@120",
        "requeue", "open-mode=append", "time=04:00:00", "account='a b#c'", "exclusive"]


def test_the_ranks_get_the_variables_of_the_run(cluster):
    text = "two words; $HOME 'quoted'"
    cluster.run(cluster.script(f"run.env.ONE={text}", "run.env.TWO="))
    assert cluster.environment() | {"ONE": text, "TWO": ""} == cluster.environment()
    assert f"run.env.ONE={text}" in cluster.argv()


@pytest.mark.parametrize(("env", "threads"), [
    ({"SLURM_CPUS_ON_NODE": "16"}, "8"), ({"SLURM_CPUS_ON_NODE": "1"}, "1"), ({}, "1"),
    ({"SLURM_CPUS_ON_NODE": "16", "SLURM_CPUS_PER_TASK": "3"}, "3"),
    ({"SLURM_CPUS_ON_NODE": "16", "OMP_NUM_THREADS": "5"}, "5")])
def test_a_rank_has_threads_for_its_share_of_the_cpus(cluster, monkeypatch, env, threads):
    """Slurm need not bind it to cores: it would take as many threads as the node has."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cluster.run(cluster.script(per_node=2), **env)
    assert cluster.environment()["OMP_NUM_THREADS"] == threads


def test_one_process_is_one_task_with_all_gpus(cluster):
    head = cluster.script("parallel.mode=dp", nodes=1, per_node=2).partition("\n\n")[0]
    assert "--ntasks-per-node=1\n#SBATCH --gpus-per-node=2\n" in head
    head = cluster.script("devices.ids=cpu:0,cpu:1", nodes=1).partition("\n\n")[0]
    assert "--ntasks-per-node=2\n" in head
    assert "gpus" not in head


def test_the_ranks_meet_at_the_first_node(cluster):
    done = cluster.run(cluster.script(), RANK="5", WORLD_SIZE="9", SLURM_CPUS_PER_TASK="3")
    assert (done.returncode, done.stderr) == (0, "")
    env = cluster.environment()
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.1.2.3", "21007")
    assert env["SRUN_CPUS_PER_TASK"] == "3"
    assert not {"RANK", "WORLD_SIZE"} & set(env)
    assert cluster.argv()[:2] == ["--kill-on-bad-exit=1", "--distribution=block"]
    assert cluster.argv()[-2:] == ["--folder", "slurm-41007"]


@pytest.mark.parametrize(("hosts", "node_addr", "address"), [
    ("both\n", "", "10.1.2.4"), ("debian\n", "10.9.9.9", "10.9.9.9")])
def test_an_address_that_others_reach_is_preferred(cluster, hosts, node_addr, address):
    assert cluster.run(cluster.script(), HOSTS=hosts, NODE_ADDR=node_addr).returncode == 0
    assert cluster.environment()["MASTER_ADDR"] == address


# --- words stay words ----------------------------------------------------------------------------

WORDS = st.text(st.one_of(st.sampled_from("'\"\\$`!#;&|<>(){}[]*?~= \u00a0%@-\N{SNOWMAN}"),
                          st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))),
                min_size=1, max_size=40)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("slurm"))


@settings(max_examples=40, deadline=None)
@given(value=WORDS, python=WORDS, home=WORDS)
def test_srun_receives_the_words_that_were_meant(shared, value, python, home):
    home = str(shared.folder / "h") + home.replace("/", "")
    sets = f"task.params.text={json.dumps(value)}"
    done = shared.run(shared.script(sets, python=python, home=home))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    argv = shared.argv()
    assert argv[2:4] == [python, WORKER]
    words = argv[4:-2]
    assert set(words[::2]) == {"--set"}
    assert choose_spec(None, words[1::2]).spec == spec_of(sets)
    assert shared.environment()["GPU_PANEL_HOME"] == home


@given(text=st.text(max_size=30))
@settings(max_examples=200, deadline=None)
def test_an_option_stays_one_line(shared, text):
    try:
        script = shared.script(options=(f"comment={text}",))
    except UserError:
        return
    (line,) = [s for s in script.split("\n") if s.startswith("#SBATCH --comment")]
    assert shlex.split(line.removeprefix("#SBATCH "), comments=True) == [f"--comment={text}"]
    assert script.count("#SBATCH") == 8 + text.count("#SBATCH")


@pytest.mark.parametrize("option", ["nodes=3", "gpus=3", "array=1-9", "export=NONE", "wait"])
def test_what_the_script_depends_on_is_refused(cluster, option):
    with pytest.raises(UserError, match="depends on its own"):
        cluster.script(options=(option,))


@pytest.mark.parametrize("place", [
    {"folder": "/a\nb"}, {"home": "/a\x1b[0m"}, {"python": "p\u2028"}])
def test_control_characters_are_refused(cluster, place):
    with pytest.raises(UserError, match="can't stand in a batch script"):
        cluster.script(**place)


@pytest.mark.parametrize(("sets", "nodes", "key"), [
    (["batch.size=7"], 2, "batch.size"), (["devices.hosts=gpu1"], 2, "devices.hosts"),
    (["parallel.mode=single"], 2, "parallel.mode"), (["parallel.mode=single"], 1, "parallel.mode")])
def test_what_does_not_fit_is_said_before_the_job_waits(cluster, sets, nodes, key):
    with pytest.raises(SpecError, match=key):
        cluster.script(*sets, nodes=nodes)


# --- afterwards ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("env", "code", "requeued"), [
    ({}, 0, False),
    ({"EXIT": "75"}, 0, True),
    ({"EXIT": "137", "LEAVES": "stopped"}, 0, True),   # srun ended the others by --kill-on-bad-exit
    ({"EXIT": "1", "LEAVES": "failed"}, 1, False),
    ({"EXIT": "1"}, 1, False),
    ({"EXIT": "75", "JOB_STATE": "COMPLETING"}, 75, False)])  # it was cancelled
def test_only_a_stop_goes_back_to_the_queue(cluster, env, code, requeued):
    done = cluster.run(cluster.script(), **env)
    assert (done.returncode, cluster.requeued) == (code, requeued), done.stderr


def test_a_state_of_the_previous_attempt_requeues_nothing(cluster):
    script = cluster.script()
    assert cluster.run(script, EXIT="137", LEAVES="stopped").returncode == 0
    assert cluster.run(script, EXIT="1", SLURM_RESTART_COUNT="1").returncode == 1
    assert not cluster.requeued
    done = cluster.run(script)  # another job that has the same number
    assert done.returncode == 2
    assert "is the run of an earlier job with this number" in done.stderr


def test_a_run_that_was_stopped_does_not_go_back_to_the_queue(cluster):
    stop = cluster.folder / "home/runs/slurm-41007/stop"
    script = cluster.script().replace("srun=$!", f"srun=$!; mkdir -p {stop.parent}; touch {stop}")
    assert cluster.run(script, EXIT="75").returncode == 75  # asked while it ran
    assert not cluster.requeued
    done = cluster.run(cluster.script(), EXIT="75", SLURM_RESTART_COUNT="1")
    assert (done.returncode, done.stdout) == (0, "the run was stopped: not started again\n")
    assert not (cluster.folder / "argv").exists()


def test_a_submitted_job_has_its_run_folder_and_logs(cluster):
    folder = cluster.folder / "a b%'c"
    spec = spec_of()
    script = batch_script(spec, job_of(spec, 2, 2), Place("python3", str(cluster.folder), "/h"),
                          str(folder))
    done = cluster.run(script)
    assert (done.returncode, cluster.requeued) == (2, False)
    assert f"the run folder {folder} is missing on" in done.stderr
    folder.mkdir()
    (folder / "state.json").touch()
    assert cluster.run(script).returncode == 0
    assert cluster.argv()[2:4] == [
        "--open-mode=append", f"--output={cluster.folder}/a b%%'c/ranks/%5t.log"]
    assert cluster.argv()[-2:] == ["--folder", str(folder)]
    assert cluster.environment()["GPU_PANEL_SLURM_JOB"] == "41007"
    with pytest.raises(UserError, match="a backslash in its name"):
        batch_script(spec, job_of(spec, 2, 2), Place("python3", "/", "/h"), "/a\\b")


def test_a_run_with_a_limit_is_warned_in_time_and_does_not_go_back_to_the_queue(tmp_path):
    cluster = Cluster(tmp_path)
    script = cluster.script("run.limit=5m", "run.grace=90")
    for line in ("time=7", "signal=USR1@90", "no-requeue"):  # 300 + 90 s, in whole minutes
        assert f"#SBATCH --{line}\n" in script
    assert "requeue\n" not in script.replace("no-requeue\n", "")
    for env in ({"EXIT": "75"}, {"EXIT": "1", "LEAVES": "stopped"}):
        out = cluster.run(script, **env)
        assert (out.returncode, cluster.requeued) == (0, False)
        assert "time was up: stopped and saved" in out.stdout
    again = {"SLURM_RESTART_COUNT": "1", "EXIT": "1"}
    assert cluster.run(script, LEAVES="failed", **again).returncode == 1
    with pytest.raises(SpecError, match=r"run.limit = 300.*--time .* another one: leave one out"):
        cluster.script("run.limit=5m", options=("time=9",))


# --- as a person types it ------------------------------------------------------------------------

def test_the_command_writes_it(home, tmp_path):
    file = tmp_path / "job.sh"
    out = engine("slurm", "ddp", "--gpus", "2", "--time", "1:00:00", "--output", str(file))
    assert (out.returncode, out.stdout) == (0, "")
    assert f"submit it with: sbatch {file}" in out.stderr
    assert "#SBATCH --time=1:00:00\n" in file.read_text()
    assert f"GPU_PANEL_HOME={home}\n" in file.read_text()
    out = engine("slurm", "ddp", "-o", "gpus-per-node=2")
    assert (out.returncode, out.stdout) == (2, "")
    assert "depends on its own; --nodes and --gpus" in out.stderr
