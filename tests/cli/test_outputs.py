"""What --json prints, against the schema that is told of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from gpu_engine.cli import cli, outputs
from gpu_engine.common import paths
from gpu_engine.events.schema import KINDS
from gpu_engine.launching.fit import Trial
from gpu_engine.runs import folder
from gpu_engine.spec import presets
from gpu_engine.spec.catalog import key_docs
from gpu_engine.spec.schema import keys

from ..command_line import called
from ..conftest import wait_for

NAMED = ("metric", "eval")
"""Lines that have values by the names that somebody gave them."""


def strict(name: str) -> Draft202012Validator:
    """By the schema that is told, and nothing that it does not name."""
    told = json.loads(called("settings", "--schema", name).stdout)
    events = {cls.__name__ for cls in KINDS.values()} if name == "show" else \
        {KINDS[kind].__name__ for kind in NAMED}
    for title, one in told["$defs"].items():
        if title not in events:
            one.setdefault("additionalProperties", False)
    return Draft202012Validator(told)


def check(name: str, text: str) -> Any:
    """The answer of a command, which is as its schema says."""
    answer = json.loads(text)
    wrong = [f"{list(error.path)}: {error.message[:300]}" for error in strict(name).iter_errors(
        answer)]
    assert not wrong, (name, wrong, text[:2000])
    return answer


def with_json(command: click.Command, name: str = "") -> Iterator[str]:
    """Every command that has the option."""
    if any("--json" in one.opts and not getattr(one, "hidden", False) for one in command.params):
        yield name
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from with_json(found, f"{name} {inner}".strip())


def followed(*words: str) -> list[str]:
    """The lines of a run that is followed to its end."""
    done = subprocess.run([sys.executable, "-m", "gpu_engine", "run", "--json", "--devices",
                           "cpu:0", *words], capture_output=True, text=True, check=False,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def test_what_every_command_prints_is_as_its_schema_says(home: Path, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpu_engine.launching.fit.search", lambda tried, room: [
        Trial(4, True, 1 << 30, 9.5), Trial(8, False, why="memory")])  # tests/launching/test_fit.py
    lines = followed("default", "--set", "task.use=gpu_engine.tasks.digits:Digits", "--set",
                     "train.steps=4", "--set", "train.eval_every=2")
    lines += followed("--metric", r"bpb: (\S+)", "--", "sh", "-c",
                      "echo bpb: 0.9; echo bpb: nan; exit 3")
    told = [check("run", line) for line in lines]
    assert {"run", "state", "start", "step", "eval", "checkpoint", "metric", "ended"} \
        <= {one["kind"] for one in told}
    one, two = (each["id"] for each in told if each["kind"] == "run")
    told = [check("follow", line) for line in called("follow", one, "--json").stdout.splitlines()]
    assert (told[-1]["kind"], told[-1]["state"]) == ("ended", "completed")
    assert "".join(piece["text"] for piece in told if piece.get("name") == "ranks/00000.jsonl") \
        == (folder.find(one).path / "ranks/00000.jsonl").read_text()
    with subprocess.Popen([sys.executable, "-m", "gpu_engine", "devices", "--json", "--watch", "1"],
                          stdout=subprocess.PIPE, text=True) as watching:
        told = [check("devices", watching.stdout.readline()) for _ in range(3)]
        watching.terminate()
    assert [line["kind"] for line in told] == ["machine", "look", "look"]
    (paths.settings_folder() / "hosts.toml").write_text('[hosts.box]\nvia = ["false"]\n')
    (paths.settings_folder() / "notify.toml").write_text(
        '[[to]]\nname = "me"\nkind = "command"\ncommand = ["true"]\n')
    (paths.settings_folder() / "notify.toml").chmod(0o600)
    presets.own_folder().mkdir()
    (presets.own_folder() / "ddp.toml").write_text('name = "mine"\n')
    (presets.own_folder() / "odd.toml").write_text("x")
    waiting = ("--json", "--devices", "cpu:0", "--set", "train.steps=4", "default")
    try:
        live = check("run", called("run", "--detach", "--json", "--devices", "cpu:0", "--", "sleep",
                                   "99").stdout)["id"]
        wait_for(lambda: folder.find(live).state().state == "running")
        check("run", called("run", "--queue", *waiting).stdout)
        sweep = check("run", called("run", "--grid", "train.lr=1,2", *waiting).stdout)["id"]
        called("note", one, "--keep", "--tag", "a")
        asked = {
            "runs": ["runs", "runs --best bpb"], "show": [f"show {one}", f"show {two}", "show"],
            "curve": [f"curve {one}", f"curve {one} eval:loss"],
            "errors": ["show nope", "run nope", "run default --set train.steps=x"],
            "note": [f"note {one}"], "compare": [f"compare {one} {two}"], "queue": ["queue"],
            "sweep": ["sweep"], "sweep show": [f"sweep show {sweep}"],
            "devices": ["devices", "devices --hosts"], "stacks": [f"stacks {live} --wait 0"],
            "doctor": ["doctor"], "hosts": ["hosts"], "hosts check": ["hosts check box local"],
            "notify": ["notify", "notify --test"], "settings": ["settings"],
            "describe": ["describe", "describe gpu_engine.tasks.digits:Digits"],
            "presets": ["presets", "presets single"], "trace": [f"trace {live} --wait 1"],
            "plan": ["plan default --devices cpu:0", "plan default --grid train.lr=1,2 -n 1"],
            "export": [f"export {one} out.pt", f"export {one} {two} --to csv", f"export {one}"],
            "fit": ["fit default --devices cpu:1 --memory 2GiB"],
            "usage": ["usage --by user", "usage --by device"],
            "check": ["check default --devices cpu:1"], "stop": [f"stop {live} --now"],
            "runs rm": [f"runs rm --yes {two}"]}
        for name, commands in asked.items():
            for command in commands:
                done = called(*command.split(), "--json")
                assert done.returncode in ((2,) if name == "errors" else (0, 1)), done.stderr
                check(name, done.stdout)
    finally:
        for run in folder.all_runs():
            if run.state().live:
                called("stop", run.id, "--now")
    assert set(asked) | {"run", "follow"} == set(outputs.OUTPUTS) \
        == {name for name in with_json(cli) if name != "resume"} | {"errors"}
    assert json.loads(called("settings", "--schema", "list").stdout) == [
        "preset", *outputs.OUTPUTS]
    out = called("settings", "--schema", "rnus")
    assert (out.returncode, "did you mean runs?" in out.stderr) == (2, True)


def test_a_preset_is_checked_as_it_would_be_read() -> None:
    told = json.loads(called("settings", "--schema").stdout)
    good = Draft7Validator(told).is_valid
    for file in presets.shipped_folder().glob("*.toml"):
        assert good(tomllib.loads(file.read_text())), file
    known = told["properties"]
    for key in keys().values():
        node = (known[key.section]["properties"] if key.section else known)[key.name]
        assert node["description"] == key_docs()[key.dotted]
        assert key.default is None or Draft7Validator(node).is_valid(key.default), key.dotted
    for text in ('description = "x"\nname = "x"', "run.limit = '1h30m'", "run.limit = 9",
                 "train.lr = 1", "parallel.mode = 'ddp'", "task.params.width = [1, 'x']",
                 "run.metrics = 'auto'", "run.metrics.a = 'a(.)'", "devices.ids = ['0']"):
        assert good(tomllib.loads(text)), text
    for text in ("run.limit = '5x'", "run.limit = 0.5", "train.lr = 0", "train.steps = 1.5",
                 "train.lrr = 1", "parallel.mode = 'ddpp'",
                 "tasks.use = ''", "run.metrics = 'all'", "devices.ids = [0.5]"):
        assert not good(tomllib.loads(text)), text
