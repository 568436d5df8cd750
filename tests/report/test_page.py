"""gpu-engine page: one file for a browser, which holds all and leads nowhere else."""

from __future__ import annotations

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
