"""The nodes of a Slurm job as hosts, with a stand-in for Slurm's command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpu_engine.remote.reach import file
from gpu_engine.remote.reach.file import hosts_of_job
from gpu_engine.remote.reach.records import Host

JOB = {"SLURM_JOB_ID": "41007", "SLURM_JOB_NODELIST": "gpu[03-05]"}


@pytest.fixture(autouse=True)
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prints three names, one of which can't be one, for the list of the job."""
    command = tmp_path / "scontrol"
    command.write_text('#!/bin/sh\n[ "$*" = "show hostnames gpu[03-05]" ] || exit 1\n'
                       "printf 'gpu03\\ngpu04\\n-o bad\\ngpu05\\n'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    file._names.cache_clear()
    yield command
    file._names.cache_clear()


def test_all_nodes_but_this_one() -> None:
    found = hosts_of_job(JOB | {"SLURMD_NODENAME": "gpu03"})
    assert list(found) == ["gpu04", "bad", "gpu05"]
    assert found["gpu04"] == Host("gpu04", python=sys.executable, label="node of job 41007", via=(
        "srun", "--jobid=41007", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu04"))


@pytest.mark.parametrize("env", [
    {}, {"SLURM_JOB_ID": "41007"}, {"SLURM_JOB_NODELIST": "gpu[03-05]"},
    JOB | {"SLURM_JOB_ID": "7; rm"}, JOB | {"SLURM_JOB_NODELIST": "gpu[06-07]"}])
def test_none_outside_a_job_or_where_slurm_does_not_answer(env) -> None:
    assert hosts_of_job(env) == {}


def test_none_without_slurm(scontrol: Path) -> None:
    scontrol.unlink()
    assert hosts_of_job(JOB) == {}


def test_what_stands_in_the_file_has_precedence(home: Path, monkeypatch) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    home.mkdir()
    (home / "hosts.toml").write_text('[hosts.gpu04]\nssh = "me@gpu04"\n[hosts.other]\n')
    assert file.known()["gpu04"] == Host("gpu04", ssh="me@gpu04")
    assert file.find("gpu05").via[0] == "srun"
    assert file.find("elsewhere") == Host("elsewhere")
    assert list(file.read()) == ["gpu04", "other"]  # what is written back is the file alone
