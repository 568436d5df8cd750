"""Names, tags and notes that a person writes on a run, and the files that hold them."""

import json
from dataclasses import replace

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.runs import notes
from gpu_engine.runs.notes import Notes

from .. import powers
from ..command_line import called
from ..odd_runs import ended


def test_what_is_written_on_a_run_is_found_by_every_command():
    run, other = ended(), ended(age=5)
    before = {path.name for path in run.path.iterdir()}
    wrote = called("note", run.id, "diverges after 2k", "--tag", "lr,base", "--name", "best one")
    assert wrote.returncode == 0, wrote.stderr
    assert {path.name for path in run.path.iterdir()} == before | {"notes.json"}
    assert (run.path / "notes.json").stat().st_mode & 0o777 == 0o600
    known = {"name": "best one", "tags": ["lr", "base"], "note": "diverges after 2k",
             "verdict": None}
    assert json.loads((run.path / "notes.json").read_text()) == known
    assert json.loads(called("note", run.id, "--json").stdout) == {
        "id": run.id, **known}
    assert [r["notes"] for r in json.loads(called("runs", "--json").stdout)] \
        == [known, {"name": None, "tags": [], "note": "", "verdict": None}]
    _, first, second = called("runs").stdout.splitlines()
    assert "best one" in first
    assert "[lr, base]" in first
    assert "toy" in second
    assert "tags: lr, base\nnote: diverges after 2k\n" in called("show", run.id).stdout
    assert called("runs", "-f", "tag:lr").stdout.splitlines()[1].split()[0] == run.id
    assert called("runs", "-f", "-tag:ba state:comp").stdout.splitlines()[1].split()[0] == other.id
    assert called("runs", "-f", "tag:lr tag:x").stderr == "no run matches\n"
    assert "'sate' is no field; there are id, name" in called("runs", "-f", "sate:x").stderr

    called("note", run.id, "--untag", "lr", "--name", "")
    assert notes.read(run.path) == Notes(None, ("base",), "diverges after 2k")
    called("note", run.id, "")
    assert notes.read(run.path) == Notes(None, ("base",))
    assert called("note", other.id).stdout == "nothing is written on it\n"


def test_a_verdict_stands_until_another_or_none_is_given():
    run, other = ended(), ended(age=5)
    called("note", run.id, "the best so far", "--keep")
    called("note", other.id, "--discard")
    called("note", run.id, "--tag", "lr")
    assert notes.read(run.path) == Notes(None, ("lr",), "the best so far", "keep")
    kept, bad = called("runs").stdout.splitlines()[1:]
    assert ("keep" in kept, "discard" in bad) == (True, True)
    assert [line.split()[0] for line in called("runs", "-f", "-verdict:discard").stdout.splitlines()
            ] == ["id", run.id]
    assert "verdict: keep" in called("note", run.id, "--undecided", "--keep").stdout
    called("note", run.id, "--undecided")
    assert notes.read(run.path).verdict is None
    assert "verdict" not in called("runs", "-f", "tag:lr").stdout


@pytest.mark.parametrize(("words", "says"), [
    (("--tag", "a!"), "'a!' can't be a tag: use at most 32 letters, digits and "
     ". : / + = - _ and begin with a letter or digit\n"),
    (("--tag", "x" * 33), "can't be a tag"),
    (("--tag", ",".join(f"t{i}" for i in range(17))), "at most 16 tags; these would be 17"),
    (("--untag", "lr"), "'lr' is no tag of the run, which has none\n"),
    (("--tag", "a,b", "--untag", "lr"), "'lr' is no tag of the run; it has a, b\n"),
    (("--name", "x" * 65), "a name has at most 64 characters; this has 65"),
    (("--name", "a\x1b[31mb"), "a name is one line of printable characters"),
    (("x" * 4001,), "a note has at most 4,000 characters; this has 4,001"),
])
def test_what_can_not_be_kept_is_said_and_nothing_is_lost(words, says):
    run = ended()
    notes.change(run.path, lambda now: replace(now, note="kept"))
    out = called("note", run.id, *words)
    assert out.returncode == 2
    assert says in out.stderr
    assert notes.read(run.path) == Notes(note="kept")


def test_a_folder_that_can_not_be_written_or_read_says_so():
    run = ended()
    notes.change(run.path, lambda now: replace(now, name="mine"))
    with powers.root_powers_dropped():
        run.path.chmod(0o500)
        with pytest.raises(UserError, match="can't be kept: permission denied"):
            notes.change(run.path, lambda now: replace(now, name="other"))
        run.path.chmod(0o700)
        (run.path / "notes.json").chmod(0)
        with pytest.raises(UserError, match=r"notes\.json can't be read: permission denied"):
            notes.change(run.path, lambda now: replace(now, name="other"))
        assert run.odd() == ["notes.json can't be read: permission denied"]
        assert notes.read(run.path) == Notes()
        (run.path / "notes.json").chmod(0o600)
    assert notes.read(run.path).name == "mine"


@pytest.mark.parametrize("text", ["[]", "{", '{"tags": "lr"}', '{"name": 7, "note": ["x"]}'])
def test_a_damaged_file_counts_as_nothing_and_can_be_replaced(text):
    run = ended()
    path = run.path / "notes.json"
    path.write_text(json.dumps({"name": "x" * 99, "tags": ["a!", *map(str, range(99))],
                                "note": "x" * 9999}))
    long = notes.read(run.path)
    assert (len(long.name), len(long.tags), len(long.note)) == (64, 16, 4000)
    assert notes.change(run.path, lambda now: now) == long
    path.write_text(text)
    assert notes.read(run.path) == Notes()
    notes.tag(run.path, ["lr"])
    assert notes.read(run.path).tags == ("lr",)
