"""run.metrics: what a script prints is recorded as if it had logged it."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.clean import without_sequences
from gpu_engine.common.errors import SpecError
from gpu_engine.events.reader import Tail
from gpu_engine.events.schema import Metric, Warning
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.schema import parse_metrics
from gpu_engine.spec.write import differences, to_toml
from gpu_engine.supervisor.printed import Printed, in_line, own_step

from ..command_line import called
from .test_supervise import ended, go  # noqa: F401  the fixture


def told(run, kind=Metric):
    return [e for e in Tail(run.events(0)).read() if isinstance(e, kind)]


PRINTS = """
for i in range(1, 4):
    print(f"step {i * 10} val_bpb: {1 / i:.4f} acc={i / 4}", flush=True)
print("loss: nan, and never a lambda", flush=True)
print("unfinished val_bpb: 0.25", end="", flush=True)
"""


def test_a_pattern_gives_its_value_with_the_step_of_the_line(go):  # noqa: F811
    run = go(PRINTS, ranks=1, parallel={"mode": "single"},
             run={"metrics": {"bpb": r"val_bpb: (\S+)", "lambda": r"lambda=(\d+)"}})
    assert ended(run).state == "completed"
    assert [(e.step, e.values) for e in told(run)] == [
        (10, {"bpb": 1.0}), (20, {"bpb": 0.5}), (30, {"bpb": 0.3333}), (None, {"bpb": 0.25})]
    (missing,) = [w.message for w in told(run, Warning) if "run.metrics" in w.message]
    assert missing == "run.metrics: lambda was not seen in 6 lines of rank 0's output"
    out = called("show", run.id).stdout
    assert "bpb 0.250" in out
    assert missing in out


EPOCHS = """
for epoch in (1, 2, 3):
    for i in (10, 20, 30):
        print(f"step {i} loss: {abs(epoch * 100 + i - 220) + 1} odd: 0,{i}", flush=True)
"""


def test_steps_that_begin_anew_hide_no_value_and_doubts_are_told_once(go):  # noqa: F811
    run = go(EPOCHS, ranks=1, parallel={"mode": "single"}, run={"metrics": "auto"})
    assert ended(run).state == "completed"
    (warning,) = [w.message for w in told(run, Warning)]
    assert warning == (
        "run.metrics: not all is recorded. odd: 0,10 can't be read for certain: print it like "
        "1234.5; step: the lines' own go back, from 30 to 10; values are recorded in their order")
    assert [e.step for e in told(run)] == [10, 20, 30, *6 * [None]]
    curve = json.loads(called("curve", run.id, "loss", "--json").stdout)
    assert (curve["least"], curve["last"], curve["recorded"]) == (1.0, 111.0, 9)
    assert warning in called("show", run.id).stdout


def test_a_value_that_nobody_gives_and_output_that_goes_elsewhere_are_said(go):  # noqa: F811
    run = go("print('v: 1')", ranks=1, run={"best": "min:w", "metrics": "auto"},
             parallel={"mode": "single"})
    assert [n.message for n in ended(run).warnings] == [
        "run.best = min:w: no value of this name was evaluated, logged or printed; there are v"]
    plan = run.plan()
    task = replace(plan.spec.task, command=["torchrun", "--redirects", "3", "train.py"])
    reader = Printed.of(run, replace(plan, spec=replace(plan.spec, task=task)))
    assert reader.missing() == [
        'run.metrics = "auto": no number with a name was seen in 0 lines of rank 0\'s output, '
        "which --redirects has written to files of its own"]


def test_auto_takes_what_has_a_name_and_only_of_this_attempt(go):  # noqa: F811
    run = go(PRINTS + "sys.exit(int(os.environ['GPU_PANEL_ATTEMPT']) == 1)", ranks=2,
             run={"metrics": "auto", "best": "max:acc"}, train={"restarts": 1})
    assert ended(run).state == "completed"
    assert [e.values for e in told(run)] == 2 * [
        {"val_bpb": 1.0, "acc": 0.25}, {"val_bpb": 0.5, "acc": 0.5},
        {"val_bpb": 0.3333, "acc": 0.75}, {"loss": pytest.approx(float("nan"), nan_ok=True)},
        {"val_bpb": 0.25}]
    assert not [e for e in Tail(run.events(1)).read() if isinstance(e, Metric)]
    assert "acc 0.750" in called("runs").stdout


NAN = pytest.approx(float("nan"), nan_ok=True)


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
    ("iter 100: train loss 2.30, time 12.03ms, took 3.5, loss 10", {"train_loss": 2.3}),  # nanoGPT
    ("accuracy: 93.1%, done: 5 %", {"accuracy": 93.1, "done": 5}),
    ("tokens: 1,234,567 lr: 0,01", {"tokens": 1234567}),
    ("step:  1  loss:  8.20  memory:  0.50GiB(1.2%)  tps: 7,120",  # torchtitan
     {"step": 1, "loss": 8.2, "tps": 7120}),
    ("10/10 - 0s 5ms/step - accuracy: 0.95 - loss: 0.2", {"accuracy": 0.95, "loss": 0.2}),  # keras
    ("", {}), ("{" * 5000, {})])
def test_which_numbers_of_a_line_have_a_name(line, values):
    assert in_line(line)[0] == values


@pytest.mark.parametrize(("line", "step"), [
    ("step 1,200: x", 1200), ("Step 1e3", 1000), ('{"step": 40.0}', 40), ("Step [100/600], x", 100),
    ("global_step=1_000", 1000), ("iteration        7/     500 |", 7), ("step #12:", 12),
    ("tokens per step 524288", None), ("5ms/step - x", None), ("step 0.25 s", None),
    ("step 12ms", None), ("step 12 ms", None), ("step 1 234", None), ("step 40-50", None),
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


@given(st.text())
def test_no_line_is_too_odd(line):
    in_line(line)


def test_a_log_that_is_cut_long_lines_and_carriage_returns(tmp_path):
    (tmp_path / "ranks").mkdir()
    log = tmp_path / "ranks" / "00000.log"
    log.write_text("v: 0\n")
    reader = Printed(log, {"v": r"v: (\d+)"})
    assert reader.read(1) is None  # what was there before
    with log.open("a") as file:
        file.write("v: 1\rv: 2\r\nv: 3\n" + "x" * 9000 + "v: 4\n")
    assert [(e.step, e.values["v"]) for e in reader.read(7)] == [(7, 1), (7, 2), (7, 3)]
    log.write_text("cut\nv: 5\n")
    assert [e.values["v"] for e in reader.read(8)] == [5]
    # Of a thousand lines in one look the best and the last are kept, wherever they are.
    log.write_text("".join(f"v: {i * (i != 77)}\n" for i in [*range(1, 999), 2000, 1000]))
    kept = [e.values["v"] for e in reader.read(9)]
    assert len(kept) < 260
    assert {0, 2000} < {*kept}
    assert kept[-1] == 1000


@pytest.mark.parametrize(("pattern", "line", "value"), [
    (r"bpb: (\S+)", "\x1b[1mbpb\x1b[0m: \x1b[36m0.9979\x1b[0m", 0.9979),
    (r"acc: (\S+)", "acc: 93.1%, x", 93.1), (r"'l': (\S+)", "{'l': '0.5'}", 0.5),
    (r"n: ([\d,]+)", "n: 1,234,567 x", 1234567), (r"n: (\S+)", "n: 1,234 x: 0.25", 1234),
    (r"^\d+,([\d.]+),", "12,0.5,0.3", 0.5), (r"(\d+)/100", "7/100", 7),
    # Only a part of what stands there, or not certain.
    (r"n: (\d+)", "n: 1,234,567", None), (r"n: (\d+),", "n: 1,234, x", None),
    (r"l: (\d+)", "l: 0,31", None), (r"l: (\S+)", "l: 0,31", None),
    (r"l: .*(\d+\.\d+)", "l: 12.31", None), (r"l: (\d+)", "l: 0.31", None),
    (r"n: (\d+)", "n: 1 234 x", None)])
def test_a_pattern_reads_a_whole_number_or_none(tmp_path, pattern, line, value):
    log = tmp_path / "ranks" / "00000.log"
    log.parent.mkdir()
    reader = Printed(log, {"v": pattern})
    log.write_text(f"{line}\n")
    (event,) = reader.read(1)
    assert event.values == {"v": value} if value is not None else \
        "v: its pattern matched '" in event.message


def test_a_pattern_that_never_comes_back_is_left_and_told_of(tmp_path):
    (tmp_path / "ranks").mkdir()
    log = tmp_path / "ranks" / "00000.log"
    reader = Printed(log, {"bad": r"(a+)+$", "word": r"w: (\S+)"})
    log.write_text("a" * 100 + "b\nw: seven\n")
    (told,) = reader.read(1)  # once
    assert told.message == (
        "run.metrics: not all is recorded. bad: its pattern took more than 0.1 s for one line; "
        "word: its pattern matched 'seven', which is no number")
    log.write_text("a" * 100 + "b\nw: seven\n" * 2)
    assert reader.read(1) == []
    assert reader.missing() == [
        "run.metrics: bad was not seen in 4 lines of rank 0's output; its pattern took more than "
        "0.1 s for one line",
        "run.metrics: word was not seen in 4 lines of rank 0's output; its pattern matched "
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


def test_every_way_to_write_it_is_the_same():
    data: dict = {}
    apply_sets(data, [r"run.metrics.val_bpb=val_bpb: (\S+)"])
    spec = from_dict(data)
    assert spec.run.metrics == {"val_bpb": r"val_bpb: (\S+)"}
    again: dict = {}
    apply_sets(again, differences(from_dict({}), spec))
    assert from_dict(again) == spec
    apply_sets(again, ["run.metrics=auto"])
    assert from_dict(again).run.metrics == "auto"
    assert 'metrics = "auto"' in to_toml(from_dict(again))
    with pytest.raises(SpecError, match=r"run\.metrics"):
        from_dict({"run": {"metrics": "all"}})
