"""Which checkpoint a person means by "best" or a step."""

import json

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.runs import checkpoints


@pytest.fixture
def folder(tmp_path):
    for step, metrics in ((500, {"loss": 2.0, "accuracy": 0.7}), (1000, {"loss": 1.0}),
                          (1500, {"loss": float("nan"), "accuracy": 0.9}), (2000, {})):
        path = tmp_path / checkpoints.name_of(step)
        path.mkdir()
        path.joinpath("manifest.json").write_text(json.dumps(
            {"step": step, "metrics": metrics, "files": {"state.pt": {"sha256": "", "size": 0}}}))
    (tmp_path / "step-00000700").mkdir()  # damaged: it has no manifest
    (tmp_path / ".writing-step-00000800-1").mkdir()
    return tmp_path


@pytest.mark.parametrize(("which", "best", "step"), [
    ("newest", None, None), ("best", None, 1000), ("best", "max:loss", 500),
    ("best", "max:accuracy", 1500), ("1500", None, 1500), (" 1,500 ", None, 1500),
    ("step-00000500", None, 500), ("step-500", None, 500), ("700", None, 700),
])
def test_what_is_meant(folder, which, best, step):
    expected = None if step is None else checkpoints.name_of(step)
    assert checkpoints.choose(folder, which, best) == expected


@pytest.mark.parametrize(("which", "best", "words"), [
    ("501", None, "no checkpoint of step 501; there are step 500, 700, 1,000, 1,500, 2,000"),
    ("last", None, "'last' is not a checkpoint: use newest, best or a step; there are step 500"),
    ("", None, "use newest, best or a step"),
    ("-5", None, "use newest, best or a step"),
    ("best", "bleu", "no checkpoint has a value 'bleu' of an evaluation, so there is no best one"),
    ("best", "most:bleu", "min:name or max:name"),
])
def test_what_is_not_there_is_said(folder, which, best, words):
    with pytest.raises(UserError) as caught:
        checkpoints.choose(folder, which, best)
    assert words in str(caught.value)


def test_a_value_that_is_no_number_is_never_the_best(folder):
    (folder / "step-00000500/manifest.json").unlink()
    (folder / "step-00001500").rename(folder / "step-00000400")
    assert checkpoints.best_of(folder, "loss", largest=False) == (folder / "step-00001000", 1.0)


def test_without_any(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        assert checkpoints.choose(folder, "newest", None) is None
        with pytest.raises(UserError, match="there is no checkpoint"):
            checkpoints.choose(folder, "best", None)


def test_what_lies_behind_is_set_aside(folder):
    moved = checkpoints.set_aside(folder, checkpoints.name_of(1000), "before-attempt-3")
    assert moved == ["step-00001500", "step-00002000"]
    assert [p.name for p in checkpoints.listed(folder)] == [
        "step-00000500", "step-00000700", "step-00001000"]
    assert sorted(p.name for p in (folder / "before-attempt-3").iterdir()) == moved
    assert checkpoints.set_aside(folder, checkpoints.name_of(1000), "before-attempt-4") == []
    assert not (folder / "before-attempt-4").exists()
