"""gpu-engine page: one file for a browser, which holds all and leads nowhere else."""

from __future__ import annotations

import re

from gpu_engine.report import formats, page

from ..command_line import called
from ..export.kit import Written
from .test_report import EVIL, Read, trained


def test_a_run_is_shown_with_its_curves_and_the_end_of_its_log(home) -> None:
    run = trained("toy", 0.25, [4.0, 2.0, 1.0])
    run.log(0).write_text("".join(f"line {i}\n" for i in range(500)) + f"{EVIL}\x1b[31mred\n")
    text = formats.html("a run", page.of_run(run), "now", 5)
    read = Read(text)
    said = " ".join(read.said)
    assert "<script" not in text
    assert EVIL in said
    assert "\x1b" not in text
    assert "line 499" in said
    assert "line 100" not in said
    assert text.count("<svg") >= 2
    assert ("content", "5") in read.attributes
    assert said.index("Curves") < said.index("Log of rank 0") < said.index("What was asked")


def test_the_list_has_bars_curves_and_colours_beside_its_words(home, tmp_path) -> None:
    good = trained("toy", 0.25, [4.0, 2.0, 1.0])
    page_file = tmp_path / "p.html"
    assert called("page", "-o", str(page_file)).returncode == 0
    text = page_file.read_text()
    row = text[text.index(f'href="#{good.id}"'):].partition("</tr>")[0]
    assert re.search(r'<td data-head="state" class="good">completed</td>', row)
    # Twenty means at most, from the greatest at the top to the least at the bottom.
    assert re.search(r'<td data-head="curve">.*<path d="M0.0 1.0L[0-9. L]*100.0 19.0"/>', row)
    assert re.search(r'<rect class="part" width="\d+" height="10"/></svg>\d+ %</td>', text)
    assert not re.search(r"<th[^>]*></th>", text.partition("<h2>Runs</h2>")[2].partition("<h2")[0])


def test_what_a_script_prints_is_drawn(home) -> None:
    with Written("prints") as run:
        for step in range(5):
            run.tell(0, "metric", t=step, step=step, loss=4.0 - step)
    said = " ".join(Read(formats.html("a run", page.of_run(run.run), "now")).said)
    assert "logged or printed: loss" in said


def test_what_is_there_already_is_replaced_only_by_its_like(home, tmp_path) -> None:
    run = trained("toy", 0.25, [4.0, 2.0, 1.0])
    own = tmp_path / "train.py"
    own.write_text("mine")
    for words in (["page"], ["report", run.id], ["export", run.id, "--to", "csv"]):
        done = called(*words, "--out", str(own))
        assert done.returncode == 2
        assert f"{own} is there, and is not such a file: name another" in done.stderr
        assert own.read_text() == "mine"
        for _ in range(2):  # again
            assert called(*words, "--out", str(tmp_path / words[0])).returncode == 0
    own.write_text("")
    assert called("page", "--out", str(own)).returncode == 0


def test_one_file_holds_all_and_leads_nowhere_else(home, tmp_path) -> None:
    run = trained("toy", 0.25, [4.0, 2.0, 1.0])
    with Written("broken") as broken:
        pass
    (broken.path / "spec.toml").write_text("no = [")
    done = called("page", "-o", str(tmp_path / "p.html"))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'p.html'}\n"), done.stderr
    assert (tmp_path / "p.html").stat().st_mode & 0o777 == 0o600
    text = (tmp_path / "p.html").read_text()
    links = {value for name, value in Read(text).attributes if name == "href"}
    assert links == {f"#{run.id}", f"#{broken.run.id}"}
    assert "http-equiv=\"refresh\"" not in text
    nowhere = called("page", "-o", "/proc/no/p.html")
    assert nowhere.returncode == 2
    assert "/proc/no/p.html: can't be written" in nowhere.stderr
