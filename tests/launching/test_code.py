"""The code that a run was started with: kept, compared, brought back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.code import snapshot, store
from gpu_engine.code.difference import between
from gpu_engine.places.verbs import launch
from gpu_engine.runs import environment
from gpu_engine.spec.read import from_dict

from ..command_line import called
from ..conftest import over, slots


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository that a person trains in."""
    made = tmp_path / "project"
    made.mkdir()
    subprocess.run(["git", "init", "-q", made], check=True)
    monkeypatch.chdir(made)
    return made


def ran(text: str) -> str:
    """The id of a run of train.py with this text, which has ended."""
    Path("train.py").write_text(text)
    run = launch(from_dict({"task": {"command": [sys.executable, "train.py"]},
                            "devices": {"ids": ["cpu:0"]}}), inventory=slots(1))
    over(run)
    return run.id


def test_what_is_tried_is_compared_and_what_is_kept_comes_back(folder: Path) -> None:
    one, two = ran("LR = 1\n"), ran("LR = 2\n")
    Path("train.py").write_text("LR = 3\n")
    Path("weights").write_bytes(b"\0" * 9)
    assert "-LR = 1\n+LR = 2\n" in called("code", one, "--to", two).stdout
    out = called("code", one)
    assert "-LR = 1\n+LR = 3\n" in out.stdout
    assert out.stderr == "weights differs, and is no text\n"
    assert subprocess.run(["git", "apply", "-R"], input=out.stdout, text=True).returncode == 0
    assert Path("train.py").read_text() == "LR = 1\n"
    Path("weights").unlink()
    out = called("code", one)
    assert (out.stdout, out.stderr) == ("", "no file differs\n")
    folder.rename(folder.with_name("moved"))
    assert f"{folder} can't be read: " in called("code", one).stderr


def test_after_a_day_only_the_code_of_what_is_kept_is_there(folder: Path) -> None:
    one, two = ran("LR = 1\n"), ran("LR = 2\n")
    assert called("note", one, "--keep").returncode == 0
    for listed in store.root().glob("*.list"):
        os.utime(listed, (0, 0))
    ran("LR = 3\n")
    assert "-LR = 1\n+LR = 3\n" in called("code", one).stdout
    out = called("code", two)
    assert (out.returncode, "not kept any more" in out.stderr) == (2, True)


def test_much_code_is_not_kept_for_a_day(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_ROOM", 20)
    one, two, three = ran("LR = 1\n"), ran("LR = 2\n"), ran("LR = 3\n")
    assert "not kept any more" in called("code", one).stderr
    assert [called("code", each).returncode for each in (two, three)] == [0, 0]


def test_a_run_without_code_and_one_of_somebody_else_say_so(folder: Path) -> None:
    one = ran("LR = 1\n")
    path = store.root().parent / "runs" / one
    path.chmod(0o777)
    out = called("code", one)
    assert (out.returncode, "can write" in out.stderr) == (2, True)
    path.chmod(0o700)
    for code, says in ((None, "no code of run"), ("../" * 9, "is no name of code")):
        environment.write(path, environment.Environment(code=code, root="/"))
        out = called("code", one)
        assert (out.returncode, says in out.stderr) == (2, True), out.stderr


def test_any_text_file_passes_through_git_apply_as_it_is(
        folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # a person's own habits change nothing
    (tmp_path / "git").mkdir()
    (tmp_path / "git" / "attributes").write_text("* -diff\n")
    (tmp_path / "git" / "config").write_text(
        "[diff]\nmnemonicPrefix = true\nexternal = false\n[color]\nui = always\n")
    odd = {"crlf.py": (b"a\r\nb\f\n", b"a\r\nc\x1b[31m"), "latin.txt": (b"\xe4\n", b"\xf6\n"),
           "gone/deep.py": (b"x\n", None), "gone": (None, b"now a file\n"), "empty": (None, b""),
           "d\xe9 \"q\".py": (b"1\n", b"2\n"), "run.sh": (b"x\n", b"x\n"),
           "link": (None, b"run.sh"), "-R": (b"1\n", b"2\n")}
    taken = []
    for side in (0, 1):
        for path in [p for p in folder.iterdir() if p.name != ".git"]:
            subprocess.run(["rm", "-r", path], check=True)
        for name, data in odd.items():
            if data[side] is not None:
                Path(name).parent.mkdir(exist_ok=True)
                if name == "link":
                    Path(name).symlink_to(os.fsdecode(data[side]))
                else:
                    Path(name).write_bytes(data[side])
        Path("run.sh").chmod(0o755 if side else 0o644)
        taken.append(snapshot.take(folder))
    patch, left = between(*taken)
    assert left == []
    for words, side in ((["-R"], 0), ([], 1)):
        subprocess.run(["git", "apply", *words], input=patch, check=True)
        assert snapshot.take(folder).name == taken[side].name


def test_what_is_too_large_is_said_in_a_line(folder: Path) -> None:
    Path("a.py").write_text("1\n")
    before = snapshot.take(folder)
    Path("a.py").write_text("2\n")
    Path("rows.csv").write_bytes(b"1,2\n" * (1 << 18))
    patch, left = between(before, snapshot.take(folder))
    assert (b"a.py" in patch, b"rows" in patch) == (True, False)
    assert left == ["rows.csv differs, and is too large: 1.0 MiB"]
