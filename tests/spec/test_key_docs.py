"""What the fields' docstrings say of the keys."""

from __future__ import annotations

from gpu_engine.spec.key_docs import docs
from gpu_engine.spec.schema import keys


def test_the_schema_tells_what_every_key_means():
    assert {k for k, told in docs().items() if told} == set(keys())
