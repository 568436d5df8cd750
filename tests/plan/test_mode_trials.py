"""Which trials a comparison of modes makes, and what it says of their results."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import SpecError
from gpu_engine.plan import mode_trials
from gpu_engine.plan.batch import batch_of
from gpu_engine.plan.check import check
from gpu_engine.plan.mode_trials import Result
from gpu_engine.spec import modes
from gpu_engine.spec.read import from_dict

from ..conftest import gpus, slots

BASE = {"task": {"use": "a:B"}, "devices": {"ids": ["0", "1"]},
        "parallel": {"mode": "ddp", "bucket_cap_mb": 10}, "train": {"epochs": 3}}


@given(st.sampled_from(["single", "dp", "ddp"]), st.sampled_from(["global", "per_gpu"]),
       st.integers(1, 4), st.integers(2, 4), st.integers(1, 3))
def test_every_trial_has_the_same_global_batch(mode, meaning, share, count, accumulate):
    """Whatever the spec's own mode makes of batch.size."""
    size = share * count * accumulate if meaning == "global" else share * count
    spec = from_dict(BASE | {"parallel": {"mode": mode}, "batch": {
        "size": size, "meaning": meaning, "accumulate": accumulate},
        "devices": {"ids": [str(i) for i in range(count)]}})
    replicas = 1 if mode == "single" else count
    whole = size if meaning == "global" else size * replicas * accumulate
    trials, left_out = mode_trials.trials(spec, gpus(4), 20)
    assert left_out == {}
    assert {(t.mode, len(t.spec.devices.ids)) for t in trials} \
        >= {("single", 1), ("dp", count), ("ddp", count)}
    for trial in trials:
        assert trial.spec.train.steps == 20
        assert trial.spec.train.epochs is None
        found = batch_of(trial.spec, modes.get(trial.mode).replicas(len(trial.spec.devices.ids), 1))
        if found is not None:  # else the plan says what would divide
            assert found.global_size == whole


def test_keys_that_a_mode_does_not_have_are_left_out_and_all_of_them_fit():
    trials, _ = mode_trials.trials(from_dict(BASE | {"batch": {"size": 8}}), gpus(2), 20)
    caps = {t.mode: t.spec.parallel.bucket_cap_mb for t in trials}
    assert caps.items() >= {"single": None, "dp": None, "ddp": 10}.items()
    for trial in trials:
        problems = check(trial.spec, gpus(2)).problems
        assert [p for p in problems if p.key != "task.use"] == []
    names = [t.spec.name for t in trials]
    assert len(set(names)) == len(trials)


def test_dataparallel_is_left_out_where_there_are_no_gpus():
    spec = from_dict(BASE | {"devices": {"ids": ["cpu:0", "cpu:1"]}, "batch": {"size": 8}})
    trials, left_out = mode_trials.trials(spec, slots(2), 20)
    assert {t.mode for t in trials} >= {"single", "ddp"}
    assert left_out == {"dp": "DataParallel needs GPUs"}


@pytest.mark.parametrize(("change", "said"), [
    ({"task": {"command": ["python", "x.py"]}}, "decides its mode itself"),
    ({"devices": {"ids": ["0"]}}, "name two devices or more"),
    ({"devices": {"hosts": ["gpu1"]}}, "on one machine"),
    ({"parallel": {"mode": "multinode", "nodes": 2}}, "on one machine"),
    ({"batch": {"size": 7}}, "can't be divided among 2 devices")])
def test_what_can_not_be_compared_is_refused(change, said):
    with pytest.raises(SpecError, match=said):
        mode_trials.trials(from_dict(BASE | change), gpus(2), 20)


def test_the_rate_leaves_out_the_warm_up():
    # The first step takes 10 s, each later one half a second.
    times = [(100.0 + 10 + step / 2, step) for step in range(1, 21)]
    assert mode_trials.rate(times, 20) == pytest.approx(0.5)
    assert mode_trials.rate([(100.0, 1), *times[3:]], 20) == pytest.approx(0.5)
    assert mode_trials.rate(times[:4], 20) is None  # one event behind the warm-up
    assert mode_trials.rate([], 20) is None


ONE = Result("single", 1, 0.1, 100.0, 1 << 30, {1: 2.0, 2: 1.0})
DP = replace(ONE, mode="dp", devices=2, samples_per_s=80.0, losses={1: 2.0, 2: 1.00001})
DDP = replace(ONE, mode="ddp", devices=2, samples_per_s=190.0)


def test_sentences_settle_what_is_faster():
    said, good = mode_trials.verdicts([ONE, DP, DDP], amp=False)
    assert good
    assert said == [
        "DataParallel on 2 devices is 0.80 × as fast as one device: slower than one",
        "DataParallel trains the same as one device: its losses differ by 1e-05 at most (relative)",
        "DDP on 2 devices is 1.90 × as fast as one device",
        "DDP trains the same as one device: its losses differ by 0 at most (relative)"]
    assert mode_trials.efficiency(ONE, DDP) == pytest.approx(0.95)
    assert mode_trials.efficiency(ONE, DP) == pytest.approx(0.4)


def test_another_training_is_no_comparison():
    """As with a batch of twice the size. Numbers of AMP are less exact."""
    other = replace(DDP, losses={1: 2.0, 2: 1.02})
    said, good = mode_trials.verdicts([ONE, other], amp=False)
    assert not good
    assert "does NOT train the same" in said[1]
    assert mode_trials.verdicts([ONE, other], amp=True)[1]
    assert not mode_trials.verdicts([ONE, replace(DDP, problem="out of memory")], amp=False)[1]


def test_without_losses_nothing_is_claimed():
    said, good = mode_trials.verdicts([ONE, replace(DDP, losses={})], amp=False)
    assert not good
    assert "is not known" in said[-1]


def test_the_registry_decides_what_is_tried():
    tried = {t.mode for t in mode_trials.trials(from_dict(BASE | {"batch": {"size": 8}}),
                                                gpus(2), 20)[0]}
    assert tried == {m.name for m in modes.every() if not m.several_nodes}
