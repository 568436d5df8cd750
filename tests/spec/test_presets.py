"""Presets: found, read, refused, saved with comments kept, and never out of their folder."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.launching.preflight import lasting
from gpu_engine.plan.check import check
from gpu_engine.spec import presets
from gpu_engine.spec.read import from_dict

from ..conftest import gpus, slots


def test_one_ships_for_each_mode_and_the_default(home):
    shipped = {p.name: p.spec for p in presets.all_presets()}
    assert {s.parallel.mode for s in shipped.values()} == {"single", "dp", "ddp", "multinode"}
    assert presets.DEFAULT in shipped


@pytest.mark.parametrize("name", ["default", "single", "dp", "ddp", "multinode"])
def test_each_that_ships_fits_a_machine_and_is_commented(home, name):
    preset = presets.load(name)
    assert not check(preset.spec, gpus(2)).problems
    assert lasting(preset.spec, gpus(2)) == []
    text = preset.path.read_text()
    assert text.startswith("#")
    assert text.count("#") >= 5
    if name != "dp":
        assert not check(preset.spec, slots(2)).problems


def test_an_own_preset_hides_the_shipped_one_of_its_name(home):
    presets.save("ddp", from_dict({"name": "mine"}))
    assert presets.load("ddp").spec.name == "mine"
    assert not presets.load("ddp").shipped
    assert presets.names().count("ddp") == 1


def test_comments_survive_a_save_and_only_what_differs_changes(home):
    spec = presets.load("ddp").spec
    batch = replace(spec.batch, size=128)
    path = presets.save("ddp", replace(spec, batch=batch))
    before, after = (presets.shipped_folder() / "ddp.toml").read_text(), path.read_text()
    assert after.replace("size = 128", "size = 64") == before
    assert "size = 128" in after
    assert presets.load("ddp").spec.batch.size == 128


def test_a_value_that_is_gone_is_gone_from_the_file(home):
    presets.save("x", from_dict({"train": {"epochs": 2, "lr": 0.1}}))
    presets.save("x", from_dict({"train": {"steps": 2}}))
    assert presets.load("x").spec.train.epochs is None
    assert presets.load("x").spec.train.steps == 2


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "x" * 65, "a\nb", "-x",
                                  "/etc/x"])
def test_a_name_cannot_climb_out(home, name):
    with pytest.raises(UserError, match=r"can't be a preset's name: use at most 64 letters, "
                       r"digits, dots, dashes and underscores, and begin with a letter or digit$"):
        presets.save(name, from_dict({}))


@given(st.text())
def test_the_nearest_name_to_any_text_is_one_or_none(text):
    near = presets.near_name(text)
    assert near == "" or presets.name_problem(near) is None
    assert presets.near_name(f"my run/{'x' * 70}!") == f"my-run-{'x' * 57}"


def test_what_cannot_be_read_is_listed_with_the_reason(home):
    home.joinpath("presets").mkdir(parents=True)
    home.joinpath("presets", "broken.toml").write_text("[batch")
    home.joinpath("presets", "wrong.toml").write_text("[batch]\nsize = -1")
    reasons = {p[0].stem: p[1] for p in presets.all_presets() if isinstance(p, tuple)}
    assert "not valid TOML" in reasons["broken"]
    assert "at least 1" in reasons["wrong"]
    with pytest.raises(SpecError):
        presets.load("wrong")


def test_an_unknown_name_is_met_with_what_there_is(home):
    with pytest.raises(UserError) as caught:
        presets.load("singel")
    assert str(caught.value) == "there is no preset 'singel'; did you mean single? (to name a " \
        "file, include its .toml)"
    assert [(one.key, one.value, one.remedy) for one in caught.value.problems] == [
        ("preset", "singel", "gpu-engine presets")]
    with pytest.raises(UserError, match="no such file"):
        presets.load("./absent.toml")


def test_a_file_is_given_by_its_path(home, tmp_path):
    for name in ("p.toml", "p"):
        path = tmp_path / name
        path.write_text('name = "here"')
        found = presets.load(str(path))
        assert (found.spec.name, found.shipped) == ("here", False)


def test_one_of_a_persons_own_that_others_can_write_is_not_obeyed(home, monkeypatch):
    path = presets.save("mine", from_dict({}))
    asked = []
    monkeypatch.setattr(presets, "read_toml", lambda path, *, own: asked.append(own) or {})
    for name in ("mine", "ddp", "mine.toml", str(path)):
        presets.load(name)
    assert asked == [True, False, False, False]


def test_a_description_is_kept_in_the_file_and_is_no_part_of_the_spec(home):
    spec = from_dict({"name": "a", "batch": {"size": 8}})
    path = presets.save("mine", spec, "two cards, small batch")
    assert tomllib.loads(path.read_text())["description"] == "two cards, small batch"
    mine = presets.load("mine")
    assert (mine.description, mine.spec, "description" in mine.data) == (
        "two cards, small batch", spec, False)
    path.write_text("# X is why:\n" + path.read_text())
    presets.save("mine", replace(spec, name="b"))
    assert presets.about(presets.load("mine")) == "two cards, small batch"
    presets.save("mine", presets.load("mine").spec, "")
    assert "description" not in path.read_text()
    assert presets.about(presets.load("mine")) == "X is why"
    assert presets.load("mine").spec.name == "b"
    for wrong in ("x" * 201, "two\nlines", "a\x1b[31m"):
        with pytest.raises(UserError, match="a text in one line, at most 200"):
            presets.save("mine", spec, wrong)
    path.write_text("description = 3\n")
    with pytest.raises(SpecError, match="description"):
        presets.load("mine")


def test_a_description_stands_before_the_sections(home):
    path = presets.save("ddp", presets.load("ddp").spec, "mine now")
    assert tomllib.loads(path.read_text())["description"] == "mine now"
    assert presets.load("ddp").spec == presets.load(str(presets.shipped_folder() / "ddp.toml")).spec


def test_what_differs_from_the_shipped_one(home):
    spec = presets.load("ddp").spec
    presets.save("mine", spec)
    assert presets.changes(presets.load("ddp")) is presets.changes(presets.load("mine")) is None
    presets.save("ddp", spec)
    assert presets.changes(presets.load("ddp")) == []
    presets.save("ddp", replace(spec, batch=replace(spec.batch, size=128)))
    assert [(c.key, c.before, c.after) for c in presets.changes(presets.load("ddp"))] == [
        ("batch.size", "64", "128")]
