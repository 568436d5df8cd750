"""Choosing runs by typed words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.runs.query import Asked, parse

RUN = Asked({"id": ("3f2a",), "name": ("Best One",), "preset": ("digits-ddp",),
             "task": ("gpu_engine.tasks.digits:Digits",), "mode": ("ddp",), "state": ("failed",),
             "tag": ("lr", "base-2"), "note": ("diverges after 2k",), "verdict": ("keep",)},
            {"train.lr": "0.1", "task.params.Width": "Wide", "run.env.OMP_NUM_THREADS": "1",
             "task.params.n-2": "two words"})


@pytest.mark.parametrize(("text", "found"), [
    ("", True), ("state:failed tag:lr", True), ("state:fail", True), ("state:ailed", False),
    ("STATE:Failed best", True), ("tag:base", True), ("tag:2", False), ("id:3f", True),
    ("id:2a", False), ("3f2a", True), ("digits:Digits", True), ("name:one", True),
    ('name:"best one"', True), ('"one best"', False), ("-tag:lr", False), ("-tag:old", True),
    ("-diverges", False), ("note:2k mode:ddp preset:digits task:tasks.digits", True),
    ("state:", True), ("-", True), ("state:failed tag:old", False),
    ("train.lr=0.1", True), ("train.lr=0", False), ("-train.lr=0.1", False), ("train.lr=", True),
    ("train.lr=1e-1", True), ("train.lr=.2", False), ("-train.lr=.10", False),
    ("batch.size=8", False), ("task.params.Width=wide", True),
    ("run.env.OMP_NUM_THREADS=1", True), ("run.env.OMP_NUM_THREADS=2", False),
    ("run.env.omp_num_threads=1", False), ('task.params.n-2="two words"', True),
    ("task.params.n-2=two", False), ("verdict:keep", True), ("-verdict:disc", True)])
def test_words_that_a_run_matches(text, found):
    assert parse(text).matches(RUN) is found


def test_a_word_that_may_be_a_mistake():
    assert parse("sate:failed").doubt.startswith("'sate' is no field; there are id, name")
    assert parse("state:failed digits:Digits x.y:z").doubt.startswith("'digits' is no field")
    assert parse("state:failed 12:30").doubt is None
    assert "did you mean train.lr?" in parse("train.lrr=0.1").doubt
    assert parse("train.lr=0.1 task.params.width=8 run.env.HOME=/x").doubt is None


@given(st.text(max_size=40))
def test_any_text_is_a_query_and_its_opposite_finds_the_others(text):
    parse(text).matches(RUN)
    word = "".join(c for c in text if c.isalnum())
    if word:
        assert parse(word).matches(RUN) is not parse("-" + word).matches(RUN)
