"""Hosts and their devices as a person types them."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.spec.host_names import BadName, HostDevices, check_name, glued, parse_all

_WORD = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)
_IDS = st.one_of(st.integers(0, 63).map(str), st.integers(0, 63).map("cpu:{}".format),
                 st.uuids().map("GPU-{}".format), st.uuids().map("MIG-{}".format))
_ENTRY = st.builds(HostDevices, st.one_of(_WORD, st.builds("{}@{}.lab".format, _WORD, _WORD)),
                   st.lists(_IDS, unique=True, max_size=4).map(tuple))


@pytest.mark.parametrize(("text", "host", "ids"), [
    ("alice@gpu2:3,4", "alice@gpu2", ("3", "4")), ("gpu1", "gpu1", ()),
    ("local:cpu:0,cpu:1", "local", ("cpu:0", "cpu:1"))])
def test_an_entry(text, host, ids):
    assert HostDevices.parse(text) == HostDevices(host, ids)
    assert str(HostDevices(host, ids)) == text


@given(_ENTRY)
def test_an_entry_reads_back_as_it_is_written(entry):
    assert HostDevices.parse(str(entry)) == entry


@given(st.lists(_ENTRY, min_size=1, max_size=4, unique_by=lambda e: e.host))
def test_a_list_typed_without_brackets_means_the_same(entries):
    """Devices stand between commas, and so do hosts."""
    named = [e for e in entries if e.ids]
    typed = ",".join(map(str, named))
    if named and not any(e.host.isdigit() for e in named):
        assert parse_all(glued(typed.split(","))) == tuple(named)


@pytest.mark.parametrize("text", [
    "-oProxyCommand=x", "a;b", "$(touch x)", "a b", "a\nb", "", "@a", "a@", "a@-b", "ä", "a/b",
    "a'b", 'a"b', "a`b`", "x" * 300, "a@b@c", "gpu1\n", "a\x1b[0m"])
def test_what_is_no_name(text):
    with pytest.raises(BadName):
        check_name(text)


@pytest.mark.parametrize("text", ["gpu1:", "gpu1:0,,1", "gpu1:;x", "gpu1:0,0", ":0", "gpu1: $x"])
def test_what_is_no_entry(text):
    with pytest.raises(BadName, match=r"gpu1|no name of a host: expected letters"):
        HostDevices.parse(text)


def test_a_host_that_is_named_twice():
    with pytest.raises(BadName, match="gpu1:0,1,2"):
        parse_all(["gpu1:0", "gpu2:1", "gpu1:1,2"])


@given(st.text())
def test_any_text_is_a_name_of_few_characters_or_none(text):
    try:
        name = check_name(text)
    except BadName:
        return
    assert set(name) <= set(string.ascii_letters + string.digits + "._-@")
    assert name[0] not in "-.@"
