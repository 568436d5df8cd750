"""Ranks do without torch._dynamo until something compiles, and then it is the real one."""

import json
import subprocess
import sys
from pathlib import Path


def test_the_stand_in_changes_nothing_but_when_it_is_imported():
    """Losses, what was compiled, and where the compiled code is broken up are what they are
    without the stand-in. Importing a submodule and reading an attribute both bring the real one."""
    out = subprocess.run([sys.executable, Path(__file__).with_name("compiling.py")],
                         capture_output=True, text=True, timeout=600)
    assert out.returncode == 0, out.stderr
    bare, submodule, attribute = [json.loads(line) for line in out.stdout.splitlines()]
    assert (bare.pop("way"), bare.pop("before")) == ("bare", True)
    assert bare["stats"]["unique_graphs"] > 0
    assert submodule == {**bare, "way": "submodule", "before": False}
    assert attribute == {"way": "attribute", "before": False}
