"""Which commands start ranks of their own, whatever stands before their launcher."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.plan import own_command as command
from gpu_engine.plan.own_command import PLACEHOLDERS, program
from gpu_engine.spec.schema import ProcessSpec, RunSpec, TaskSpec, known_keys
from gpu_engine.spec.write import to_dict

from ..spec.test_keys import KEYS, of, values_of, with_value

LAUNCHERS = """
torchrun --nproc-per-node=2 train.py
/opt/env/bin/torchrun train.py
python -m torch.distributed.run train.py
python -u -m torch.distributed.run train.py
python3.11 -X faulthandler -W ignore -um torch.distributed.run train.py
python -mtorch.distributed.launch train.py
python /opt/env/bin/torchrun train.py
env X=1 torchrun train.py
env -u RANK -i A=b C=d\\ e python -m torch.distributed.run train.py
uv run torchrun train.py
uv run --no-project --with torch -p 3.11 torchrun train.py
uv --directory sub run --extra cuda -- torchrun train.py
uv run -m torch.distributed.run train.py
uv run python -u -m torch.distributed.run train.py
uvx --from torch torchrun train.py
conda run -n train --no-capture-output torchrun train.py
poetry run accelerate launch train.py
accelerate-launch train.py
nohup nice -n 5 torchrun train.py
timeout -k 10 3600 env X=1 srun python train.py
taskset -c 0-3 torchrun train.py
numactl --cpunodebind=0 -m 0 torchrun train.py
nsys profile -o out torchrun train.py
bash run.sh
env X=1 ./launch.sh
python -m accelerate.commands.launch train.py
deepspeed train.py
uv run tune run --nproc_per_node 2 full_finetune_distributed
llamafactory-cli train a.yaml
axolotl train a.yaml
swift sft --model x
yolo train device=0,1
colossalai run --nproc_per_node 2 train.py
python -m llamafactory.cli train a.yaml
"""
PROGRAMS = """
python train.py
python -u train.py --launcher torchrun
python -m train torchrun
python -c 'import torch.distributed.run'
env X=1 python train.py
uv run train.py
uv run python train.py --backend torchrun
uv run --with torchrun train.py
uv pip install torchrun
uv sync
conda install torchrun
conda run -n torchrun python train.py
nohup ./train
timeout 10 ./torchrun-like
env
python
./main torchrun
"""


@pytest.mark.parametrize("line", LAUNCHERS.strip().splitlines())
def test_a_launcher_behind_anything_runs_once(line):
    assert command.launches_itself(shlex.split(line))


@pytest.mark.parametrize("line", PROGRAMS.strip().splitlines())
def test_a_program_is_no_launcher_for_its_words(line):
    assert not command.launches_itself(shlex.split(line))


@pytest.mark.parametrize(("line", "behind"), [
    ("uv run train.py --lr 1", "python train.py --lr 1"), ("env -- A=b nohup sh y", "sh y"),
    ("uv", ""), ("timeout 5", ""), ("", "")])
def test_what_is_behind_wrappers(line, behind):
    assert program(shlex.split(line)) == shlex.split(behind)


@pytest.mark.parametrize(("line", "told"), [
    ("timeout 6 python train.py", "timeout 6"), ("python train.py timeout 6 x", None),
    ("/usr/bin/timeout -k 5s -s INT 1.5h uv run train.py 3", "timeout -k 5s -s INT 1.5h")])
def test_the_time_that_a_command_gives_itself(line, told):
    assert command.timed_out(shlex.split(line)) == told


def test_what_the_engine_does_itself_is_never_told_to_a_command():
    """A new key of [train] is the engine's own, until a placeholder hands it on."""
    hidden = {key for key in known_keys() if not command.is_told(["train", "{seed}"], key)}
    assert {"train.weight_decay", "train.checkpoint_async", "train.clip", "train.lr",
            "amp.tf32"} <= hidden
    assert hidden.isdisjoint({"train.seed", "train.restarts", "train.hang_timeout", "run.grace",
                              "parallel.timeout", "devices.share"})
    of_training = {key for key in known_keys() if key.startswith(("amp.", "train."))}
    assert of_training - hidden == {"train.seed", "train.restarts", "train.hang_timeout"}


@given(st.sampled_from(KEYS), st.sampled_from(
    [None, ["x"], ["x", "--lr={lr}"], ["x", "{batch.global}", "{seed}"]]), st.data())
def test_what_is_set_and_refused_is_what_would_be_left_out_of_an_older_spec(key, words, data):
    spec = with_value(key, data.draw(values_of(key)))
    if words and key.section != "task":
        spec = replace(spec, task=TaskSpec(command=words))
    refused = [problem.key for problem in command.check_heard(spec)]
    kept = command.left_out(to_dict(spec)).get(key.section, {})
    assert refused == [key.dotted] * (of(spec, key) != key.default and key.name not in kept)
    assert command.left_out(to_dict(spec), ()) == to_dict(spec)


def test_what_a_stop_does_in_words():
    own = RunSpec(task=TaskSpec(command=["x"]))
    for spec, words in (
            (RunSpec(), "the ranks finish their step and save a checkpoint"),
            (own, "the command gets SIGINT, as from Ctrl-C"),
            (replace(own, run=ProcessSpec(stop_signal="SIGUSR1")), "the command gets SIGUSR1"),
            (None, "a task finishes its step and saves a checkpoint; a command of your own gets "
                   "SIGINT, as from Ctrl-C, or its run.stop_signal")):
        assert command.on_stop(spec) == words


@given(st.lists(st.text(), min_size=1), st.sampled_from(sorted(PLACEHOLDERS)), st.text())
def test_only_placeholders_are_filled_and_only_others_refused(words, name, value):
    escaped = [word.replace("{", "{{").replace("}", "}}") for word in words]
    told = [*escaped, f"a{{{name}}}b"]
    assert command.fill(told, {name: value}) == (*words, f"a{value}b")
    assert command.fill(told, {}) == (*words, f"a{{{name}}}b")
    assert command.used(told) == {name}
    wrong = [(one.key, one.value, one.message.partition(" (")[0])
             for one in command.check([*told, "{xy}"])]
    assert wrong == [*(("task.command", word, "an argument can't hold a NUL character")
                       for word in escaped if "\0" in word),
                     ("task.command", "{xy}", "there is no such placeholder")]


@given(st.sampled_from(["python", "/v/bin/python3.11", "./train"]), st.lists(st.sampled_from(
    ["-m", "-u", "t.py", "--lr", "--", "-x"]), min_size=2))
def test_torchrun_starts_the_same_command(head, rest):
    words, python = [head, *rest], command.is_python(head)
    starts = [head, "-m", "torch.distributed.run"] if python else ["torchrun"]
    made = list(command.under_torchrun(words, ("--standalone",)))
    assert made[:len(starts) + 1] == [*starts, "--standalone"]
    how, *left = made[len(starts) + 1:]
    script = python and (rest[0] == "-m" or not rest[0].startswith("-"))
    left = left if how in ("-m", "--no-python") else [how, *left]
    said = [head, *rest] if not script else rest[rest[0] == "-m":]
    assert (how == "--no-python", how == "-m") == (not script, script and rest[0] == "-m")
    assert left == ["--"] * any(word.startswith("--") for word in said[1:]) + said
