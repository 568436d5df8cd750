"""run.metrics: what a script prints is recorded as if it had logged it."""

from __future__ import annotations

import math
import random
import re
import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.clean import without_sequences
from gpu_engine.common.errors import SpecError
from gpu_engine.events.reader import Tail
from gpu_engine.events.schema import Metric, Warning
from gpu_engine.spec.schema import parse_metrics
from gpu_engine.supervisor.printed import Printed, _fewer, in_line, own_step

from ..command_line import called
from ..conftest import over
from .test_supervise import go  # noqa: F401  the fixture


def told(run, kind=Metric):
    return [e for e in Tail(run.events(0)).read() if isinstance(e, kind)]


PRINTS = """
for i in range(1, 4):
    print(f"step {i * 10} val_bpb: {1 / i:.4f} acc={i / 4}", flush=True)
print("loss: nan, and never a lambda", flush=True)
print("unfinished val_bpb: 0.25", end="", flush=True)
"""


def test_a_pattern_gives_its_value_with_the_step_of_the_line(go):  # noqa: F811
    run = go(PRINTS + "sys.exit(int(os.environ['GPU_PANEL_ATTEMPT']) == 1)", ranks=1,
             parallel={"mode": "single"}, train={"restarts": 1},
             run={"metrics": {"bpb": r"val_bpb: (\S+)", "lambda": r"lambda=(\d+)"}})
    assert over(run).state == "completed"
    assert [(e.step, e.values) for e in told(run)] == 2 * [
        (10, {"bpb": 1.0}), (20, {"bpb": 0.5}), (30, {"bpb": 0.3333}), (None, {"bpb": 0.25})]
    (missing,) = [w.message for w in told(run, Warning) if "run.metrics" in w.message]
    assert missing == "run.metrics: lambda was not seen in 6 lines of rank 0's output"
    out = called("show", run.id).stdout
    assert "bpb 0.250" in out
    assert missing in out


@pytest.fixture
def log(tmp_path):
    (tmp_path / "ranks").mkdir()
    return tmp_path / "ranks" / "00000.log"


def test_steps_that_begin_anew_hide_no_value_and_doubts_are_told_once(log):
    reader = Printed(log, "auto")
    log.write_text("".join(f"step {i} loss: {abs(epoch * 100 + i - 220) + 1} odd: 0,{i}\n"
                           for epoch in (1, 2, 3) for i in (10, 20, 20, 30)))
    *events, warning = reader.read(None)
    assert warning.message == (
        "run.metrics: not all is recorded. odd: 0,10 can't be read for certain: print it like "
        "1234.5; step: the lines' own go back, from 30 to 10; values are recorded in their order")
    assert [e.step for e in events] == [10, 20, 20, 30, *8 * [None]]
    assert [e.values for e in events[-2:]] == [{"loss": 101.0}, {"loss": 111.0}]
    with log.open("a") as file:
        file.write("step 40 odd: 0,1\n" + " ".join(f"n{i}: {i}" for i in range(80)))
    [last] = reader.read(7, over=True) + reader.read(7, over=True)
    # 64 names with "loss" and "odd"
    assert (last.step, last.values) == (7, {f"n{i}": i for i in range(62)})


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from(["\n", "\r\n", "\r", "\b\n"])),
                max_size=9), st.lists(st.integers(0, 160)))
def test_it_does_not_matter_in_which_pieces_the_output_comes(lines, cuts):
    text = "".join(f"Step: {at} v: {v}{end}" for at, (v, end) in enumerate(lines)) + "v: 0.5"
    with tempfile.TemporaryDirectory() as folder:
        log, events = Path(folder, "ranks", "00000.log"), []
        log.parent.mkdir()
        reader = Printed(log, "auto")
        for cut in [*sorted(cuts), len(text)]:
            log.write_text(text[:cut])
            events += reader.read(7) or ()
        events += reader.read(7, over=True)
        assert reader.read(7, over=True) is None
    assert [(e.step, e.values) for e in events] == [
        *((at, {"v": v}) for at, (v, _) in enumerate(lines)), (7, {"v": 0.5})]


@given(st.integers(0, 900), st.integers(0, 9))
def test_of_many_values_of_one_look_the_least_the_greatest_and_the_last_stay(many, seed):
    draw = random.Random(seed)
    events = [Metric(at, {draw.choice("vw"): draw.choice((0.0, math.nan, math.inf, draw.random()))})
              for at in range(many)]
    kept = _fewer(events)
    assert kept == events if many <= 200 else 200 <= len(kept) <= 406
    assert [e.step for e in kept] == sorted({e.step for e in kept})
    assert kept[:1] == events[:1]
    for name in "vw":
        told, left = ([e.values[name] for e in some if name in e.values] for some in (events, kept))
        assert told[-1:] == left[-1:]
        told, left = ([*filter(math.isfinite, values)] for values in (told, left))
        assert (min(told, default=0), max(told, default=0)) == (
            min(left, default=0), max(left, default=0))


def test_a_value_that_nobody_gives_and_output_that_goes_elsewhere_are_said(go):  # noqa: F811
    run = go("print('v: 1')", ranks=1, run={"best": "min:w", "metrics": "auto"},
             parallel={"mode": "single"})
    assert [n.message for n in over(run).warnings] == [
        "run.best = min:w: no value of this name was evaluated, logged or printed; there are v"]
    plan = run.plan()
    for words in (["python", "-r", "3"], ["torchrun", "t.py"], ["torchrun", "-r", "3", "t.py"],
                  ["torchrun", "--redirects=3", "t.py"], ["torchrun", "--redirects", "3", "t.py"]):
        task = replace(plan.spec.task, command=words)
        reader = Printed.of(run, replace(plan, spec=replace(plan.spec, task=task)))
        assert reader.path == run.log(0)
        assert bool(reader.elsewhere) == ("torchrun" in words and "3" in " ".join(words))
    assert reader.missing() == [
        'run.metrics = "auto": no number with a name was seen in 0 lines of rank 0\'s output, '
        "which --redirects has written to files of its own"]


def test_auto_takes_what_has_a_name_and_only_of_this_attempt(go):  # noqa: F811
    run = go(PRINTS + "sys.exit(int(os.environ['GPU_PANEL_ATTEMPT']) == 1)", ranks=2,
             run={"metrics": "auto", "best": "max:acc"}, train={"restarts": 1})
    assert over(run).state == "completed"
    assert [e.values for e in told(run)] == 2 * [
        {"val_bpb": 1.0, "acc": 0.25}, {"val_bpb": 0.5, "acc": 0.5},
        {"val_bpb": 0.3333, "acc": 0.75}, {"loss": pytest.approx(float("nan"), nan_ok=True)},
        {"val_bpb": 0.25}]
    assert not [e for e in Tail(run.events(1)).read() if isinstance(e, Metric)]
    assert "acc 0.750" in called("runs").stdout


NAN = pytest.approx(float("nan"), nan_ok=True)
PART = "is a part of a longer number"


@pytest.mark.parametrize(("line", "values"), [
    ('{"loss": 0.5, "n": 3, "ok": true, "name": "7", "v": "1.2.3", "huge": 1e999, "in": {"x": 1}}',
     {"loss": 0.5, "n": 3.0, "name": 7.0}),
    ('{"loss": NaN, "x": -Infinity}', {"loss": NAN, "x": float("-inf")}),
    ('{"loss": 0.5', {"loss": 0.5}), ("{'loss': 0.5, 'lr': 1e-3}", {"loss": 0.5, "lr": 1e-3}),
    ("{'loss': '0.5', 'epoch': '1'}", {"loss": 0.5, "epoch": 1}),  # as transformers prints
    ("epoch: 3, lr=1e-3 | val/acc: .75;top-5=1", {"epoch": 3, "lr": 1e-3, "val/acc": 0.75,
                                                  "top-5": 1}),
    ("Training:  12%|██| 30/30 [00:05<00:00, 5.9it/s, loss=0.2]", {"loss": 0.2}),  # tqdm
    ("at 12:30:15 wrote /data/run:7 to host:22x, v=1.2.3", {}),
    ("perplexity : 12 (was: -3.5)", {"perplexity": 12, "was": -3.5}),
    ("x: inf y=NaN nano: nano", {"x": float("inf"), "y": NAN}),
    ("train loss: .5 val loss: .6, final loss: 0.7.", {"train_loss": 0.5, "val_loss": 0.6,
                                                       "loss": 0.7}),
    ("loss: 1 (G loss: 2), acc: 1 acc: 1", {"acc": 1}),  # which of the two?
    ("iter 100: train loss 2.30, time 12.03ms, took 3.5, loss 10",
     {"train_loss": 2.3, "loss": 10}),  # nanoGPT
    ("accuracy: 93.1%, done: 5 %", {"accuracy": 93.1, "done": 5}),
    ("tokens: 1,234,567 lr: 0,01", {"tokens": 1234567}),
    ("step:  1  loss:  8.20  memory:  0.50GiB(1.2%)  tps: 7,120",  # torchtitan
     {"step": 1, "loss": 8.2, "tps": 7120}),
    ("10/10 - 0s 5ms/step - accuracy: 0.95 - loss: 0.2", {"accuracy": 0.95, "loss": 0.2}),  # keras
    ("step 400 loss 1e-05 acc 93 epoch 7", {"loss": 1e-5, "acc": 93}),
    ("max loss: 1, smoothed loss: 2, best val loss 3, val loss: 4", {
        "max_loss": 1, "smoothed_loss": 2, "best_val_loss": 3, "val_loss": 4}),
    ("Epoch: [0][ 10/100]\tLoss 2.3e+00 (2.4e+00)\tAcc@1 76.130 (75.2)",  # torch's ImageNet
     {"Loss": 2.3, "Acc@1": 76.13}),
    ("", {}), ("{" * 5000, {})])
def test_which_numbers_of_a_line_have_a_name(line, values):
    assert in_line(line)[0] == values


@pytest.mark.parametrize(("line", "name"), [
    ("tokens: 1.5M, loss: 0.5", "tokens"), ("loss: tensor(0.5, grad_fn=<X>)", "loss"),
    ("{'loss': np.float64(0.5)}", "loss"), ("loss: \N{MINUS SIGN}0.5", "loss"),
    ("bpb: 2.5(0.1)", "bpb"), ("val_loss 2.5/3.0", "val_loss"), ("loss (val): 0.6", "loss (val)"),
    ("loss [val]: 0.6", "loss [val]"), ("loss tensor(0.5)", "loss")])
def test_what_is_a_number_for_people_alone_is_said(line, name):
    values, doubts = in_line(line)
    assert name not in values
    assert "can't be read for certain" in doubts[name]


@pytest.mark.parametrize(("line", "step"), [
    ("val_loss: 0.1050 (best 0.10 at step 100)", None), ("loss: 0.3 saved at step 40", None),
    ("val loss at step 40: 0.3", 40), ("warmup step 500, loss: 2", None),
    ("INFO step 3 loss: 0.5", 3), ("loss: 0.5 step: 3", 3), ("best step 3", None),
    ("step 1,200: x", 1200), ("Step 1e3", 1000), ('{"step": 40.0}', 40), ("Step [100/600], x", 100),
    ("global_step=1_000", 1000), ("iteration        7/     500 |", 7), ("step #12:", 12),
    ("tokens per step 524288", None), ("5ms/step - x", None), ("step 0.25 s", None),
    ("step 12ms", None), ("step 12 ms", None), ("step 1 234", None), ("step 10.000 x", None),
    ("best loss: 0.4 (step 300)  loss: 0.5", None), ("loss: 0.5 (step 300)", 300),
    ("loss 0.5, best loss 0.4 (step 300)", None), ("step 40-50", None),
    ("step 5, best at step 3", None), ("step 5 of 9, since step 5", 5), ("step 1e300", None)])
def test_which_step_a_line_says(line, step):
    assert own_step(line) == step


def grouped(sign: str, point: str = "."):
    """Writes a plain number with its digits in groups of three."""
    def written(plain: str) -> str:
        return f"{Decimal(plain):,}".translate(str.maketrans({",": sign, ".": point}))
    return written


@given(st.floats(-1e9, 1e9) | st.integers(-10**9, 10**9), st.integers(1, 4),
       st.sampled_from([
           (True, str), (True, "'{}'".format), (True, "{} %".format), (True, "+{}".format),
           (True, grouped("_")), (True, grouped(",")), (False, grouped(" ")),
           (False, grouped("\u202f")), (False, grouped("'")), (False, grouped(".", ",")),
           (False, lambda plain: plain.replace(".", ","))]),
       st.sampled_from(["loss: {}", "loss={},other=1", "at 10:00:00,123 a: b loss: {}; and so on",
                        "\x1b[1mloss\x1b[0m: \x1b[36m{}\x1b[0m (5 s)"]))
def test_a_number_is_read_as_it_was_written_or_not_at_all(value, digits, how, line):
    certain, written = how
    plain = f"{abs(value):.{digits}f}"
    values, doubts = in_line(without_sequences(line.format(written(plain))))
    if certain or "loss" in values:
        assert values["loss"] == float(plain)
    assert ("loss" in values) != ("loss" in doubts)


@given(st.sampled_from(["loss", "val_loss", "Acc", "train ppl", "max loss"]),
       st.sampled_from([" ", "  ", ": ", "=", " = "]), st.sampled_from(["", "-", "+"]),
       st.sampled_from(["nan", "NaN", "NAN", "inf", "Infinity"]),
       st.sampled_from(["", ".", "!", "...", ", time 3ms", " |", ") and"]))
def test_what_is_not_finite_is_never_overlooked_and_words_are_none(name, sign, minus, odd, tail):
    values, _ = in_line(f"iter 5: {name}{sign}{minus}{odd}{tail}")
    assert repr(values) == repr({name.replace(" ", "_"): float(minus + odd)})
    for word in ("infinite", "information", "nano", "nan_check", "inf/x"):
        assert in_line(f"{name}{sign}{minus}{word}{tail}") == ({}, {})


@given(st.text())
def test_no_line_is_too_odd(line):
    in_line(line)


def test_a_log_that_is_cut_and_long_lines(log):
    log.write_text("v: 0\n")
    reader = Printed(log, {"v": r"v: (\d+)"})
    assert reader.read(1) is None  # what was there before
    with log.open("a") as file:
        file.write("v: 1\rv: 2\r\nv: 3\n" + "x" * 9000 + "v: 4\n")
    assert [(e.step, e.values["v"]) for e in reader.read(7)] == [(7, 1), (7, 2), (7, 3)]
    log.write_text("cut\nv: 5\n")
    assert [e.values["v"] for e in reader.read(8)] == [5]


@pytest.mark.parametrize(("pattern", "line", "value"), [
    (r"bpb: (\S+)", "\x1b[1mbpb\x1b[0m: \x1b[36m0.9979\x1b[0m", 0.9979),
    (r"acc: (\S+)", "acc: 93.1%, x", 93.1), (r"'l': (\S+)", "{'l': '0.5'}", 0.5),
    (r"n: ([\d,]+)", "n: 1,234,567 x", 1234567), (r"n: (\S+)", "n: 1,234 x: 0.25", 1234),
    (r"^\d+,([\d.]+),", "12,0.5,0.3", 0.5), (r"(\d+)/100", "7/100", 7),
    (r"n: (\d+)", "n: 1234 567 x", 1234), (r"l:(.*)", "l: NaN", NAN),
    (r"n: (\d+)", "n: 1,234,567", PART), (r"n: (\d+),", "n: 1,234, x", PART),
    (r"l: (\d+)", "l: 0,31", PART), (r"l: (\S+)", "l: 0,31", "can't be read for certain: print"),
    (r"l: .*(\d+\.\d+)", "l: 12.31", PART), (r"l: (\d+)", "l: 0.31", PART),
    (r"n: (\d+)", "n: 123 456 x", PART), (r"l: ([\d.]+)", "l: 9.9e-05 x", PART),
    (r"n: ([\d.]+)", "n: 1.5M", PART), (r"s.*?([\d.]+)", "s: -0.5", PART),
    (r"n: ([\d.]+)M", "n: 1.5M", 1.5), (r"t: ([\d.]+)", "t: 1.5ms", 1.5),
    (r"v: (\S+)", "v: 1.2.3", "is no number")])
def test_a_pattern_reads_a_whole_number_or_none(log, pattern, line, value):
    reader = Printed(log, {"v": pattern})
    log.write_text(f"{line}\n")
    (event,) = reader.read(1)
    assert event.values == {"v": value} if not isinstance(value, str) else \
        re.search(f"v: its pattern matched '.*', which {value}", event.message)


def test_a_pattern_that_never_comes_back_is_left_and_told_of(log):
    reader = Printed(log, {"bad": r"(a+)+$", "word": r"w: (\S+)"})
    log.write_text("a" * 100 + "b w: seven\n")
    (told,) = reader.read(1)  # once
    assert told.message == (
        "run.metrics: not all is recorded. bad: its pattern took more than 0.1 s for one line; "
        "word: its pattern matched 'seven', which is no number")
    log.write_text("a" * 100 + "b w: seven\n" * 2)
    assert reader.read(1) == []
    assert reader.missing() == [
        "run.metrics: bad was not seen in 2 lines of rank 0's output; its pattern took more than "
        "0.1 s for one line",
        "run.metrics: word was not seen in 2 lines of rank 0's output; its pattern matched "
        "'seven', which is no number"]


@pytest.mark.parametrize(("pattern", "why"), [
    (r"v: \S+", "needs one group, (…), for the number, and has none"),
    (r"(v): (\S+)", "needs one group, (…), for the number, and has 2"),
    (r"v: (\S+", "is no regular expression: missing )")])
def test_a_pattern_that_can_not_be(pattern, why):
    with pytest.raises(SpecError) as caught:
        parse_metrics({"v": pattern})
    assert f"run.metrics.v = {pattern!r}"[:16] in str(caught.value)
    assert why in str(caught.value)
    assert why in called("plan", "--metric", pattern.lstrip("("), "--", "true").stderr \
        or pattern.startswith("(")
