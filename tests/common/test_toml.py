"""What is written is what the standard library's parser reads."""

from __future__ import annotations

import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common import toml

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    texts | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=12)


@given(st.dictionaries(texts, values))
def test_all_of_it_is_read_as_it_was_written(data):
    assert same(tomllib.loads(toml.dumps(data)), data), toml.dumps(data)


def same(a: object, b: object) -> bool:
    """Equal in value and type; NaN is itself, and so is -0.0."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or \
            (a == b and math.copysign(1, a) == math.copysign(1, b))
    return type(a) is type(b) and a == b


def test_it_reads_as_a_person_would_write_it():
    assert toml.dumps({"name": "é", "task": {"use": "a:B", "params": {"a b": [1, {"x": 2.0}]}},
                       "empty": {}}) == """\
name = "é"

[task]
use = "a:B"

[task.params]
"a b" = [1, {x = 2.0}]

[empty]
"""


@pytest.mark.parametrize("value", [None, [None], {"a": object()}])
def test_what_toml_has_no_word_for_is_refused(value):
    with pytest.raises(TypeError, match="no word for"):
        toml.dumps({"key": value})
