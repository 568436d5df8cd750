"""RunSpec: what is read, what is refused and how, and that nothing is lost on the way."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.notify import config as notify
from gpu_engine.remote.reach import hosts
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.settings import file as settings
from gpu_engine.spec import modes, presets, read, write
from gpu_engine.spec import schema as sp
from gpu_engine.spec.read import apply_sets, from_dict, spelled_out

from ..notify.endpoint import private


def refused(data: dict) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        read.from_dict(data)
    return {p.key: p.message for p in caught.value.problems}


def test_every_problem_is_found_at_once_with_key_value_and_remedy():
    found = refused({"nme": "x", "batch": {"size": "many", "meaning": "globl"},
                     "train": {"lr": float("inf"), "stepz": 3}, "devices": {"ids": "0"}})
    assert found["nme"] == "there is no such key; did you mean name?"
    assert found["batch.size"] == "expected a whole number at least 1"
    assert "global" in found["batch.meaning"]
    assert "did you mean global?" in found["batch.meaning"]
    assert found["train.lr"] == "expected a number greater than 0"
    assert "train.steps" in found["train.stepz"]
    assert found["devices.ids"] == "expected a list of texts"


def test_a_key_in_the_wrong_section_is_pointed_to_the_right_one():
    assert "parallel.master_port" in refused({"train": {"master_port": 1}})["train.master_port"]


@pytest.mark.parametrize(("section", "pair"), [
    ("train", {"epochs": 1, "steps": 1}), ("devices", {"ids": ["0"], "pick": 1}),
    ("task", {"use": "a:B", "command": ["x"]})])
def test_one_of_two_is_refused_when_both_are_given(section, pair):
    assert "not both" in " ".join(refused({section: pair}).values())


@pytest.mark.parametrize("bad", [
    {"batch": 3}, {"parallel": {"mode": "fsdp"}}, {"name": ""}, {"name": "two\nlines"},
    {"name": 3}, {"name": "x" * 81}, {"task": {"command": "python x"}},
    {"devices": {"ids": [1.5]}}])
def test_values_out_of_range_or_of_the_wrong_type_are_refused(bad):
    assert refused(bad)


def test_toml_is_refused_with_file_and_place(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text("[batch\nsize=3")
    with pytest.raises(UserError, match=r"p\.toml: not valid TOML.*line 1"):
        read.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read"):
        read.load(path)
    with pytest.raises(UserError, match="no such file"):
        read.load(tmp_path / "absent.toml")


def test_what_is_not_a_file_is_refused_by_its_kind_and_never_waited_for(tmp_path):
    os.mkfifo(fifo := tmp_path / "fifo.toml")
    for path, kind in ((fifo, "a FIFO"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(UserError) as caught:
            read.load(path)
        assert str(caught.value) == f"{path}: cannot be read: it is {kind}, not a file"


# --- --set -------------------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "ids"), [
    ("0,1", ["0", "1"]), ("cpu:0", ["cpu:0"]), ('["0", "1"]', ["0", "1"]), ("0", ["0"])])
def test_devices_are_texts_however_they_are_typed(text, ids):
    """Values of the other keys: test_keys.py."""
    data: dict = {}
    read.apply_set(data, f"devices.ids={text}")
    assert read.from_dict(data).devices.ids == ids


@pytest.mark.parametrize("text", ["batch.size", "=3", "batch.sise=3", "nothing.here=1",
                                  "task.parms.x=1"])
def test_set_refuses_what_it_cannot_place(text):
    with pytest.raises(SpecError):
        read.apply_set({}, text)


def test_setting_one_of_a_pair_drops_the_other():
    data = {"train": {"epochs": 3}, "devices": {"pick": 2}}
    read.apply_set(data, "train.steps=10")
    read.apply_set(data, "devices.ids=0")
    spec = read.from_dict(data)
    assert (spec.train.steps, spec.train.epochs) == (10, None)
    assert (spec.devices.ids, spec.devices.pick) == (["0"], None)


@pytest.mark.parametrize("sets", [
    ["devices.ids=0", "devices.pick=1"], ["devices.ids=0", "devices.hosts=gpu1"],
    ["train.steps=3", "train.epochs=1"]])
def test_two_of_which_one_may_be_given_are_refused_whatever_comes_last(sets):
    with pytest.raises(SpecError, match="not both"):
        read.apply_sets({}, sets)


@pytest.mark.parametrize("given", ["devices.pick=2", "devices.ids=0"])
def test_devices_of_this_machine_do_not_silently_take_the_place_of_hosts(given):
    data = {"devices": {"hosts": ["gpu1:0,1"]}}
    with pytest.raises(SpecError, match=r'devices.hosts = \["gpu1:0,1"\] is set.*local:0,1'):
        read.apply_sets(data, [given])
    read.apply_sets(data, ["devices.hosts=local:0"])
    assert read.from_dict(data).devices.hosts == ["local:0"]


@pytest.mark.parametrize(("hosts", "once"), [
    (["gpu2", "gpu2"], "gpu2"), (["gpu2:cpu:0", "gpu2:cpu:0,cpu:1"], "gpu2:cpu:0,cpu:1"),
    (["gpu2:1", "gpu2"], "gpu2:1")])
def test_a_host_that_is_named_twice_is_named_once_in_the_advice(hosts, once):
    with pytest.raises(SpecError) as told:
        read.from_dict({"devices": {"hosts": hosts}})
    assert str(told.value).endswith(f"with all its devices: {once}")
    assert read.from_dict({"devices": {"hosts": [once]}})


def test_hosts_take_the_place_of_a_presets_devices():
    data = {"devices": {"pick": 2}}
    read.apply_sets(data, ["devices.hosts=gpu1"])
    assert read.from_dict(data).devices == sp.DevicesSpec(hosts=["gpu1"])


def test_slurm_is_asked_for_so_many_devices():
    """By a preset, or by hand."""
    for data, typed in (({"pick": 2}, "devices.hosts=slurm"), ({"hosts": ["slurm"]}, "pick=2")):
        whole = {"devices": data}
        read.apply_sets(whole, [typed])
        assert read.from_dict(whole).devices == sp.DevicesSpec(hosts=["slurm"], pick=2)
    slots = {"devices": {"pick": 2}}
    read.apply_sets(slots, ["devices.hosts=slurm:cpu:0"])
    assert read.from_dict(slots).devices == sp.DevicesSpec(hosts=["slurm:cpu:0"])


def test_options_of_sbatch_are_typed_as_words_some_without_a_value():
    data = {}
    read.apply_sets(data, ["run.sbatch=account='vision lab' exclusive"])
    assert read.from_dict(data).run.sbatch == {"account": "vision lab", "exclusive": ""}
    assert read.from_dict({"run": {"sbatch": {"time": 60}}}).run.sbatch == {"time": "60"}
    read.apply_sets(data, ["run.sbatch=account='x"])
    with pytest.raises(SpecError, match=r"run.sbatch.*as in account=vision"):
        read.from_dict(data)


@pytest.mark.parametrize(("sets", "env"), [
    (["run.env.NCCL_DEBUG=INFO", "run.env.HF_HOME=/data/a b"],
     {"NCCL_DEBUG": "INFO", "HF_HOME": "/data/a b"}),
    (["run.env=NCCL_DEBUG=INFO HF_HOME='/data/a b' EMPTY="],
     {"NCCL_DEBUG": "INFO", "HF_HOME": "/data/a b", "EMPTY": ""}),
    (['run.env={A = "=1", B = 2, C = true, D = 9.0}'],
     {"A": "=1", "B": "2", "C": "true", "D": "9.0"}),
    (["run.env.A=1", "env="], {})])
def test_variables_are_set_one_by_one_as_a_shell_takes_them_or_as_a_table(sets, env):
    data = {}
    read.apply_sets(data, sets)
    spec = read.from_dict(data)
    assert spec.run.env == env
    again = {}
    read.apply_sets(again, write.differences(sp.RunSpec(), spec))
    assert read.from_dict(again) == spec


@pytest.mark.parametrize("given", ["A", "A=1 B", "'A=1", "{A = 1", {"A": [1]}])
def test_what_is_no_variable_is_refused_with_what_would_do(given):
    data = {"run": {"env": given}}
    if isinstance(given, str):
        read.apply_sets(data, [f"run.env={given}"])
    with pytest.raises(SpecError, match=r"run.env.*as in .*NCCL_DEBUG"):
        read.from_dict(data)


def test_naming_another_task_drops_the_parameters_of_the_one_before():
    data = {"task": {"use": "a:A", "params": {"width": 3}}}
    read.apply_sets(data, ["task.params.depth=2", "task.use=b:B"])
    assert read.from_dict(data).task == sp.TaskSpec(use="b:B", params={"depth": 2})
    read.apply_sets(data, ["task.use=b:B"])
    assert read.from_dict(data).task.params == {"depth": 2}


def test_task_params_take_any_toml_value():
    data: dict = {}
    for text in ("task.params.width=128", "task.params.text=src/", "task.params.deep=true",
                 'task.params.s="128"'):
        read.apply_set(data, text)
    assert data["task"]["params"] == {"width": 128, "text": "src/", "deep": True, "s": "128"}


# --- nothing is lost ---------------------------------------------------------------------------

words = st.text(st.characters(min_codepoint=32, max_codepoint=0x2fff, exclude_categories=["C"]),
                min_size=1, max_size=12)
scalars = st.one_of(st.integers(-10**6, 10**6), st.booleans(), words,
                    st.floats(allow_nan=False, allow_infinity=False, width=32))


@st.composite
def specs(draw) -> sp.RunSpec:
    maybe = lambda s: draw(st.none() | s)  # noqa: E731
    ids = maybe(st.lists(words, min_size=1, max_size=4))
    command = maybe(st.lists(words, min_size=1, max_size=4))
    epochs = maybe(st.integers(1, 99))
    return sp.RunSpec(
        name=draw(words.filter(lambda s: s.strip() and s.isprintable())),
        task=sp.TaskSpec(use=None if command else maybe(words), command=command,
                         params=draw(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True),
                                                     scalars, max_size=3))),
        devices=sp.DevicesSpec(ids=ids, pick=None if ids else maybe(st.integers(1, 8))),
        parallel=sp.ParallelSpec(
            mode=draw(st.sampled_from(modes.names())),
            master_addr=draw(words), master_port=maybe(st.integers(0, 65535)),
            static_graph=draw(st.booleans())),
        batch=sp.BatchSpec(size=draw(st.integers(1, 9999)),
                           meaning=draw(st.sampled_from(["global", "per_gpu"]))),
        train=sp.TrainSpec(epochs=epochs, steps=None if epochs else maybe(st.integers(1, 99)),
                           lr=draw(st.floats(1e-9, 10)), best=maybe(words)),
        run=sp.ProcessSpec(python=maybe(words)))


@given(specs())
def test_written_and_read_again_it_is_the_same(spec):
    import tomllib

    assert read.from_dict(tomllib.loads(write.to_toml(spec))) == spec
    assert read.from_dict(write.to_dict(spec, defaults=False)) == spec


@given(specs())
@example(read.from_dict({"task": {"params": {"width": "8", "on": "true"}}}))
def test_the_sets_that_name_the_differences_rebuild_it(spec):
    data: dict = {}
    for assignment in write.differences(sp.RunSpec(), spec):
        read.apply_set(data, assignment)
    assert read.from_dict(data) == spec


@given(specs(), specs())
def test_what_differs_makes_the_one_of_the_other(base, spec):
    data = write.to_dict(base)
    found = write.compare(base, spec)
    for one in found:
        if one.after is not None:
            read.apply_set(data, f"{one.key}={one.after}")
        else:
            section, _, name = one.key.partition(".")
            if name.startswith("params."):
                del data["task"]["params"][name.removeprefix("params.")]
            else:
                data[section].pop(name, None)  # `task.use` has dropped `task.command`
    assert read.from_dict(data) == spec
    assert {(d.key, d.after, d.before) for d in found} \
        == {(d.key, d.before, d.after) for d in write.compare(spec, base)}


@given(st.recursive(scalars | st.none(), lambda s: st.lists(s) | st.dictionaries(words, s),
                    max_leaves=10))
def test_anything_read_gives_a_spec_or_a_spec_error(value):
    data = value if isinstance(value, dict) else {"batch": value, "task": {"use": value}}
    with contextlib.suppress(SpecError):
        assert isinstance(read.from_dict(data), sp.RunSpec)


@pytest.mark.parametrize(("given", "says"), [
    ("amp=bf16", "did you mean amp.dtype=bf16?"), ("amp=true", "did you mean amp.tf32=true?"),
    ("precision.amp=bf16", "did you mean amp.dtype=bf16?"), ("batch=64", "batch.size=64?"),
    ("devices=0,1", "devices.ids=0,1?"), ("train.epoch=3", "did you mean train.epochs?"),
    ("trian.lr=3", "did you mean train.lr?"),
    ("train.wokrs=3", "did you mean train.workers?")])
def test_a_key_that_is_meant_is_named(given, says):
    with pytest.raises(SpecError, match=re.escape(says)):
        apply_sets({}, [given])


@pytest.mark.parametrize(("given", "meant"), [
    *((f"amp.dtype={word}", "amp.dtype=off") for word in ("fp32", "float32", "no", "None", "OFF")),
    ("amp.dtype=BF16", "amp.dtype=bf16"), ("parallel.mode=DDP", "parallel.mode=ddp"),
    ("learning_rate=0.5", "train.lr=0.5"), ("batch_size=3", "batch.size=3")])
def test_words_of_elsewhere_are_taken_for_ours(home, given, meant):
    data, ours = {}, {}
    apply_sets(data, [given])
    apply_sets(ours, [meant])
    assert data == ours
    key, _, word = given.partition("=")
    if "." in key:  # in a file too, and for the form, which offers ours
        section, _, name = key.partition(".")
        path = home / "x.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'[{section}]\n{name} = "{word}"\n')
        assert presets.load(str(path)).data == ours
    else:
        assert meant.partition("=")[0] in refused({"train": {key: 1}})[f"train.{key}"]


def test_a_byte_order_mark_before_a_file_is_no_mistake(home):
    for path, text in ((home / "p.toml", "[train]\nsteps = 7\n"),
                       (hosts.path(), "[hosts.gpu1]\n"),
                       (settings.path(), "[panel]\nrefresh = 2\n"),
                       (notify.path(), '[[to]]\nkind = "command"\ncommand = ["true"]\n')):
        private(path, f"\ufeff{text}")
    assert presets.load(str(home / "p.toml")).spec.train.steps == 7
    assert list(hosts.read()) == ["gpu1"]
    hosts.add(Host("gpu2"))
    assert list(hosts.read()) == ["gpu1", "gpu2"]
    assert settings.read().panel.refresh == 2
    assert len(notify.read()) == 1
    private(presets.own_folder() / "mine.toml", "\ufeff# kept\n[train]\nsteps = 7\n")
    assert "# kept" in presets.save("mine", presets.load("mine").spec).read_text()


def test_a_key_may_be_named_without_its_section():
    names = [key.name for key in sp.keys().values()]
    assert [n for n in set(names) if names.count(n) > 1] == ["best"], "has to be named whole"
    data = {}
    apply_sets(data, ["lr=1e-3", "dtype=bf16", "use=a:B", "name=x", "task.params.lr=3"])
    assert data == {"train": {"lr": 1e-3}, "amp": {"dtype": "bf16"}, "name": "x",
                    "task": {"use": "a:B", "params": {"lr": 3}}}
    assert spelled_out("steps=3") == "train.steps=3"
    assert spelled_out("batch.size=3") == "batch.size=3"
    assert spelled_out("lr") == "lr"


@pytest.mark.parametrize(("given", "steps"), [("1e6", 10**6), ("3.0", 3), ("1_000", 1000)])
def test_a_whole_number_may_be_written_as_a_float(given, steps):
    data = {}
    apply_sets(data, [f"train.steps={given}"])
    assert from_dict(data).train.steps == steps
    assert type(from_dict(data).train.steps) is int
    assert from_dict({"train": {"steps": float(steps)}}).train.steps == steps


@pytest.mark.parametrize("given", [1.5, 1e300, float("inf"), float("nan"), 1e-3])
def test_no_other_float_is_a_whole_number(given):
    with pytest.raises(SpecError, match="a whole number"):
        from_dict({"train": {"steps": given}})


def test_the_value_that_decides_which_is_best():
    assert sp.parse_best(None) is None
    assert sp.parse_best("loss") == ("loss", False)
    assert sp.parse_best("max:accuracy") == ("accuracy", True)
    with pytest.raises(UserError, match="expected the name"):
        sp.parse_best("most:accuracy")
