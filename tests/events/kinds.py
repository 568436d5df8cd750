"""Events of every kind, made by hypothesis from what their classes say."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, replace
from typing import Any

from hypothesis import strategies as st

from gpu_engine.events import schema

whole = st.integers(0, (1 << 60) - 1)
numbers = st.floats()
times = st.floats(0, 1e11)
texts = st.text(max_size=9)
names = st.text(min_size=1, max_size=6).filter(
    lambda name: name not in schema.RESERVED_NAMES and not name.endswith("_"))
others = st.dictionaries(st.integers(1, 9), st.builds(
    schema.Other, name=st.none() | texts, step=whole, n=whole, loss=st.none() | numbers,
    losses=st.lists(numbers, max_size=3).map(tuple), loss_last=st.none() | numbers).map(
        lambda one: replace(one, n=min(one.n, len(one.losses))) if one.losses else one), min_size=1)
collectives = st.dictionaries(st.integers(0, 9), st.builds(
    schema.Collective, group=texts, number=whole, operation=texts, size=texts, began=times,
    done=st.booleans(), point=st.booleans()), min_size=1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": whole, "int | None": st.none() | whole, "float": numbers,
    "float | None": st.none() | numbers, "str": texts, "str | None": st.none() | texts,
    "tuple[str, ...]": st.lists(texts, max_size=3).map(tuple),
    "tuple[float, ...]": st.lists(numbers, max_size=3).map(tuple),
    "tuple[float | None, ...]": st.lists(st.none() | numbers, max_size=3).map(tuple),
    "tuple[str | None, ...]": st.lists(st.none() | texts, max_size=3).map(tuple),
    "tuple[int | None, ...]": st.lists(st.none() | whole, max_size=3).map(tuple),
    "Mapping[int, Other] | None": st.none() | others,
    "Mapping[int, Collective] | None": st.none() | collectives, "bool": st.booleans(),
    "Named": st.dictionaries(names, st.none() | numbers, max_size=3),
}


def of(cls: type[schema.Event]) -> st.SearchStrategy[schema.Event]:
    """Events of one kind, those of their fields that have a default now and then left out."""
    own = [f for f in fields(cls) if f.init]
    needed = {f.name: _values(f) for f in own if f.default is MISSING}
    more = {f.name: _values(f) for f in own if f.default is not MISSING}
    return st.fixed_dictionaries(needed, optional=more).map(lambda known: cls(**_as_told(known)))


def _values(field: Field[Any]) -> st.SearchStrategy[Any]:
    if field.name != "since":
        return VALUES[str(field.type)]
    return st.none() | times if str(field.type).endswith("None") else times


def _as_told(known: dict[str, Any]) -> dict[str, Any]:
    """Losses are told of all steps of an event, or of none."""
    losses = known.get("losses")
    return known | {"n": min(known["n"], len(losses))} if losses and "n" in known else known


KINDS = [cls for cls in schema.KINDS.values() if cls.__module__ == schema.__name__]
any_event = st.sampled_from(KINDS).flatmap(of)
