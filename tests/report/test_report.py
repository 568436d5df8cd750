"""gpu-engine report: its page, its charts, and texts that try to be more than text."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpu_engine.common.series import Series
from gpu_engine.report.svg import _DARK, _LIGHT, Chart, Line, draw
from gpu_engine.runs import environment, notes
from gpu_engine.runs.folder import Run

from ..command_line import called
from ..export.kit import Written

EVIL = '<script>alert("1")</script>'


class Read(HTMLParser):
    """What a browser would see: elements, their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.said: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def trained(name: str, rate: float, losses: list[float]) -> Run:
    with Written(name, ranks=2, train={"lr": rate, "steps": len(losses), "best": "max:accuracy"}
                 ) as it:
        for rank in (0, 1):
            it.start(rank)
            for step, loss in enumerate(losses, 1):
                it.steps(rank, step, [loss + rank], step)
                if rank == 0:
                    it.tell(0, "eval", t=step + 0.5, step=step, accuracy=1 / (1 + abs(step - 2)))
            it.tell(rank, "memory", t=len(losses), rss=(1 + rank) << 30, gpu_process=None)
    environment.write(it.path, environment.Environment(torch="2.13.0", commit="a" * 40,
                                                       changed_files=3, machine="box"))
    return it.run


def test_a_page_says_what_happened_and_holds_nothing_but_itself(home, tmp_path):
    run = trained("toy", 0.25, [4.0, math.nan, 1.0])
    notes.change(run.path, lambda old: notes.Notes(EVIL, ("lr",), f"why {EVIL}"))
    out = tmp_path / "r.html"
    done = called("report", run.id, "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}\n"
    text = out.read_text()
    page = Read(text)
    assert not page.names & {"script", "link", "img", "iframe", "object", "base", "form", "a"}
    assert "<script" not in text
    named = {name for name, _ in page.attributes}
    assert not named & {"style", "src", "href", "xlink:href"}
    assert not [name for name in named if name.startswith("on")]
    assert re.findall(r"https?://[^\"' ]+", text) == ["http://www.w3.org/2000/svg"] * text.count(
        "<svg")
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    (policy,) = [v for k, v in page.attributes if k == "content" and "default-src" in (v or "")]
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'"
    said = " ".join(page.said)
    for words in (EVIL, "the loss was not a finite number from step 2", "2.13.0", "a" * 40,
                  "3 files changed", "1.000", "train.lr", "0.25", "completed",
                  "2.0 GiB"):
        assert words in said, words
    assert text.count("<svg") == 5  # loss, evaluation, host memory, speed, learning rate


def test_several_runs_are_compared_with_the_mean_of_each(home, tmp_path):
    one, two = trained("toy", 0.25, [4.0, 2.0, 1.0]), trained("toy", 0.5, [4.0, 3.0, 2.0])
    out = tmp_path / "c.html"
    assert called("report", one.id, two.id, "-o", str(out)).returncode == 0
    page = Read(out.read_text())
    said = " ".join(page.said)
    for words in (f"A toy {one.id}", f"B toy {two.id}", "Settings that differ", "train.lr"):
        assert words in said
    classes = [v for k, v in page.attributes if k == "class"]
    assert {"line c0 d0", "line c1 d1"} <= set(classes)  # not by colour alone


def test_a_chart_is_in_proportion_to_its_axes():
    """Against the places of its own labels."""
    series = Series(512)
    for step, value in enumerate([8.0, 4.0, 2.0, 1.0], 1):
        series.add(step, value)
    root = ElementTree.fromstring(draw(Chart("loss", [Line("x", series)])))
    svg = "{http://www.w3.org/2000/svg}"
    labels = [(float(e.get("x")), float(e.get("y")), e.text) for e in root.iter(f"{svg}text")]
    values = [(float(t), y) for x, y, t in labels if re.fullmatch(r"[\d.]+", t) and x < 76]
    steps = [(float(t), x) for x, y, t in labels if re.fullmatch(r"\d+", t) and y > 240]
    assert len(values) >= 3
    assert len(steps) >= 2
    (v0, y0), (v1, y1) = values[0], values[-1]
    (s0, x0), (s1, x1) = steps[0], steps[-1]
    path = next(e for e in root.iter(f"{svg}path") if "line" in (e.get("class") or ""))
    points = [tuple(map(float, p.split())) for p in path.get("d")[1:].split("L")]
    assert [s0 + (x - x0) / (x1 - x0) * (s1 - s0) for x, _ in points] == pytest.approx(
        [1, 2, 3, 4], abs=0.02)
    # Labels stand four pixels below their line.
    assert [v0 + (y + 4 - y0) / (y1 - y0) * (v1 - v0) for _, y in points] == pytest.approx(
        [8, 4, 2, 1], abs=0.05)


def test_many_powers_of_ten_get_a_logarithmic_axis_that_says_so():
    series = Series(512)
    for step in range(6):
        series.add(step, 10.0 ** -step)
    text = draw(Chart("loss", [Line("x", series)]))
    assert "loss, logarithmic" in text
    assert "1e-05" in text


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [0.0], [-3.0, -1.0], [1e300, -1e300],
                                    [1e-300, 1e300], [math.nan, 2.0]])
def test_odd_curves_can_be_drawn(values):
    series = Series(512)
    for step, value in enumerate(values):
        series.add(step, value)
    text = draw(Chart("x", [Line("x", series)]))
    ElementTree.fromstring(text)
    assert not re.search(r"\bnan\b|\binf\b", text)


def test_lines_are_legible_on_their_ground():
    def light(colour: str) -> float:
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    for ink, _, ground, *lines in (_LIGHT, _DARK):
        for colour in (ink, *lines):
            a, b = sorted((light(colour), light(ground)))
            assert (b + 0.05) / (a + 0.05) >= 4.5, colour


def test_a_run_without_steps_and_mistakes(home, tmp_path):
    with Written("toy") as it:
        it.start()
        it.tell(0, "error", t=1, type="ValueError", message="bad <b>", traceback="Traceback …",
                phase="init", step=0)
    out = Path(tmp_path / "empty.html")
    assert called("report", it.run.id, "-o", str(out)).returncode == 0
    assert "no step is recorded" in out.read_text()
    same = called("report", it.run.id, it.run.id)
    assert (same.returncode, "name each run once" in same.stderr) == (2, True)
    nowhere = called("report", it.run.id, "-o", "/proc/no/r.html")
    assert (nowhere.returncode, "can't be written" in nowhere.stderr) == (2, True)
