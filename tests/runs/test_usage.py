"""Device-hours, worked out by hand."""

import calendar
import getpass
import itertools
import json
import os
import time
from dataclasses import replace

import pytest

from gpu_engine.devices import leases, use_log
from gpu_engine.devices.records import DeviceProcess, Sample, Snapshot
from gpu_engine.devices.use_log import Others, Use
from gpu_engine.plan.records import DeviceUse, RankPlan
from gpu_engine.report import usage
from gpu_engine.runs.state import AttemptRecord, State

from ..conftest import gpus
from ..plans import plan

HOUR = 3600.0
NOW = time.time()


@pytest.fixture
def run(home):
    """Makes a run's folder, whose attempts began and ended so many hours ago."""
    def make(name: str, labels: dict[str, str | None], *hours: tuple[float, float]) -> None:
        folder = home / "runs" / name
        folder.mkdir(parents=True)
        state = State("completed", name, name, NOW, attempts=tuple(
            AttemptRecord(n, NOW - first * HOUR, NOW - last * HOUR, "completed")
            for n, (first, last) in enumerate(hours, 1)))
        made = plan(ranks=tuple(
            RankPlan(n, n, 0, (DeviceUse(str(n), label, None, f"cuda:{n}"),), host=host)
            for n, (label, host) in enumerate(labels.items())))
        (folder / "state.json").write_text(json.dumps(state.to_dict()))
        (folder / "plan.json").write_text(json.dumps(made.to_dict()))
    return make


def hours(uses: list[Use], by: str) -> dict[str, tuple[float, float, float]]:
    return {row.name: (round(row.runs / HOUR, 3), round(row.holds / HOUR, 3),
                       round(row.seen / HOUR, 3)) for row in usage.sums(uses, by)}


def test_attempts_count_and_the_time_between_them_does_not(home, run):
    run("aaaa", {"GPU 0": None, "GPU 1": None}, (10, 8), (5, 4))  # 2 devices for 3 hours
    run("bbbb", {"GPU 0": None, "GPU 3": "gpu2"}, (30, 20))  # the last 4 of 10 hours count
    run("cccc", {"GPU 0": None}, (100, 90))
    (home / "runs" / "dddd").mkdir()
    (home / "runs" / "dddd" / "state.json").write_text("{")
    uses = list(usage.of_runs(NOW - 24 * HOUR, NOW))
    assert hours(uses, "run") == {"bbbb": (8.0, 0, 0), "aaaa": (6.0, 0, 0)}
    assert hours(uses, "device") == {"GPU 0": (7.0, 0, 0), "GPU 3 on gpu2": (4.0, 0, 0),
                                     "GPU 1": (3.0, 0, 0)}
    assert [row[0] for row in hours(uses, "user").values()] == [14.0]
    run("eeee", {"CPU 0": None, "CPU 1": None}, (3, 1))  # no GPU's hours
    [row] = usage.sums(usage.of_runs(NOW - 24 * HOUR, NOW), "user")
    assert (round(row.all / HOUR, 3), round(row.slots / HOUR, 3)) == (14.0, 4.0)


def test_a_hold_counts_until_it_ended_and_is_left_out_if_nobody_knows(home):
    first, second = (leases.Hold(leases.new_name(), "", None) for _ in range(2))
    before = time.time()
    with leases.acquire(home / "leases", gpus(2).devices, None, hold=first):
        use_log.hold_began(first, gpus(2).devices)
        use_log.hold_began(second, gpus(1).devices)  # whose process was killed
        uses, unknown = use_log.read(before - HOUR, before + HOUR)
        assert (hours(uses, "user").popitem()[1], unknown) == ((0, 2.0, 0), 1)
    use_log.hold_ended(first.name)
    use_log.hold_ended(first.name)
    uses, unknown = use_log.read(before - HOUR, before + HOUR)
    assert unknown == 1
    assert {use.device for use in uses} == {"GPU 0", "GPU 1"}
    assert all(0 <= use.end - before < 60 for use in uses)


def test_others_count_in_slots_in_which_somebody_looked(home):
    def shot(at: float, *users: str) -> Snapshot:
        return Snapshot(at, tuple(Sample(d, processes=tuple(
            DeviceProcess(n, user=user) for n, user in enumerate(users))) for d in gpus(1).devices))

    start = NOW // use_log.SLOT * use_log.SLOT
    panels = Others(), Others()  # two are open: it is one process all the same
    for panel in panels:
        for second in (0, 1, 599, 600, 3000):
            panel.note(shot(start + second, "alice", "alice", "bob"))
        panel.note(shot(start + 3001, "carol"))
        panel.note(Snapshot(start, (Sample(gpus(1).devices[0], processes=(
            DeviceProcess(9, kind="graphics", user="gdm"),)),)))
    uses, _ = use_log.read(start - HOUR, start + 2 * HOUR)
    assert hours(uses, "user") == {"alice": (0, 0, 0.5), "bob": (0, 0, 0.5),
                                   "carol": (0, 0, 0.167)}
    assert {use.kind for use in uses} == {"seen"}
    [path] = (home / "usage").iterdir()
    assert len(path.read_bytes().splitlines()) == 2 * 7  # once a slot for each user


def test_the_months_that_matter_are_read(home, monkeypatch):
    def at(month: int, day: int) -> float:
        return float(calendar.timegm((2026, month, day, 0, 0, 0)))

    one, lost = (leases.Hold(leases.new_name(), "", None) for _ in range(2))
    for when, what in [(at(2, 27), lambda: use_log.hold_began(lost, gpus(1).devices)),
                       (at(2, 28), lambda: use_log.hold_began(one, gpus(1).devices)),
                       (at(3, 2), lambda: use_log.hold_ended(one.name))]:
        monkeypatch.setattr(use_log.time, "time", lambda when=when: when)
        what()
    assert {(path.name, path.stat().st_mode & 0o777) for path in (home / "usage").iterdir()} == {
        ("2026-02.jsonl", 0o600), ("2026-03.jsonl", 0o600)}
    use = Use(getpass.getuser(), "GPU 0", at(2, 28), at(3, 2), kind="hold")
    assert use_log.read(at(3, 1), at(3, 3)) == ([replace(use, start=at(3, 1))], 1)
    assert use_log.read(at(2, 1), at(3, 1)) == ([replace(use, end=at(3, 1))], 1)
    assert use_log.read(at(3, 2), at(3, 3)) == ([], 1)  # it ended with the second
    assert use_log.read(at(4, 2), at(4, 3)) == ([], 0)


@pytest.mark.parametrize("line", ["[]", "{", "{\"hold\": 3}", "{\"hold\": \"x\", \"to\": 1}",
                                  "{\"seen\": 1, \"user\": \"a\", \"devices\": [{}]}",
                                  "{\"hold\": \"x\", \"from\": \"y\", \"devices\": 7}",
                                  "{\"user\": \"\udcff\"}",  # no UTF-8
                                  "{\"devices\": [\"x\"]}", "[" * 99_999,
                                  "{\"seen\": 1e99, \"user\": \"a\", \"devices\": [\"x\"]}",
                                  "{\"hold\": \"x\", \"from\": 1e99, \"devices\": [\"x\"]}"])
def test_odd_lines_are_passed_over(home, line):
    folder = home / "usage"
    folder.mkdir(parents=True)
    (folder / time.strftime("%Y-%m.jsonl", time.gmtime())).write_bytes(
        os.fsencode(line) + b"\n")
    os.mkfifo(folder / "2099-01.jsonl")
    (folder / "2099-02.jsonl").symlink_to("/dev/zero")
    assert use_log.read(0.0, NOW) == ([], 0)


def noted(home, *lines: dict) -> None:
    (home / "usage").mkdir(parents=True)
    (home / "usage" / "1970-01.jsonl").write_text("\n".join(map(json.dumps, lines)))


def test_of_any_time_what_lies_in_it_is_told(home):
    noted(home, {"hold": "a", "devices": ["GPU 0", "GPU 1"], "from": 600},
          {"hold": "a", "to": 1800}, *[{"seen": 2, "user": "bob", "devices": ["GPU 2"]}] * 2)
    for since, now in itertools.product(range(0, 3000, 300), repeat=2):
        uses, _ = use_log.read(since, now)
        assert sorted((use.device, use.start, use.end) for use in uses) == [
            (device, max(start, since), min(end, now)) for device, start, end in (
                ("GPU 0", 600, 1800), ("GPU 1", 600, 1800), ("GPU 2", 1200, 1800))
            if start < now and end > since]


def test_no_more_is_read_than_its_bounds(home, monkeypatch):
    line = {"seen": 0, "user": "u" * 99, "devices": ["d" * 99]}
    noted(home, {"hold": "a", "devices": [str(n) for n in range(70)], "from": 0},
          {"hold": "a", "to": 9}, line)
    uses, _ = use_log.read(0, 600)
    assert ([len(use.user) for use in uses if use.kind == "seen"],
            sorted(len(use.device) for use in uses)[-1], len(uses)) == ([80], 80, 65)
    monkeypatch.setattr(use_log, "_LONGEST", len(json.dumps(line)))  # the end of a file
    assert [use.kind for use in use_log.read(0, 600)[0]] == ["seen"]


def test_a_link_in_the_place_of_a_month_is_not_written_through(home):
    folder = home / "usage"
    folder.mkdir(parents=True)
    (folder / time.strftime("%Y-%m.jsonl", time.gmtime())).symlink_to(home / "kept")
    use_log.hold_ended("x")
    assert not (home / "kept").exists()
