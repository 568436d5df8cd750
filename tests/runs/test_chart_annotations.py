"""A person's notes at moments of a run: what is kept, and what can be in the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.runs.chart_annotations import FILE, LONGEST, Mark, read, write


def test_a_later_note_replaces_that_of_the_same_moment(tmp_path: Path) -> None:
    write(tmp_path, Mark("first", step=3))
    write(tmp_path, Mark("second", step=3, t=5.0))  # another moment
    write(tmp_path, Mark("third", step=3))
    assert read(tmp_path) == [Mark("third", step=3), Mark("second", step=3, t=5.0)]
    write(tmp_path, Mark("", step=3))
    assert read(tmp_path) == [Mark("second", step=3, t=5.0)]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_whatever_is_in_the_file_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(
        b'{"text": "kept", "step": 1}\n[]\n\xff\n{"text": 3}\n{"text": "nowhere"}\n'
        b'{"text": "x", "step": -4}\n{"text": "x", "t": NaN}\n{"text": "to')
    assert read(tmp_path) == [Mark("kept", step=1)]
    write(tmp_path, Mark("after a torn line", step=2))
    assert read(tmp_path) == [Mark("kept", step=1), Mark("after a torn line", step=2)]
    other = tmp_path / "other"
    other.mkdir()
    os.mkfifo(other / FILE)  # would wait for ever for somebody who writes
    assert read(other) == []
    assert read(tmp_path / "gone") == []


def test_what_is_no_note_is_refused(tmp_path: Path) -> None:
    for text in ("x" * (LONGEST + 1), "two\nlines"):
        with pytest.raises(UserError, match="one line of at most 200"):
            write(tmp_path, Mark(text, step=1))
    with pytest.raises(UserError, match="can't be kept"):
        write(tmp_path / "gone", Mark("x", step=1))
