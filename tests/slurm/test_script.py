"""The batch script: what is asked of Slurm, and the words that reach srun."""

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
from gpu_engine.slurm import submit
from gpu_engine.slurm.script import batch_script
from gpu_engine.spec.schema import RunSpec

from ..cli.test_cli import engine

SRUN = """printf '%s\\0' "$@" > "$SAID/argv"; env > "$SAID/env"
exit "${EXIT:-0}" """


class Cluster:
    """A folder with a stand-in for srun, and what it was given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        path = folder / "bin" / "srun"
        path.write_text(f"#!/bin/sh\n{SRUN}\n")
        path.chmod(0o755)

    def run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        for name in ("argv", "env"):
            (self.folder / name).unlink(missing_ok=True)
        told = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "SAID": str(self.folder),
                "SLURM_JOB_ID": "41007"}
        return subprocess.run(["bash", "-s"], input=script, env=told | env, text=True,
                              capture_output=True, check=False, timeout=600)

    def argv(self) -> list[str]:
        return (self.folder / "argv").read_bytes().decode().split("\0")[:-1]

    def environment(self) -> dict[str, str]:
        lines = (self.folder / "env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def script(self, *sets: str, nodes: int = 2, per_node: int = 2, run: str | None = None,
               **place: str) -> str:
        where = {"folder": str(self.folder),
                 "home": str(self.folder / "home")} | place
        return batch_script(spec_of(*sets, f"parallel.nodes={nodes}", f"devices.pick={per_node}"),
                            **where, run=run)


def spec_of(*sets: str) -> RunSpec:
    return choose_spec(None, ["task.use=m:T", "parallel.mode=ddp", "batch.size=8",
                              "devices.hosts=slurm", *sets]).spec


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def asked(script: str) -> list[str]:
    """The options of sbatch in a script."""
    head = script.partition("\n\n")[0].splitlines()
    assert head[0] == "#!/bin/bash"
    return [line.removeprefix("#SBATCH --") for line in head[1:]]


def test_what_is_asked_of_slurm(cluster):
    assert asked(cluster.script(
        "run.sbatch.time=04:00:00", "run.sbatch.account=a b#c", "run.sbatch.exclusive=",
        per_node=4)) == [
        "job-name=run", "nodes=2", "ntasks-per-node=1", "gpus-per-node=4", "cpus-per-task=12",
        "signal=USR1@120", "requeue", "open-mode=append", "time=04:00:00", "account='a b#c'",
        "exclusive"]


@pytest.mark.parametrize(("sets", "has"), [
    (("devices.hosts=slurm:a100",), {"partition=a100", "gpus-per-node=2"}),
    (("train.workers=0",), {"cpus-per-task=2"}),
    (("run.sbatch.cpus-per-gpu=9",), {"cpus-per-gpu=9"}),
    (("run.limit=5m", "run.grace=90"), {"time=19"}),  # 300 + 90 + 120 + 600 s, in minutes
    (("run.limit=5m", "run.sbatch.time=9"), {"time=9"}),
    (("run.limit=5m", "run.grace=90", "run.sbatch.signal=USR1@300"),
     {"time=22", "signal=USR1@300"}),
    (("run.sbatch.time=1", "run.sbatch.signal=USR1@50"), {"time=1"})])
def test_more_of_it(cluster, sets, has):
    found = asked(cluster.script(*sets))
    assert has <= set(found), found
    assert len([o for o in found if o.startswith("cpus-per")]) == 1


@pytest.mark.parametrize(("sets", "says"), [
    (("time=2",), "they would stop at once"),
    (("time=0:2:0",), "they would stop at once"),
    (("time=1-0", "signal=USR1@86400"), "Slurm warns the ranks 86400 s before"),
    (("signal=USR2@60",), "expected USR1@N")])
def test_a_time_that_is_over_with_its_warning(cluster, sets, says):
    with pytest.raises(SpecError, match=says):
        cluster.script(*(f"run.sbatch.{text}" for text in sets))


def test_cpu_slots_ask_for_no_gpu(cluster):
    spec = spec_of("devices.hosts=slurm:cpu:0,cpu:1")
    found = asked(batch_script(spec, "/", "/h"))
    assert "cpus-per-task=2" in found
    assert not [o for o in found if "gpu" in o]


def test_the_line_knows_its_run_and_its_job(cluster):
    done = cluster.run(cluster.script(run="/h/runs/a b"), SLURM_CPUS_PER_TASK="3")
    assert (done.returncode, done.stderr) == (0, "")
    assert cluster.argv() == [
        "--ntasks-per-node=1", "--kill-on-bad-exit=1", *submit.script.own_program(
            "gpu_engine.on_node", "/h/runs/a b")]
    env = cluster.environment()
    assert (env["SRUN_CPUS_PER_TASK"], env["GPU_PANEL_SLURM_JOB"]) == ("3", "41007")
    assert cluster.run(cluster.script(), EXIT="75").returncode == 75


# --- words stay words ----------------------------------------------------------------------------

WORDS = st.text(st.one_of(st.sampled_from("'\"\\$`!#;&|<>(){}[]*?~= \u00a0%@-\N{SNOWMAN}"),
                          st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))),
                min_size=1, max_size=40)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("slurm"))


@settings(max_examples=40, deadline=None)
@given(value=WORDS, home=WORDS)
def test_srun_receives_the_words_that_were_meant(shared, value, home):
    home = str(shared.folder / "h") + home.replace("/", "")
    sets = f"task.params.text={json.dumps(value)}"
    done = shared.run(shared.script(sets, home=home))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    words = shared.argv()[shared.argv().index("-") + 1:]
    assert set(words[::2]) == {"--set"}
    assert choose_spec(None, words[1::2]).spec == spec_of(
        sets, "parallel.nodes=2", "devices.pick=2")
    assert shared.environment()["GPU_PANEL_HOME"] == home


@given(text=st.text(max_size=30))
@settings(max_examples=200, deadline=None)
def test_an_option_stays_one_line(shared, text):
    try:
        script = shared.script(f"run.sbatch.comment={text}")
    except UserError:
        return
    (line,) = [s for s in script.split("\n") if s.startswith("#SBATCH --comment")]
    said = f"--comment={text}" if text else "--comment"
    assert shlex.split(line.removeprefix("#SBATCH "), comments=True) == [said]
    assert script.partition("\n\n")[0].count("#SBATCH") == 9 + text.count("#SBATCH")


@pytest.mark.parametrize("option", ["nodes=3", "gpus=3", "array=1-9", "export=NONE", "wait"])
def test_what_the_script_depends_on_is_refused(cluster, option):
    with pytest.raises(UserError, match="depends on its own"):
        cluster.script(f"run.sbatch.{option}" if "=" in option else f"run.sbatch.{option}=")


@pytest.mark.parametrize("place", [
    {"folder": "/a\nb"}, {"home": "/a\x1b[0m"}, {"run": "/p\u2028"}])
def test_control_characters_are_refused(cluster, place):
    with pytest.raises(UserError, match="can't stand in a batch script"):
        cluster.script(**place)


@pytest.mark.parametrize(("sets", "says"), [
    (["batch.size=7", "devices.pick=2"], "batch.size"),
    (["devices.hosts=slurm,gpu1"], "on Slurm's nodes or on hosts, not on both"),
    (["devices.hosts=slurm:0,1"], "Slurm chooses the devices: say how many"),
    (["devices.hosts=slurm:a100", "run.sbatch.partition=b"], "names another; leave one out"),
    (["parallel.mode=dp", "parallel.nodes=2"], "stays on one machine"),
    (["parallel.mode=single", "devices.pick=2"], "parallel.mode")])
def test_what_does_not_fit_is_said_before_the_job_waits(sets, says):
    with pytest.raises(SpecError, match=says):
        batch_script(spec_of(*sets), "/", "/h")


def test_a_host_that_is_called_slurm_keeps_its_name(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    assert submit.is_meant(spec_of())
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text("Host other slurm\n  HostName 10.0.0.9\n")
    assert not submit.is_meant(spec_of())
    assert submit.is_meant(spec_of("devices.hosts=slurm:a100"))
    assert not submit.is_meant(spec_of("devices.hosts=gpu1"))


# --- as a person types it ------------------------------------------------------------------------

def test_the_command_writes_it(home, tmp_path):
    file = tmp_path / "job.sh"
    out = engine("slurm", "ddp", "--gpus", "2", "--time", "1:00:00", "--output", str(file))
    assert (out.returncode, out.stdout) == (0, "")
    assert f"submit it with: sbatch {file}" in out.stderr
    assert "#SBATCH --time=1:00:00\n" in file.read_text()
    assert f"GPU_PANEL_HOME={home} " in file.read_text()
    out = engine("slurm", "ddp", "-o", "gpus-per-node=2")
    assert (out.returncode, out.stdout) == (2, "")
    assert "depends on its own; --nodes and -n say" in out.stderr
