"""Logs that are cut: what a rank writes meanwhile is kept."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_engine.supervisor import logs


def test_words_that_come_while_a_log_is_copied_are_kept(tmp_path: Path, monkeypatch):
    path = tmp_path / "00000.log"
    path.write_bytes(b"a line before\n" * 100)
    real, said = os.pread, 0

    def meanwhile(*args):
        nonlocal said
        done = real(*args)
        if said < 5:
            with path.open("a") as rank:
                rank.write(f"{said} more\n")
            said += 1
        return done

    monkeypatch.setattr(os, "pread", meanwhile)
    assert logs.bound(path, 500)
    kept = logs.old(path).read_text()
    assert said
    assert kept.startswith("a line before\n")  # and no half line
    assert kept.endswith("a line before\n" + "".join(f"{n} more\n" for n in range(said)))
    assert path.read_text().startswith("--- the output before this is in 00000.log.1")
    assert not list(tmp_path.glob(".*"))
    end = logs.tail(path)  # a traceback may stand where it was cut
    assert end.endswith(path.read_text())
    assert kept[-100:] in end


def test_on_a_full_disk_a_log_is_cut_and_nothing_older_passes_for_its_beginning(
        tmp_path: Path, monkeypatch):
    path = tmp_path / "00000.log"
    path.write_bytes(b"line\n" * 1000)
    logs.old(path).write_text("of long ago\n")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(logs, "_keep", full)
    assert logs.bound(path, 500)
    assert not logs.old(path).exists()
    assert logs.tail(path) == "--- the output before this could not be kept (run.log_mb) ---\n"
