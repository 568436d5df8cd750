"""Secrets in a run's environment: in its files, and in nothing that is shown."""

import json
import os
import subprocess
import sys

import pytest

from gpu_engine.common.clean import MASK, shown, shown_words
from gpu_engine.places.verbs import prepare, resume
from gpu_engine.plan.build import plan as of_spec
from gpu_engine.runs import digest
from gpu_engine.runs.create import create_run
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_toml
from gpu_panel.launch.plan import processes_text

from ..command_line import called
from ..conftest import slots

SECRET = "hf_8sPq"


@pytest.mark.parametrize(("name", "secret"), [
    *((n, True) for n in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD",
                          "github_pat", "AUTH_HEADER", "GOOGLE_CREDENTIALS")),
    *((n, False) for n in ("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "PYTHONPATH", "HF_HOME",
                           "NCCL_DEBUG", "MONKEYS", "AUTHOR"))])
def test_which_names_look_like_a_secret(name, secret):
    assert (shown(name, "x") == MASK) is secret


@pytest.mark.parametrize(("words", "said"), [
    *((f"{option} sk-{SECRET}", f"{option} ***") for option in (
        "--api-key", "--api_key", "-api-key", "--openai-api-key", "--token", "--hf_token",
        "--auth-token", "--acme-token", "--password", "--db.password", "--client-secret", "--pat")),
    *((f"{name}={SECRET} b", f"{name}=*** b") for name in (
        "--token", "--api-key", "WANDB_API_KEY", "AUTH_HEADER", "trainer.logger.api_key",
        "+logger.api_key", "password", "--set run.env.HF_TOKEN", "run.env.secret_word")),
    *((f"git clone {scheme}://{user}@host/x?a=b", f"git clone {scheme}://***@host/x?a=b")
      for scheme in ("https", "git+https")
      for user in (f"me:{SECRET}", SECRET, f"{SECRET}:", "a:b@c")),
    (f"--data=postgres://me:{SECRET}@host/db", "--data=postgres://***@host/db"),
    (f"x https://host/y?v=1&token={SECRET}&w=2#z", "x https://host/y?v=1&token=***&w=2#z"),
    *((same, same) for same in (
        "--tokens 1000", "--max-tokens 5", "--max_tokens=5", "--key-dim 64", "key_dim=64",
        "--key 64", "--text-key caption", "--password-file x", "--token-path=x", "--passes 3",
        "--pad-token 0", "--eos_token=<eos>", "--lr-per-token 1e-5", "--use-auth-token train.py",
        "--no-password data", "--token -v", "--api-key $KEY", "--tokenizer gpt2", "--author me",
        "ssh://git@host/x", "git@host:x", "http://host:80/a@b", "s3://bucket/key=5/x",
        "TOKENIZERS_PARALLELISM=false", "sort=author"))])
def test_which_words_of_a_command_are_secrets(words, said):
    assert " ".join(shown_words(words.split())) == said
    assert shown_words(["sh", "-c", f"cd x &&  {words}"]) == ["sh", "-c", f"cd x &&  {said}"]


def test_secrets_are_in_the_runs_own_files_alone(home, tmp_path):
    spec = {"name": "n", "devices": {"ids": ["cpu:0"]}, "run": {"env": {
        "HF_TOKEN": SECRET, "DATABASE": f"pg://me:{SECRET}@h/x"}}, "task": {"command": [
            "env", f"WANDB_API_KEY={SECRET}", sys.executable, "-c", "0", "--api-key", SECRET,
            f"--from=https://{SECRET}@host/x"]}}
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


def test_the_parameters_of_a_task_and_what_others_see_of_a_hold(home):
    params = {"hub_token": SECRET, "url": f"https://{SECRET}@h", "depth": 2}
    spec = from_dict({"devices": {"ids": ["cpu:0"]}, "task": {"use": "a.py:A", "params": params}})
    made, lock = create_run("n", to_toml(spec), of_spec(spec, slots(1), python="python"))
    os.close(lock)
    said, (line,) = digest.of(made), made.plan().lines
    assert "hub_token=***" in line
    assert SECRET not in f"{line}{said}"
    assert said.settings["task.params.depth"] == "2"
    held = subprocess.run([sys.executable, "-m", "gpu_engine", "hold", "--devices", "cpu:0", "--",
                           "sh", "-c", 'cat "$GPU_PANEL_HOME"/leases/*', "--password", SECRET],
                          capture_output=True, text=True, check=True).stdout
    assert f"--password {MASK}" in held
    assert SECRET not in held


def test_a_secret_that_a_resume_changes_is_not_told(home):
    spec = from_dict({"devices": {"ids": ["cpu:0"]}, "run": {"env": {"HF_TOKEN": "a"}},
                      "task": {"command": [sys.executable, "-c", "0"]}})
    prepared = prepare(spec)
    made, lock = create_run("n", to_toml(prepared.spec), prepared.plan)
    os.close(lock)
    resume(made, [f"run.env.HF_TOKEN={SECRET}"])
    assert f"run.env.HF_TOKEN={MASK}" in json.dumps(made.state().to_dict())
    assert SECRET not in json.dumps(made.state().to_dict())
