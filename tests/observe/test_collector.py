"""The garbage collector of an observed script, before and after it imports torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_engine

from . import kit

HOOK = Path(gpu_engine.__file__).parent / "observe" / "hook"


def run(folder: Path, script: str, torch: str = "") -> str:
    """What `script` prints below the hook, where torch is a module with this text."""
    (folder / "torch.py").write_text(torch or "import gc\nassert not gc.isenabled()\n")
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(HOOK), "GPU_PANEL_RUN": str(folder),
             "GPU_PANEL_RANK": "0"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_is_set_aside_and_what_comes_later_is_collected(tmp_path: Path) -> None:
    assert run(tmp_path, """
import gc, weakref
import torch

class Ring:
    def __init__(self):
        self.me = self

ring = weakref.ref(Ring())
gc.collect()
print(gc.isenabled(), gc.get_freeze_count() > 1000, ring())
""") == "True True None\n"


@pytest.mark.parametrize(("own", "enabled"), [
    ("gc.disable()", False),
    ("gc.callbacks.append(lambda *told: None)", True),
    ("gc.set_debug(gc.DEBUG_UNCOLLECTABLE)", True)])
def test_a_script_that_uses_the_collector_keeps_it_as_it_is(
        tmp_path: Path, own: str, enabled: bool) -> None:
    assert run(tmp_path, f"""
import gc
{own}
before = gc.get_freeze_count()
import torch
print(gc.isenabled(), gc.get_freeze_count() - before)
""", torch=f"import gc\nassert gc.isenabled() is {enabled}\n") == f"{enabled} 0\n"


def test_what_a_script_has_frozen_itself_stays_what_is_frozen(tmp_path: Path) -> None:
    assert run(tmp_path, """
import gc
gc.freeze()
before = gc.get_freeze_count()
import torch
print(gc.get_freeze_count() <= before)
""", torch="import gc\nassert gc.isenabled()\n") == "True\n"


@pytest.mark.parametrize("opened", ["open('kept', 'w')", "gzip.open('kept', 'wt')",
                                    "codecs.open('kept', 'w', 'utf-8')"])
def test_a_file_that_waits_for_the_collector_is_written_at_the_end(
        tmp_path: Path, opened: str) -> None:
    run(tmp_path, f"""
import codecs, gzip

class Log:
    def __init__(self):
        self.me, self.file = self, {opened}

log = Log()
import torch
log.file.write("a line")
""")
    kept = (tmp_path / "kept").read_bytes()
    if opened.startswith("gzip"):
        import gzip
        kept = gzip.decompress(kept)
    assert kept == b"a line"


def test_a_file_that_is_read_or_closed_hinders_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, """
import gc
closed = open("kept", "w")
closed.close()
read = open("kept")
import torch
print(gc.get_freeze_count() > 1000)
""") == "True\n"


def test_an_error_in_torch_is_the_scripts_and_leaves_the_collector_on(tmp_path: Path) -> None:
    assert run(tmp_path, """
import gc
before = gc.get_freeze_count()
try:
    import torch
except ZeroDivisionError as err:
    print(err, gc.isenabled(), gc.get_freeze_count() - before)
""", torch="1 / 0") == "division by zero True 0\n"


def test_with_the_real_torch(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import gc, torch\nprint(gc.isenabled(), gc.get_freeze_count())\n")
    run, state = kit.engine_run("--devices", "cpu:0", "--", sys.executable, str(script))
    assert state["state"] == "completed"
    enabled, frozen = run.log(0).read_text().split()
    assert enabled == "True"
    assert int(frozen) > 100_000
