"""What the fields' docstrings say of the keys."""

from __future__ import annotations

from gpu_engine.spec.catalog import key_docs
from gpu_engine.spec.schema import keys


def test_the_schema_tells_what_every_key_means():
    assert {k for k, told in key_docs().items() if told} == set(keys())
