"""The largest batch that trains: the search by hand, and real steps against a real limit."""

import json
import signal
import subprocess
import sys

import pytest

from gpu_engine.devices import leases
from gpu_engine.launching import fit
from gpu_engine.launching.fit import Trial, knee, predicted, proposal, search
from gpu_engine.plan.batch import Batch
from gpu_engine.runs import folder
from gpu_engine.spec.read import from_dict

from ..conftest import wait_for

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
    # multiple of eight; 307 would be full.
    sizes, largest = world(307, GIB, 10 << 20, 4 * GIB)
    # At most 16 times as far, then the line, then half as much more, then between.
    assert sizes == [4, 16, 256, 280, 416, 344]
    assert largest == 280


@pytest.mark.parametrize(("most", "base", "each", "limit", "wanted"), [
    (0, GIB, 1, GIB, ([4, 1], None)),
    (1, GIB, 1, GIB, ([4, 1, 2], 1)),
    (3, GIB, 1, GIB, ([4, 1, 2, 3], 3)),
    (5, GIB, 1, GIB, ([4, 16, 8, 6], 4)),
    (100, GIB, 0, None, ([4, 16, 64, 256, 128, 96], 96)),
])
def test_it_ends_where_memory_tells_little(most, base, each, limit, wanted):
    assert world(most, base, each, limit) == wanted


@pytest.mark.parametrize("most", [1, 7, 31, 100, 999, 5000, 123_456])
@pytest.mark.parametrize("error", [0.5, 1.0, 3.0])
def test_it_comes_near_whatever_the_line_says(most, error):
    """The line is wrong by a factor: what is found is at least half of what fits."""
    each = int(GIB / most * error)
    sizes, largest = world(most, 1 << 20, each, GIB)
    assert len(sizes) <= 10
    assert most / 2 <= largest <= most


def test_a_flat_line_goes_far_and_an_unknown_one_four_times():
    flat = predicted(Trial(4, True, 100), Trial(16, True, 100), 1000)
    assert (flat, predicted(Trial(4, True), Trial(16, True, 1), 9)) == (256, 64)


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_ended_in_the_middle_leaves_nothing_and_says_so(home, tmp_path, number):
    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_engine", "fit", "--json", "--devices", "cpu:0", "--memory",
         "1GiB", "--", sys.executable, str(tmp_path / "train.py"), "{batch.per_gpu}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    (run,) = wait_for(folder.all_runs)
    wait_for(lambda: run.state().state == "running")
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "4 per slot: stopped: the trial is removed, and nothing of it is kept"
    assert folder.all_runs() == []
    assert leases.holders(home / "leases") == {}


def test_a_run_s_own_time_limit_does_not_end_a_trial_and_no_trial_runs_for_ever():
    spec = from_dict({"task": {"use": "x:X"}, "run": {"limit": "1s", "limit_from": "start"}})
    trial = fit.trial_spec(spec, 4).run
    assert (trial.limit, trial.limit_from) == (3600.0, "step")


@pytest.mark.parametrize(("words", "wrong"), [
    (["--devices", "cpu:0", "--memory", "1GiB", "--", "true"], "is not told the batch"),
    (["default", "--devices", "cpu:0"], "say what a rank may use"),
    (["default", "--devices", "cpu:0", "--memory", "lots"], "lots: no size of memory"),
    (["--devices", "cpu:0", "--memory", "1GiB", "--write", "--", "x", "{batch.per_gpu}"],
     "--write needs a preset")])
def test_what_can_not_be_tried(home, words, wrong):
    done = subprocess.run([sys.executable, "-m", "gpu_engine", "fit", *words], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 2
    assert wrong in done.stderr
    assert fit.STEPS == 3
