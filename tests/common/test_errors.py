"""How errors are put into words."""

import pytest

from gpu_engine.common.errors import Problem, SpecError, UserError, with_type


@pytest.mark.parametrize(("kind", "shown"), [
    ("ValueError", "ValueError: too small"), (None, "too small"),
    (UserError.__name__, "too small"), (SpecError.__name__, "too small")])
def test_a_mistake_of_the_persons_is_shown_without_the_name_of_its_class(kind, shown):
    assert with_type(kind, "too small") == shown


@pytest.mark.parametrize(("value", "shown"), [
    (3, "batch.size = 3: why"), (True, "batch.size = true: why"), ("x", 'batch.size = "x": why'),
    (["0", 1], 'batch.size = ["0", 1]: why'), (None, "batch.size: why")])
def test_a_problem_names_its_key_and_value_as_a_preset_would(value, shown):
    assert str(Problem("batch.size", value, "why")) == shown


def test_all_problems_of_a_spec_are_in_its_error():
    error = SpecError([Problem("lr", 1, "one"), Problem("", None, "two")])
    assert str(error) == "lr = 1: one\ntwo"
    assert len(error.problems) == 2
