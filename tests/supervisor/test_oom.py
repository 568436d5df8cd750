"""Out of memory: the kernel's count of kills, and what would fit on a GPU."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.events.schema import Error
from gpu_engine.supervisor import cause
from gpu_engine.supervisor.cause import Failure, Given, first_cause

from ..plans import plan

GIB = 2**30


def out_of_memory(message="", **figures):
    return Error("OutOfMemoryError", message, None, None, None, **figures)


@given(st.integers(2, 400), st.integers(1, 20))
def test_the_largest_that_would_likely_fit_keeps_the_global_batch(size, accumulate):
    advice = cause.fitting(Given(size, accumulate))
    fits, was, then = map(int, re.fullmatch(
        r"(\d+) examples? per GPU instead of (\d+) would likely fit; "
        r"batch.accumulate=(\d+) keeps the global batch", advice).groups())
    assert (was, fits * then) == (size, size * accumulate)
    assert [d for d in range(fits, size) if size % d == 0] == [fits]
    assert 2 * fits <= size


def test_how_much_there_was_and_what_held_it():
    error = out_of_memory(requested=GIB, allocated=2 * GIB, reserved=3 * GIB, held_by=(*"abcd",))
    assert cause._describe_oom(error, Given(1, 4)) == (
        "requested 1.0 GiB, allocated 2.0 GiB, reserved 3.0 GiB; held most: a, b, c; "
        "the batch is already 1 per GPU: use a smaller model, bf16 or a larger GPU")


@pytest.mark.parametrize(("kind", "message", "gpus"), [
    ("OutOfMemoryError", "x", True), ("RuntimeError", "CUDA out of memory", True),
    ("RuntimeError", "out of memory", False), ("RuntimeError", "CUDA error", False)])
def test_whose_memory_it_was(kind, message, gpus):
    found = first_cause([Failure(0, 1, 2.0, Error(kind, message, None, None, None))])
    assert found.message.startswith("out of GPU memory.") == gpus


@pytest.mark.parametrize(("words", "told"), [
    ("--batch-size 8", None), ("--batch {batch.size}", None), ("--batch {batch.global}", None),
    ("--batch {batch.per_gpu}", Given(32, None)),
    ("--batch {batch.per_gpu} --accumulate {batch.accumulate}", Given(32, 1))])
def test_what_a_command_is_not_told_makes_no_advice(words, told):
    command = ["python", "train.py", *words.split()]
    planned = plan(global_size=64, spec={"task": {"command": command}})
    assert Given.by(planned) == told
    assert Given.by(plan(global_size=64)) == Given(32, 1)
    cause = first_cause([Failure(0, 1, 2.0, out_of_memory("CUDA out of memory."))], given=told)
    assert ("would likely fit" in cause.message) == (told is not None)
    assert ("batch.accumulate" in cause.message) == (told == Given(32, 1))


def test_the_figures_end_before_torchs_own_words():
    error = out_of_memory("CUDA out of memory. Tried", requested=GIB)
    cause = first_cause([Failure(0, 1, 2.0, error)])
    assert cause.message == "out of GPU memory: requested 1.0 GiB.\nCUDA out of memory. Tried"
    assert cause.line == "rank 0: out of GPU memory: requested 1.0 GiB"
    bare = first_cause([Failure(0, 1, 2.0, out_of_memory("CUDA out of memory"))])
    assert bare.message == "out of GPU memory.\nCUDA out of memory"


@pytest.mark.parametrize(("cgroup", "path", "text", "kills"), [
    ("0::/a/b\n", "sys/fs/cgroup/a/b/memory.events", "low 0\noom 3\noom_kill 2\n", 2),
    ("0::/a\n", "proc/vmstat", "nr_free_pages 7\noom_kill 1\n", 1),
    ("4:memory:/a\n0::/\n", "sys/fs/cgroup/memory/a/memory.oom_control", "under_oom 0\noom_kill 3",
     3), ("", "proc/self/nothing", "", None)])
def test_the_kernels_count_is_found(tmp_path, cgroup, path, text, kills):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    if kills:  # on the whole machine: others' too
        (tmp_path / "proc/vmstat").write_text("oom_kill 9\n")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    assert cause.oom_kills(tmp_path) == kills
