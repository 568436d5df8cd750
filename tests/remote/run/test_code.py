"""Code that is sent to hosts: what git does not ignore, whole, once, in its folder alone."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.cli import cli
from gpu_engine.code import listing as lists
from gpu_engine.code import snapshot, store
from gpu_engine.code.listing import BadList, Entry
from gpu_engine.code.snapshot import Snapshot, describe, take
from gpu_engine.common.errors import SpecError
from gpu_engine.places.verbs import launch, prepare, resume
from gpu_engine.remote.reach.call import Refused, ask
from gpu_engine.remote.reach.hosts import Host, find
from gpu_engine.remote.reach.protocol import CodeKept
from gpu_engine.remote.run import parts
from gpu_engine.remote.run.nodes import meet
from gpu_engine.remote.run.prepare import sent
from gpu_engine.runs import environment
from gpu_engine.spec.read import from_dict
from tests.command_line import called

from ...conftest import over
from .kit import make_hosts, there

ODD = ["plain.py", "with space.py", "new\nline.py", "'\"$(touch x)`;.sh", os.fsdecode(b"b\xffd.py"),
       "-rf", "deep/er/x.py"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a file that is tracked, some that are not, and one that is ignored."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    for name in ODD:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name!r}\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    os.symlink("./plain.py", folder / "link")  # noqa: PTH211 - a Path would drop the ./
    (folder / "data").symlink_to("/nowhere/at all")
    (folder / "gone.py").write_text("")
    (folder / ".gitignore").write_text("*.pt\n")
    (folder / "weights.pt").write_bytes(bytes(1000))
    git(folder, "add", "plain.py", "gone.py")
    (folder / "gone.py").unlink()
    monkeypatch.chdir(folder)
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder,
                   check=True, capture_output=True)


def tree(folder: Path) -> dict[str, object]:
    """Everything below a folder: content and whether it is a program, or where a link points."""
    return {str(p.relative_to(folder)): os.readlink(p) if p.is_symlink()  # noqa: PTH115
            else (p.read_bytes(), os.access(p, os.X_OK))
            for p in folder.rglob("*") if p.is_symlink() or p.is_file()}


def box(home: Path) -> Host:
    return Host("box", via=("env", f"GPU_PANEL_HOME={home}", "sh", "-c", 'exec "$@"', "login"),
                python=sys.executable)


def bring(host: Host, taken: Snapshot) -> Path:
    """Send the code, where it is not there. The folder that holds it there."""
    state = meet(host, (), code=taken.name).welcome.code
    return Path(state.path if state.there else sent([host], taken)[host.name][0])


def send(listed: bytes, contents: bytes, name: str | None = None) -> None:
    """Send what may be no code."""
    ask(Host("local"), CodeKept, "receive", name or lists.name_of(listed), str(len(listed)),
        content=listed + contents)


def test_what_git_does_not_ignore_arrives_as_it_is(project, home, tmp_path):
    folder = bring(box(tmp_path / "there"), take(project))
    expected = tree(project)
    expected = {n: v for n, v in expected.items() if not n.startswith(".git/")}
    del expected["weights.pt"]
    assert tree(folder) == expected
    assert set(ODD) | {"run.sh", "link", "data", ".gitignore"} == set(expected)
    assert folder.parent == tmp_path / "there/code"
    assert folder.name == take(project).name[:12]
    assert [p.name for p in folder.parent.iterdir() if p.name.startswith(".")] == []


def test_the_same_code_is_sent_once_and_an_edit_makes_another_folder(project, home, tmp_path):
    host = box(tmp_path / "there")
    (project / "large.bin").write_bytes(os.urandom(3 << 20))
    first = bring(host, take(project))
    before, made = tree(first), first.stat().st_ino
    assert bring(host, take(project)) == first
    assert first.stat().st_ino == made
    (project / "plain.py").write_text("edited\n")
    second = bring(host, take(project))
    assert tree(first) == before  # an edit changes nothing there
    assert (second / "plain.py").read_text() == "edited\n"
    (project / "run.sh").chmod(0o644)
    third = bring(host, take(project))
    assert (third != second, os.access(third / "run.sh", os.X_OK)) == (True, False)
    (third / "plain.py").write_text("by a run\n")
    again = bring(host, take(project))  # that folder is not this code any more
    assert (again.name, (again / "plain.py").read_text()) == (f"{third.name}-2", "edited\n")


def test_a_submodule_and_a_part_of_a_repository(project, home, tmp_path):
    inner = project / "deep/inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "mine.py").write_text("1\n")
    (inner / ".gitignore").write_text("secret\n")
    (inner / "secret").write_text("2\n")
    names = [os.fsdecode(e.path) for e in take(project / "deep").entries]
    assert names == ["er/x.py", "inner/.gitignore", "inner/mine.py"]


def test_what_cannot_be_sent_is_named(project, home, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot.listing, "LARGEST", 5000)
    (project / "train.csv").write_bytes(bytes(4000))
    (project / "other.csv").write_bytes(bytes(3000))
    with pytest.raises(SpecError, match=r"largest: train.csv \(3.9 KiB\), other.csv"):
        take(project)
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(SpecError, match=r"not a git repository.*run.sync=none"):
        take(outside)
    monkeypatch.setenv("PATH", str(outside))
    with pytest.raises(SpecError, match="git, which says what is code there, can't be started"):
        take(project)


def test_a_transfer_that_is_cut_or_changed_leaves_nothing_under_the_final_name(project, home):
    taken = take(project)
    whole = b"".join(taken.contents)
    for contents in (whole[:-1], whole[:-1] + b"x"):
        with pytest.raises(Refused, match="changed on its way"):
            send(taken.listed, contents)
    with pytest.raises(Refused, match="changed on its way"):
        send(taken.listed, whole, "a" * 64)
    assert list(store.root().iterdir()) == []
    send(taken.listed, whole)
    assert (store.root() / taken.name[:12]).is_dir()


@pytest.mark.parametrize("path", [b"../x", b"/etc/x", b"a//b", b"a/./b", b"a/../../b", b"a/b", b""])
def test_no_path_leaves_the_folder(path, home):
    """`a` is a link here, so that a/b would be written elsewhere."""
    sha = hashlib.sha256(b"/tmp").hexdigest()
    with pytest.raises(Refused, match="the list of the code can't be used"):
        send(lists.packed([Entry(b"a", "link", sha, 4), Entry(path, "file", sha, 4)]),
             b"/tmp" * 2)


@given(st.lists(st.binary(min_size=1, max_size=6).filter(
    lambda p: not set(p) & set(b"/\0") and p not in (b".", b"..")), unique=True, max_size=6))
def test_a_list_reads_back_and_names_its_files(paths):
    entries = tuple(Entry(p, "file", hashlib.sha256(p).hexdigest(), len(p)) for p in sorted(paths))
    listed = lists.packed(reversed(entries))
    assert lists.unpacked(listed) == entries
    if listed:
        with pytest.raises(BadList):
            lists.unpacked(listed[:-1])


def test_old_code_goes_unless_a_run_uses_it_or_has_written_there(project, home):
    made = []
    for n in range(4):
        (project / "plain.py").write_text(f"{n}\n")
        made.append(bring(Host("local"), take(project)))
    unused, written = made[:2]
    (unused / "__pycache__").mkdir()
    (unused / "__pycache__/plain.pyc").write_text("")
    (written / "result.txt").write_text("mine")
    for place in (unused, written):
        old = time.time() - store.KEPT - 60
        os.utime(place.with_name(f"{place.name}.list"), (old, old))
    (project / "plain.py").write_text("new\n")
    bring(Host("local"), take(project))
    assert [p.exists() for p in made] == [False, True, True, True]
    assert not unused.with_name(f"{unused.name}.list").exists()


def test_code_that_is_asked_for_again_is_kept_on_and_what_a_run_changed_stays(project, home):
    taken = take(project)
    place = store.save(taken.listed, taken.contents)
    listed = place.with_name(f"{place.name}.list")
    for changed in (False, True):
        os.utime(listed, (0, 0))
        if changed:
            (place / "plain.py").write_text("a run's own\n")
        else:
            assert store.save(taken.listed, taken.contents) == place
        store._remove_old()
        assert place.exists()
    other = store.save(taken.listed, taken.contents)
    assert other != place
    assert (other / "plain.py").read_bytes() == (project / "plain.py").read_bytes()


def test_what_is_being_sent_is_left_alone_for_a_day(home):
    sending = store.root() / f"{store._SENDING}0"
    sending.mkdir(parents=True)
    store._remove_old()
    assert sending.exists()
    os.utime(sending, (0, 0))
    store._remove_old()
    assert not sending.exists()


COMMAND = [sys.executable, "-c", "import os, plain; print('in', os.getcwd(), plain.WHAT)"]


def test_a_run_starts_in_the_code_and_is_resumed_in_it(project, home, tmp_path):
    """An edit afterwards changes nothing; the code of a run that is still there is kept."""
    make_hosts(home, "a", "b")
    (project / "plain.py").write_text("WHAT = 'first'\n")
    spec = from_dict({"task": {"command": COMMAND}, "devices": {"hosts": ["a:cpu:0"]},
                      "run": {"sync": "send"}})
    prepared = prepare(spec)
    assert prepared.plan.code == describe(project) == take(project).about()
    run = launch(spec)
    (project / "plain.py").write_text("WHAT = 'second'\n")
    assert over(run).state == "completed", run.state()
    place = tmp_path / "a/code" / code_name(run)
    assert f"in {place} first\n" in (there(run, "a") / "ranks/00000.log").read_text()
    old = time.time() - store.KEPT - 60
    os.utime(place.with_name(f"{place.name}.list"), (old, old))
    prepare(spec)  # sends the second
    assert place.is_dir()
    again = resume(run)
    assert over(run).state == "completed"
    assert again.plan.code == prepared.plan.code
    assert (there(run, "a") / "ranks/00000.log").read_text().count(f"in {place} first\n") == 2
    with pytest.raises(SpecError, match="has changed since the run was started"):
        resume(run, ["devices.hosts=a:cpu:0,b:cpu:1"])
    shutil.rmtree(project / ".git")


def test_nothing_is_claimed_of_files_that_a_host_had_already(project, home):
    make_hosts(home, "a")
    git(project, "commit", "-qm", "first")
    for sync, compared in (("none", False), ("send", True)):
        run = launch(from_dict({"task": {"command": ["true"]}, "run": {"sync": sync},
                                "devices": {"hosts": ["a:cpu:0"]}}))
        assert over(run).state == "completed", run.state()
        done = called("code", run.id)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.splitlines()[0] == "no file differs"
        assert ("had the files that a had already" in done.stderr) != compared
        assert (environment.read(run.path).changed_files is not None) == compared


def test_a_preview_sends_nothing_and_says_what_would_be_sent(project, home, tmp_path, capsys):
    """One host has nothing yet, the other an earlier state of the code."""
    make_hosts(home, "a", "b")
    (project / "task.py").write_text("class Mine:\n    pass\n")
    old = bring(find("b"), take(project))
    (project / "task.py").write_text("class Mine:\n    batch = 1\n")
    before = {host: tree(tmp_path / host / "code") for host in "ab" if (tmp_path / host).exists()}
    listed = old.with_name(f"{old.name}.list")
    times = listed.stat().st_mtime_ns
    words = ["plan", "--set", "task.use=task.py:Mine", "--set", "run.sync=send", "--set",
             "devices.hosts=a:cpu:0,b:cpu:0"]
    cli.main(words, standalone_mode=False)
    said = capsys.readouterr().out
    whole, name = take(project).about(), take(project).name[:12]
    assert whole.sentence() in said
    assert (f"a: would be sent {whole.files} files, {whole.bytes} B, into "
            f"{tmp_path}/a/code/{name}\n") in said
    assert (f"b: would be sent {whole.files} files, {whole.bytes} B, into "
            f"{tmp_path}/b/code/{name}\n") in said
    assert {host: tree(tmp_path / host / "code") for host in before} == before
    assert not (tmp_path / "a/code").exists()
    assert listed.stat().st_mtime_ns == times

    there = bring(find("a"), take(project))
    cli.main(words, standalone_mode=False)
    assert f"a: has it, in {there}\n" in capsys.readouterr().out
    with pytest.raises(SpecError, match=r"nowhere\.py"):
        cli.main([*words, "--set", "task.use=nowhere.py:Mine"], standalone_mode=False)
    assert not list(tmp_path.glob("[ab]/parts/*"))


def code_name(run) -> str:
    part, = parts.read(run.path)
    return part.code[:12]


def test_the_code_of_a_copy_or_a_part_of_it_is_that_of_the_repository(home, tmp_path):
    """Though the copy is none: what waits is sent from there."""
    repository = tmp_path / "repository"
    (repository / "part").mkdir(parents=True)
    for name in ("a.py", "part/b.py"):
        (repository / name).write_text(name)
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    taken = take(repository)
    copy = store.save(taken.listed, taken.contents)
    for inner in (".", "part"):
        found = store.of_folder(copy / inner)
        assert found is not None
        assert (found.name, found.contents) == (take(repository / inner).name,
                                                take(repository / inner).contents)
    assert store.of_folder(repository) is None
