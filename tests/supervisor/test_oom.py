"""Out of memory: the kernel's count of kills, and what would fit on a GPU."""

from __future__ import annotations

import pytest

from gpu_engine.events.schema import Error
from gpu_engine.supervisor import cause
from gpu_engine.supervisor.cause import Failure, Given, first_cause

from ..plans import plan

GIB = 2**30


def out_of_memory(message="", **figures):
    return Error("OutOfMemoryError", message, None, None, None, **figures)


@pytest.mark.parametrize(("planned", "says"), [
    (Given(48, 1), "24 examples per GPU instead of 48"), (Given(7, 1), "1 example per GPU"),
    (Given(1, 1), "already 1 per GPU")])
def test_what_would_likely_fit(planned, says):
    assert says in cause.fitting(planned)


def test_a_batch_that_fits_keeps_the_global_one():
    text = cause.fitting(Given(48, 3))
    assert "batch.accumulate=6" in text
    assert cause._describe_oom(out_of_memory(requested=GIB), None) == "requested 1.0 GiB"


@pytest.mark.parametrize(("words", "given"), [
    ("--batch-size 8", None), ("--batch {batch.size}", None), ("--batch {batch.global}", None),
    ("--batch {batch.per_gpu}", Given(32, None)),
    ("--batch {batch.per_gpu} --accumulate {batch.accumulate}", Given(32, 1))])
def test_what_a_command_is_not_told_makes_no_advice(words, given):
    command = ["python", "train.py", *words.split()]
    planned = plan(global_size=64, spec={"task": {"command": command}})
    assert Given.by(planned) == given
    cause = first_cause([Failure(0, 1, 2.0, out_of_memory("CUDA out of memory."))], given=given)
    assert ("would likely fit" in cause.message) == (given is not None)
    assert ("batch.accumulate" in cause.message) == (given == Given(32, 1))


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
