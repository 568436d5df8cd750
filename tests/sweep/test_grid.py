"""The members of a sweep: their order, their values as `--set` gives them, and what is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import SpecError
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.schema import LONGEST_NAME
from gpu_engine.spec.write import to_dict
from gpu_engine.sweep import grid

TASK = from_dict({"name": "vgg", "task": {"use": "gpu_engine.tasks.vgg:VGG"}})


def own(*command: str, **more):
    return from_dict({"name": "mine", "task": {"command": list(command)}, **more})


def members(spec, *texts, repeat=1):
    return grid.members(spec, [grid.parse(t) for t in texts], repeat)


def refused(spec, *texts, repeat=1) -> str:
    with pytest.raises(SpecError) as err:
        members(spec, *texts, repeat=repeat)
    return str(err.value)


_AXES = {"train.lr": st.floats(1e-9, 10).map(repr), "batch.size": st.integers(1, 4096).map(str),
         "train.steps": st.integers(1, 10**6).map(str), "amp.dtype": st.sampled_from(
             ["off", "bf16", "fp16"]), "train.best": st.sampled_from(["loss", "max:accuracy"]),
         "task.params.width": st.one_of(st.integers(), st.sampled_from(["wide", "true", "0.5"])
                                        ).map(str),
         "parallel.node_devices": st.lists(st.integers(1, 9), min_size=1, max_size=3).map(str)}


@given(st.lists(st.sampled_from(sorted(_AXES)), min_size=1, max_size=3, unique=True).flatmap(
    lambda keys: st.tuples(*(st.lists(_AXES[k], min_size=1, max_size=4, unique=True).map(
        lambda found, k=k: (k, found)) for k in keys))), st.integers(1, 3))
def test_every_combination_once_in_order_with_the_values_that_set_gives(axes, repeat):
    found = members(TASK, *(f"{k}={','.join(v)}" for k, v in axes), repeat=repeat)
    expected = [(point, r) for point in itertools.product(*(v for _, v in axes))
                for r in range(repeat)]
    assert [(tuple(m.values.values()), m.spec.train.seed) for m in found] == expected
    assert [m.index for m in found] == list(range(1, len(found) + 1))
    assert len({m.spec.name for m in found}) == len(found)
    for member in found:
        data = to_dict(TASK)
        apply_sets(data, [f"{k}={v}" for k, v in member.values.items()])
        data["train"]["seed"] = (member.repeat or 1) - 1
        assert to_dict(member.spec) == to_dict(from_dict(data)) | {"name": member.spec.name}
        assert len(member.spec.name) <= LONGEST_NAME


def test_modes_are_compared_on_the_same_devices_of_which_single_takes_the_first():
    devices = {"ids": ["2", "0", "1"]}, {"pick": 3}
    for chosen, first in zip(devices, ({"ids": ["2"]}, {"pick": 1}), strict=True):
        spec = from_dict(to_dict(TASK) | {"devices": chosen})
        found = members(spec, "parallel.mode=single,dp,ddp")
        assert [to_dict(m.spec, defaults=False)["devices"] for m in found] == [
            first, chosen, chosen]
        assert to_dict(members(spec, "train.lr=1,2")[0].spec, defaults=False)["devices"] == chosen


def test_repeats_count_on_from_the_seed_of_the_spec():
    spec = from_dict(to_dict(TASK) | {"train": {"seed": 7}})
    assert [m.spec.train.seed for m in members(spec, "train.lr=1", repeat=3)] == [7, 8, 9]


def test_names_tell_the_values_shortly():
    found = members(TASK, "train.lr=3e-4", "batch.size=128", repeat=2)
    assert [m.spec.name for m in found] == ["vgg lr=3e-4 size=128 #1", "vgg lr=3e-4 size=128 #2"]
    same = members(TASK, "train.seed=1,2", "task.params.seed=3")
    assert same[0].spec.name == "vgg train.seed=1 task.params.seed=3"
    long = members(own("x", "--" + "w" * 40 + "=1"), f"{'w' * 40}={'v' * 300},{'v' * 299}")
    assert [len(m.spec.name) for m in long] == [66, 66]
    many = members(own("x", *(f"{c * 15}=1" for c in "abcde")), *(f"{c * 15}={c * 30},{c * 31}"
                                                                 for c in "abcde"))
    assert max(len(m.spec.name) for m in many) == LONGEST_NAME


def test_values_that_are_secret_are_told_apart_and_not_told():
    found = members(own("x", "--api-key", "", "--url", ""), "api_key=sk-a,sk-b",
                    "url=https://u:pw@h")
    assert [(m.values, m.spec.name) for m in found] == [
        ({"api_key": f"***{n}", "url": "https://***@h"}, f"mine api_key=***{n} url=https://***@h")
        for n in (1, 2)]
    assert [m.spec.task.command[2] for m in found] == ["sk-a", "sk-b"]


@pytest.mark.parametrize(("text", "found"), [
    ("train.lr=1e-3, 3e-4", ["1e-3", "3e-4"]),
    ("devices.ids=0,1", ["0", "1"]),
    ("devices.ids=[0,1],[2,3]", ["[0,1]", "[2,3]"]),
    ("task.use=it's,o'clock", ["it's", "o'clock"]),
    ("task.params.x='a',{c = 1, d = [2, 3]}", ["'a'", "{c = 1, d = [2, 3]}"]),
    ("task.use=a),b", ["a)", "b"]),
])
def test_values_as_they_are_typed(text, found):
    assert list(grid.parse(text).values) == found


@pytest.mark.parametrize(("text", "says"), [
    ("train.lr", "expected KEY=VALUE,VALUE, for example lr=1e-3,3e-4"),
    ("train.lr=", "a value is missing"),
    ("train.lr=1,,2", "a value is missing"),
    ("devices.ids=[0,1", "devices.ids"),
    ("train.lr=1,x", 'train.lr = "x": expected a number greater than 0'),
    ("trian.lr=1", "did you mean train.lr?"),
    ("lr=1,2", "did you mean train.lr?"),
    ("name=a,b", "each member's name follows from its values"),
    ("train.lr=1e-1,3,0.1", "train.lr = \"0.1\": is the same as 1e-1, and so would the runs be"),
])
def test_a_grid_that_is_wrong_says_what_would_do(text, says):
    assert says in refused(TASK, text)


def test_keys_that_exclude_each_other_and_too_many_members():
    said = refused(TASK, "train.steps=1,2", "train.epochs=1,2", "train.seed=1", "train.seed=2",
                   repeat=2)
    assert "train.epochs: vary this or train.steps, not both" in said
    assert "train.seed: varied twice" in said
    assert "--repeat varies it too" in said
    assert "40 × 13 × 2 are 1,040 runs; a sweep has at most 1,000" in refused(
        TASK, "batch.size=" + ",".join(map(str, range(1, 41))),
        "train.steps=" + ",".join(map(str, range(1, 14))), repeat=2)


def test_the_most_members_and_what_can_not_be_compared():
    refused(TASK, "train.lr=1", repeat=0)
    assert len(members(TASK, f"train.steps={','.join(map(str, range(1, 1001)))}")) == 1000
    for run in ({"halving": 3}, {"stop_worse": True}, {"halving": 2, "stop_worse": True},
                {"halving": 2, "metrics": {"acc": "(x)"}}):
        refused(own("x", "{lr}", run=run), "train.lr=1,2")


@pytest.mark.parametrize(("command", "key", "after"), [
    ("t.py --lr 0.1 --x", "lr", "t.py --lr 1e-3 --x"),
    ("t.py --lr=0.1 --lr=0.2", "lr", "t.py --lr=0.1 --lr=1e-3"),
    ("t.py optim.a=1 lr=0.1", "lr", "t.py optim.a=1 lr=1e-3"),
    ("t.py --learning-rate 0.1", "learning_rate", "t.py --learning-rate 1e-3"),
    ("t.py -w a=b", "w", "t.py -w 1e-3"),
    ("t.py --lr {{x}} --w {w}", "lr", "t.py --lr 1e-3 --w {w}"),
])
def test_an_option_of_a_command_varies_by_its_name(command, key, after):
    one, other = members(own(*command.split()), f"{key}=1e-3,{{y}}")
    assert one.spec.task.command == after.split()
    assert other.spec.task.command == after.replace("1e-3", "{{y}}").split()
    assert one.values == {key: "1e-3"}


def test_of_an_option_with_several_values_not_the_first_alone_varies():
    for words in ("--layers 1 2 3", "--layers 1 2 --x", "--layers a b", "--layers a.pt b/c"):
        assert f"write --layers={words.split()[1]}" in refused(
            own("t.py", *words.split()), "layers=7,8")
    for words in ("--layers 1 data/x", "--layers a data.txt", "--layers=1 2", "--layers 1 --x 2",
                  "--layers 1 name"):
        assert len(members(own("t.py", *words.split()), "layers=7,8")) == 2
    refused(own("x", "--layers", "1"), "layers=7,8,7")


def test_what_is_no_option_of_the_command_is_not_varied_by_its_name():
    for command in ("t.py lr 0.1", "t.py --lrs 0.1"):
        assert refused(own(*command.split()), "lr=1,2").endswith(
            "have it say --lr VALUE, or --lr {lr}")
    assert "train.lr: has no effect" in refused(own("t.py", "--lr", "0.1"), "train.lr=1,2")


def test_a_command_must_be_told_every_key():
    spec = own("python", "t.py", "--w={width}", "{{width}}", "--model.width", "8", "{lr}")
    found = members(spec, "w=64,{x}", "model.width=16", "train.lr=1e-3")
    assert [m.spec.task.command for m in found] == [
        ["python", "t.py", "--w=64", "{{width}}", "--model.width", "16", "{lr}"],
        ["python", "t.py", "--w={{x}}", "{{width}}", "--model.width", "16", "{lr}"]]
    said = refused(own("python", "t.py"), "train.lr=1,2", "train.clip=1,2", "task.params.a=1",
                   repeat=3)
    assert "train.lr: has no effect, as the command python t.py is never told it: write {lr}" \
        in said
    assert "train.seed: --repeat 3 has no effect" in said
    assert "write {seed} where its value belongs" in said
    assert "train.clip: has no effect" in said
    assert "task.params.a: has no effect" in said
    assert "Give the command an option, as --width 64" in said
    assert "did you mean train.lr?" in refused(
        own("x", "{lr}"), "lr=1,2")
    assert "have it say --width VALUE" in refused(own("x"), "width=1,2")
    # A flag's value is not the option behind it.
    assert "--amp of the command is a flag" in refused(own("x", "--amp", "--lr", "3"), "amp=on")
    assert [m.spec.task.command[1:] for m in members(
        own("x", "--shift", "-1", "+lr=1", "++wd=2"), "shift=-2", "lr=3", "wd=4")] == [
            ["--shift", "-2", "+lr=3", "++wd=4"]]
    assert len(members(own("x", "{seed}"), repeat=3)) == 3


# --- ranges, of which so many values are drawn ----------------------------------------------------

def drawn(*texts, tries=200, seed=0, repeat=1):
    spec = own("train.py", "--lr", "1", "--width", "8", "--p", ".5", "{seed}",
               train={"seed": seed})
    return [m.values for m in grid.members(spec, [grid.parse(t) for t in texts],
                                            repeat, tries)]


def test_what_is_drawn_lies_in_its_range_and_is_as_likely_everywhere():
    found = drawn("lr=log:1e-5..1e-2", "width=32..512:32", "p=0.1..0.9")
    rates, widths, ps = ([float(v[k]) for v in found] for k in ("lr", "width", "p"))
    assert all(1e-5 <= rate <= 1e-2 for rate in rates)
    # A third of them for each power of ten: 67, give or take 3 standard deviations of 6.7.
    assert all(46 < sum(10.0 ** e <= rate < 10.0 ** (e + 1) for rate in rates) < 88
               for e in (-5, -4, -3))
    assert {*widths} == {*range(32, 513, 32)}
    assert min(ps) < 0.2 < 0.8 < max(ps)
    assert all(0.1 <= p <= 0.9 for p in ps)


def test_numbers_of_a_narrow_range_lie_in_it():
    for text in ("lr=0.12345..0.12346", "lr=log:1.23456..1.23457", "lr=-1.23457..-1.23456"):
        low, high = map(float, text.partition("=")[2].removeprefix("log:").split(".."))
        found = [float(v["lr"]) for v in drawn(text, tries=50)]
        assert all(low <= rate <= high for rate in found)
    assert all(len(v["lr"].strip("0.")) <= 4 for v in drawn("lr=0.1..0.2", tries=50))


def test_the_seed_alone_decides_and_no_combination_comes_twice():
    lists = drawn("width=1..3", "p=a,b", tries=6)
    assert sorted((v["width"], v["p"]) for v in lists) == [
        *itertools.product("123", "ab")]
    assert drawn("width=1..3", "p=a,b", tries=6) == lists
    assert drawn("width=1..99", tries=5) != drawn("width=1..99", tries=5, seed=1)
    assert {v["width"] for v in drawn("width=log:1..4", tries=4)} == {*"1234"}
    assert [v["width"] for v in drawn("width=5..6", tries=1, repeat=2)] in (["5"] * 2, ["6"] * 2)


@pytest.mark.parametrize(("text", "tries", "why"), [
    ("lr=log:1e-5..1e-2", None, "is a range: say how many values to try, --tries 40"),
    ("lr=3..1", 5, r"from the lower to the higher number: 1\.\.3"),
    ("lr=1..1", 5, "has one number: write 1"),
    ("lr=log:0..1", 5, "begins above 0"), ("lr=log:1..9:2", 5, "in powers .* has none"),
    ("lr=1..9:0", 5, "a number above 0"), ("lr=0..1:1e-300", 5, "more than 1,000,000,000 steps"),
    ("lr=log:1e-400..1", 3, "1E-400 is beyond"), ("lr=0..1e400", 1, r"1E\+400 is beyond"),
    ("lr=0.1..inf", None, "is no range"), ("lr=1..3", 4, "only 3 different .* take --tries 3"),
    ("amp.dtype=off,bf17", 1, "did you mean bf16"),
    ("lr=1,2", 3, "take --tries 2, or leave it out"), ("lr=0..1", 1001, "at most 1,000")])
def test_a_range_that_can_not_be_drawn_from_is_refused(text, tries, why):
    with pytest.raises(SpecError, match=why):
        grid.members(own("train.py", "--lr", "1"), [grid.parse(text)], 1, tries)


def test_the_seed_that_draws_is_none_of_a_command_that_is_never_told_it():
    spec = own("train.py", "--lr", "1", train={"seed": 7})
    found = grid.members(spec, [grid.parse("lr=0..99")], 1, 3)
    assert {m.spec.train.seed for m in found} == {0}
    assert [m.values for m in found] == [m.values for m in grid.members(
        own("train.py", "--lr", "1", "{seed}", train={"seed": 7}), [grid.parse("lr=0..99")], 1, 3)]
    assert {m.spec.train.seed for m in grid.members(
        own("train.py", "--lr", "1", "{seed}", train={"seed": 7}), [grid.parse("lr=0..99")], 1, 3)
    } == {7}


@pytest.mark.parametrize("text", ["LOG:1e-5..1e-2", "log:1e-5 .. 1e-2", "log:1..2:3x", "1..2,5",
                                  "1..2..3", "0..inf", "32..", "nan..1", "1_000..2_000",
                                  "0x10..0x20", "log:1e-5...1e-2", "1...5"])
def test_what_is_nearly_a_range_is_refused(text):
    with pytest.raises(SpecError, match="is no range; those are written log:1e-5"):
        grid.members(own("train.py", "--lr", "1", "--b", "2"),
                     [grid.parse(f"lr={text}"), grid.parse("b=1,2")], 1, 2)


def test_two_dots_between_other_things_than_numbers_are_no_range():
    assert grid.parse("data=../a..b").range is None
    assert [m.values["data"] for m in members(own("t.py", "--data", "x"), "data=../a,..b")] == [
        "../a", "..b"]
