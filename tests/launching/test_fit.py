"""The largest batch that trains: the search by hand, and real steps against a real limit."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.devices import leases
from gpu_engine.events import notices
from gpu_engine.events.schema import Memory, Step, Warning
from gpu_engine.launching import fit
from gpu_engine.launching.fit import Trial, knee, predicted, proposal, search, verdict
from gpu_engine.plan.batch import Batch
from gpu_engine.runs import folder
from gpu_engine.runs.state import Cause, State
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.write import differences, to_dict

from ..command_line import called
from ..conftest import gpus, slots, wait_for

GIB = 1 << 30
SCRIPT = """
import sys, torch
torch.set_num_threads(1)
n = int(sys.argv[1])
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
while True:
    x = torch.ones(n, 4 << 20)  # 16 MiB an example
    loss = net(x[:, :8]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def world(most: int, base: int, each: int, limit: int | None):
    """A device that trains `most` examples at `base + each * n` bytes. Returns the sizes tried and
    the largest that fits."""
    trials = search(lambda n: Trial(n, n <= most, base + each * n if n <= most else None), limit)
    return [t.size for t in trials], max((t.size for t in trials if t.fits), default=None)


def test_the_line_through_two_sizes_says_the_largest():
    # 1 GiB, and 10 MiB an example, of 4 GiB: 0.95 * 4096 = 3891 MiB hold 286, of which 280 is a
    # multiple of eight.
    sizes, largest = world(287, GIB, 10 << 20, 4 * GIB)
    # At most 16 times as far, then the line, then a little more.
    assert sizes == [4, 16, 256, 280, 288]
    assert largest == 280


@pytest.mark.parametrize(("most", "base", "each", "limit", "wanted"), [
    (0, GIB, 1, GIB, ([4, 1], None)),
    (1, GIB, 1, GIB, ([4, 1, 2], 1)),
    (3, GIB, 1, GIB, ([4, 1, 2, 3], 3)),
    (5, GIB, 1, GIB, ([4, 16, 5, 6], 5)),
    (100, GIB, 20 << 20, None, ([4, 16, 64, 256, 128, 88, 104, 96], 96)),
])
def test_it_ends_where_memory_tells_little(most, base, each, limit, wanted):
    assert world(most, base, each, limit) == wanted


CURVES = {"line": 1.0, "less": 0.5, "more": 3.0, "bends up": 1.5, "bends down": 0.5}


@pytest.mark.parametrize("kind", [*CURVES, "blocks", "noise", "unknown"])
def test_what_is_found_is_nearly_the_largest_or_words_say_otherwise(kind):
    """Whatever memory does: below the limit by half at the largest, or three times over it."""
    chance = random.Random(kind)
    for _ in range(500):
        most, base = int(10 ** chance.uniform(0, 6)), chance.uniform(0.01, 0.5) * GIB

        def memory(n, most=most, base=base):
            share = n / (most + 0.5)
            if kind == "blocks":
                share = -(-n // 32) * 32 / (most + 0.5)
            elif kind == "noise":
                share *= 1 + 0.1 * (n * 2654435761 % 97 / 97 - 0.5)
            elif kind.startswith("bends"):
                share **= CURVES[kind]
            else:
                share *= CURVES.get(kind, 1.0)
            return None if kind == "unknown" else int(base + (GIB - base) * share)

        trials = search(lambda n, most=most, memory=memory: Trial(
            n, n <= most, memory(n) if n <= most else None, why="full"), GIB)
        largest, bad = fit.largest(trials), fit.least_bad(trials)
        words = verdict(trials, "GPU")
        if bad is None:
            assert "memory does not grow with it" in words
            assert memory(largest) is None or memory(largest) < 1.05 * memory(4)
        else:
            assert f"up to {largest:,} per GPU; {bad.size:,} does not: full" in words
            assert largest <= most < bad.size
            assert largest >= 0.94 * most or bad.size <= fit.step_up(largest)


def test_a_size_without_a_step_is_none_that_fits_but_the_first_tells_nothing():
    """As where a data set of 100 drops its incomplete batch."""
    def ran(size, most=100):
        if size > most:
            raise fit.NoStep("no step of it was seen")
        return Trial(size, True, GIB)

    trials = search(ran, None)
    assert 80 <= fit.largest(trials) <= 100
    assert fit.least_bad(trials).why == "no step of it was seen"
    with pytest.raises(UserError, match="no step of it was seen"):
        search(lambda size: ran(size, most=0), None)


def test_a_batch_that_can_not_be_larger_ends_the_search():
    trials = search(lambda n: Trial(min(n, 100), True, GIB, examples=100 if n > 100 else None),
                    9 * GIB)
    assert ([t.size for t in trials], fit.largest(trials)) == ([4, 16, 100], 100)
    assert verdict(trials, "GPU") == ("fits: up to 100 per GPU; a larger batch was never made: "
                                      "the largest had 100 examples")


def test_a_flat_line_goes_far_and_an_unknown_one_four_times():
    flat = predicted(Trial(4, True, 100), Trial(16, True, 100), 1000)
    assert (flat, predicted(Trial(4, True), Trial(16, True, 1), 9)) == (256, 64)


def test_memory_counts_once_each_ranks_optimizer_has_its_state():
    """Nor before its rate is known, for which two events are needed."""
    progress = fit.Progress(2)
    for step, done in ((9, False), (2, False), (3, True)):
        for rank in range(2):
            for event in (Step(step, 0.1, 0), Memory(1)):
                progress.fold(rank, event)
            assert progress.done is (done and rank == 1)


def test_the_knee_is_the_least_size_that_is_nearly_as_fast():
    trials = [Trial(n, True, samples_per_s=rate) for n, rate in
              ((4, 40.0), (16, 96.0), (64, 100.0), (256, 99.0))]
    assert knee([*trials, Trial(512, False)]) is trials[1]
    assert knee([Trial(4, True)]) is None


@pytest.mark.parametrize(("total", "replicas", "most", "wanted"), [
    (256, 2, 48, (32, 4)), (256, 2, 500, (128, 1)), (96, 2, 47, (24, 2)), (14, 2, 5, (1, 7))])
def test_the_proposal_keeps_the_global_batch(total, replicas, most, wanted):
    batch = Batch(total, "global", 1, replicas, total, total // replicas)
    found = proposal(batch, most)
    assert found is not None
    assert (found.per_gpu, found.accumulate) == wanted
    assert found.per_gpu * found.replicas * found.accumulate == found.global_size == total


def test_real_steps_are_tried_against_a_real_limit_and_nothing_is_left(home, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "gpu_engine", "fit", "--json", "--devices", "cpu:0", "--memory",
         "1GiB", "--", sys.executable, str(tmp_path / "train.py"), "{batch.per_gpu}"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    by_size = {t["size"]: t for t in said["trials"]}
    assert by_size[4]["fits"]
    assert by_size[16]["fits"]
    # An example takes 16 MiB, and the next ones are made while the last are there: 32 examples
    # are all of it, and Python and torch need some.
    assert 16 <= said["largest"] < 32
    slope = (by_size[16]["memory"] - by_size[4]["memory"]) / 12
    assert slope == pytest.approx(32 << 20, rel=0.2)
    bad = next(t for t in said["trials"] if not t["fits"])
    assert "memory" in bad["why"]
    assert by_size[16]["samples_per_s"] > 0
    assert said["proposal"]["global_size"] == 64
    largest = said["largest"]
    for size, wanted in ((largest, []), (largest + 1, ["may not fit: fits: up to"])):
        plan = json.loads(subprocess.run(
            [sys.executable, "-m", "gpu_engine", "plan", "--json", "--devices", "cpu:1", "--set",
             f"batch.size={size}", "--", sys.executable, str(tmp_path / "train.py"),
             "{batch.per_gpu}"], capture_output=True, text=True, check=True).stdout)
        assert plan["fits"].startswith(f"fits: up to {largest} per slot within 1.0 GiB (tried ")
        assert [w in str(plan["warnings"]) for w in wanted] == [True] * len(wanted)
        assert ("may not fit" in str(plan["warnings"])) is bool(wanted)
    assert folder.all_runs() == []
    assert leases.holders(home / "leases") == {}


@pytest.mark.parametrize(("script", "limit", "found", "words"), [
    # Few steps and its own end, mostly before any measure.
    ("for _ in range(3):\n    for (x,) in torch.utils.data.DataLoader(data, batch_size=n):\n"
     "        step(x)", "2GiB", 10, "never made: the largest had 10 examples"),
    ("class Stream(torch.utils.data.IterableDataset):\n    __iter__ = lambda _: iter(data)\n"
     "while True:\n    for (x,) in torch.utils.data.DataLoader(Stream(), batch_size=n):\n"
     "        step(x)", "2GiB", 10, "never made: the largest had 10 examples"),
    ("from accelerate.utils import find_executable_batch_size\n"
     "@find_executable_batch_size(starting_batch_size=n)\ndef train(size):\n"
     "    if size > 1:\n        raise RuntimeError('CUDA out of memory.')\n"
     "    while True:\n        step(torch.ones(size, 8))\ntrain()", "2GiB", 1,
     "2 does not: memory ran out, and accelerate goes on with a smaller batch")],
    ids=["small", "stream", "lowers"])
@pytest.mark.timeout(300)
def test_a_script_that_ends_or_takes_another_batch(home, tmp_path, script, limit, found, words):
    (tmp_path / "train.py").write_text(SCRIPT.partition("while")[0] + (
        "data = torch.utils.data.TensorDataset(torch.ones(10, 8))\n"
        "def step(x):\n    optimizer.zero_grad()\n    net(x).sum().backward()\n"
        "    optimizer.step()\n") + script)
    done = subprocess.run(
        [sys.executable, "-m", "gpu_engine", "fit", "--devices", "cpu:0", "--memory", limit, "--",
         sys.executable, str(tmp_path / "train.py"), "{batch.per_gpu}"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    said = next(line for line in done.stdout.splitlines() if line.startswith("fits: "))
    assert words in said
    assert f"up to {found:,} per slot" in said
    rows = done.stdout.partition("\n\n")[0].splitlines()[1:]
    rows = [row for row in rows if "does not fit" not in row]
    assert rows[-1].split()[0] == str(found)
    assert "steps/s × size" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_one_that_is_ended_in_the_middle_leaves_nothing_and_says_so(home, tmp_path, number):
    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_engine", "fit", "--json", "--devices", "cpu:0", "--memory",
         "1GiB", "--", sys.executable, str(tmp_path / "train.py"), "{batch.per_gpu}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True)
    (run,) = wait_for(folder.all_runs)
    wait_for(lambda: run.state().state == "running")
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate()
    assert out == ""
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert err.strip() == (
            "4 per slot: stopped: the trial is removed, and nothing of it is kept")
        assert leases.holders(home / "leases") == {}
    wait_for(lambda: folder.all_runs() == [])


def test_a_trial_trains_what_the_spec_says_for_ever_and_keeps_nothing():
    """But by a limit of its own, should nobody be there to end it."""
    data = {"name": "x" * 80, "task": {"use": "x:X"}, "run": {"limit": "1s", "limit_from": "start"},
            "batch": {"size": 64, "accumulate": 2}, "train": {
                "epochs": 3, "restarts": 1, "eval_every": 9, "best": "loss"}}
    spec = from_dict(data)
    trial = fit.trial_spec(spec, 4)
    assert trial.name == f"fit 4 {'x' * 74}"
    assert sorted(differences(spec, replace(trial, name=spec.name))) == [
        "batch.accumulate=1", "batch.meaning=per_gpu", "batch.size=4", "devices.share=true",
        "run.limit=3600.0", "run.limit_from=step", "train.checkpoint_every=0",
        "train.eval_every=0", "train.restarts=0", f"train.steps={1 << 30}"]
    assert (trial.train.epochs, trial.train.best) == (None, None)
    own = replace(spec, task=replace(spec.task, command=["train"]))
    assert fit.trial_spec(own, 4).train == spec.train


def seen(gpu=(), host=None, stepped=True, rate=None):
    return SimpleNamespace(gpu_peak=gpu, rss_peak=host, stepped=stepped, steps_per_s=rate)


FAILED = State("failed", "a", "a", 1.0)
OVER = replace(FAILED, state="completed")


@pytest.mark.parametrize(("state", "views", "rate", "trial"), [
    (OVER, [seen((7, None), 99, rate=2.0), seen((), 5, rate=0.5)], None, Trial(8, True, 7, 20.0)),
    (OVER, [seen(), seen((), 5)], 70.0, Trial(8, True, 5, 70.0)),
    (FAILED, [seen()], None, Trial(8, False, why=f"it ended before step {fit.STEPS}")),
    (replace(FAILED, reason="stopped"), [], 9.0, Trial(8, False, why="stopped")),
    (replace(FAILED, reason="x", cause=Cause("full", 1)), [seen((3,))], None,
     Trial(8, False, 3, why="rank 1: full"))])
def test_what_came_of_a_trial(state, views, rate, trial):
    followed, progress = SimpleNamespace(ranks=dict(enumerate(views))), fit.Progress(2)
    assert fit.outcome(8, progress, state, followed, rate, trial.memory) == trial
    if trial.fits and trial.memory:
        over = fit.outcome(8, progress, state, followed, rate, trial.memory - 1)
        assert over == Trial(8, False, trial.memory, why=(
            f"a rank used {trial.memory} B; it may use {trial.memory - 1} B"))
    with pytest.raises(UserError, match="trial of 8 completed, and no step of it was seen"):
        fit.outcome(8, progress, OVER, SimpleNamespace(ranks={0: seen(stepped=False)}), rate)
    for rank in (0, 1):
        progress.fold(rank, notices.small_data(3, 8))
        for event in (Step(2, 0.1, 0), Step(3, 0.1, 0), Memory(1)):
            progress.fold(rank, event)
    found = fit.outcome(8, progress, FAILED, followed, rate)
    assert (found.fits, found.size, found.examples) == (True, 3, 3)
    progress.fold(0, Warning("goes on with less", code=notices.LOWERED))
    assert fit.outcome(8, progress, OVER, followed, rate) == Trial(
        8, False, trial.memory, why="goes on with less")


def test_what_was_found_is_known_again_for_the_same_on_the_same_cards(home, monkeypatch):
    spec = from_dict({"task": {"use": "x:X", "params": {"width": 3}}})
    gpu, slot = gpus(1).devices, slots(1).devices
    home.mkdir()
    assert fit.known(spec, gpu) is None
    for size in (40, 48):
        fit.remember(spec, gpu, size, None)
    fit.remember(spec, slot, 1000, GIB)
    assert fit.known(spec, gpus(2).devices) == (48, "fits: up to 48 per GPU (tried just now)")
    assert fit.known(spec, slot) == (
        1000, "fits: up to 1,000 per slot within 1.0 GiB (tried just now)")
    for text in ("task.params.width=4", "amp.dtype=bf16", "parallel.mode=dp", "task.use=y:Y"):
        other = to_dict(spec)
        apply_sets(other, [text])
        assert fit.known(from_dict(other), gpu) is None
    assert fit.known(replace(spec, task=replace(spec.task, command=["x"])), gpu) is None
    monkeypatch.setattr(fit, "_MOST_KEPT", 1)
    fit.remember(spec, gpu, 56, None)
    assert (fit.known(spec, gpu)[0], fit.known(spec, slot)) == (56, None)
    for text in ("[]", "{", json.dumps({fit._key(spec, gpu): {"largest": "x", "at": 1.0}})):
        (home / "fits.json").write_text(text)
        assert fit.known(spec, gpu) is None


def test_what_is_started_inside_may_use_so_much_and_what_would_help_is_said():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    for memory in (None, GIB * 99):
        with fit.limited(memory):
            assert resource.getrlimit(resource.RLIMIT_DATA) == (memory or before[0], before[1])
        assert resource.getrlimit(resource.RLIMIT_DATA) == before
    spec = from_dict({"amp": {"dtype": "off"}})
    trials = [Trial(4, False, why="full"), Trial(1, False, why="full too")]
    ways = "recomputing them in the backward pass (torch.utils.checkpoint); a smaller model or " \
        "shorter input"
    assert fit.advice(spec, trials) == (
        "not even 1 per device trains: full too. Where it is memory, this helps: amp.dtype=bf16 "
        f"halves the activations; {ways}")
    bf16 = from_dict({"amp": {"dtype": "bf16"}})
    assert fit.advice(bf16, trials).endswith(f"this helps: {ways}")


@pytest.mark.parametrize(("words", "wrong"), [
    (["--devices", "cpu:0", "--memory", "1GiB", "--", "true"],
     "the command is not told the batch: write {batch.per_gpu} where it takes one"),
    (["default", "--set", "devices.hosts=a"],
     "there is no host of that name"),
    (["default", "--devices", "cpu:0"], "say what a rank may use"),
    (["default", "--devices", "cpu:0", "--memory", "lots"], "lots: no size of memory"),
    (["--devices", "cpu:0", "--memory", "1GiB", "--write", "--", "x", "{batch.per_gpu}"],
     "--write needs a preset")])
def test_what_can_not_be_tried(home, words, wrong):
    done = called("fit", *words)
    assert done.returncode == 2
    assert wrong in done.stderr
