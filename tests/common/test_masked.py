"""Secrets in a run's environment: in its files, and in nothing that is shown."""

import json
import os
import sys

import pytest

from gpu_engine.common.clean import MASK, shown
from gpu_engine.launching.launcher import prepare, resume
from gpu_engine.runs.create import create_run
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_toml
from gpu_panel.launch.plan import processes_text

from ..command_line import called

SECRET = "hf_8sPq"


@pytest.mark.parametrize(("name", "secret"), [
    *((n, True) for n in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD",
                          "github_pat", "AUTH_HEADER", "GOOGLE_CREDENTIALS")),
    *((n, False) for n in ("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "PYTHONPATH", "HF_HOME",
                           "NCCL_DEBUG", "MONKEYS", "AUTHOR"))])
def test_which_names_look_like_a_secret(name, secret):
    assert (shown(name, "x") == MASK) is secret


def test_secrets_are_in_the_runs_own_files_alone(home, tmp_path):
    spec = {"name": "n", "devices": {"ids": ["cpu:0"]}, "run": {"env": {"HF_TOKEN": SECRET}},
            "task": {"command": ["env", f"WANDB_API_KEY={SECRET}", sys.executable, "-c", "0"]}}
    prepared = prepare(from_dict(spec))
    made, lock = create_run("n", to_toml(prepared.spec), prepared.plan)
    os.close(lock)
    for name in ("spec.toml", "plan.json"):
        file = made.path / name
        assert SECRET in file.read_text()
        assert file.stat().st_mode & 0o077 == 0
    (tmp_path / "p.toml").write_text(to_toml(prepared.spec))
    said = [str(processes_text(prepared.plan))]
    for words in (["plan", str(tmp_path / "p.toml")], ["plan", str(tmp_path / "p.toml"), "--json"],
                  ["show", made.id], ["show", made.id, "--json"],
                  ["report", made.id, "-o", str(tmp_path / "r.html")], ["runs", "--json"]):
        done = called(*words)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    said.append((tmp_path / "r.html").read_text())
    assert not [text for text in said if SECRET in text]
    assert sum(MASK in text for text in said) > 5


def test_a_secret_that_a_resume_changes_is_not_told(home):
    spec = from_dict({"devices": {"ids": ["cpu:0"]}, "run": {"env": {"HF_TOKEN": "a"}},
                      "task": {"command": [sys.executable, "-c", "0"]}})
    prepared = prepare(spec)
    made, lock = create_run("n", to_toml(prepared.spec), prepared.plan)
    os.close(lock)
    resume(made, [f"run.env.HF_TOKEN={SECRET}"])
    assert f"run.env.HF_TOKEN={MASK}" in json.dumps(made.state().to_dict())
    assert SECRET not in json.dumps(made.state().to_dict())
