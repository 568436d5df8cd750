"""run.metrics: what a script prints is recorded as if it had logged it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import SpecError
from gpu_engine.events.reader import Tail
from gpu_engine.events.schema import Metric, Warning
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.schema import parse_metrics
from gpu_engine.spec.write import differences, to_toml
from gpu_engine.supervisor.printed import Printed, in_line

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


@pytest.mark.parametrize(("line", "values"), [
    ('{"loss": 0.5, "n": 3, "ok": true, "name": "7", "huge": 1e999, "in": {"x": 1}}',
     {"loss": 0.5, "n": 3.0}),
    ('{"loss": 0.5', {"loss": 0.5}), ("{'loss': 0.5, 'lr': 1e-3}", {"loss": 0.5, "lr": 1e-3}),
    ("epoch: 3, lr=1e-3 | val/acc: .75;top-5=1", {"epoch": 3, "lr": 1e-3, "val/acc": 0.75,
                                                  "top-5": 1}),
    ("100%|███| 30/30 [00:05<00:00, 5.9it/s, loss=0.2]", {"loss": 0.2}),
    ("at 12:30:15 wrote /data/run:7 to host:22x, v=1.2.3", {}),
    ("perplexity : 12 (was: -3.5)", {"perplexity": 12, "was": -3.5}),
    ("x: inf y=NaN", {"x": float("inf"), "y": pytest.approx(float("nan"), nan_ok=True)}),
    ("", {}), ("{" * 5000, {})])
def test_which_numbers_of_a_line_have_a_name(line, values):
    assert in_line(line) == values


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
    log.write_text("v: 6\n" * 1000)
    assert len(reader.read(9)) == 200


def test_a_pattern_that_never_comes_back_is_left_and_told_of(tmp_path):
    (tmp_path / "ranks").mkdir()
    log = tmp_path / "ranks" / "00000.log"
    reader = Printed(log, {"bad": r"(a+)+$", "word": r"w: (\S+)"})
    log.write_text("a" * 100 + "b\nw: seven\n")
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
