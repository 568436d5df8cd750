"""`gpu-engine presets`: what it lists."""

import json
import os

from gpu_engine.spec import presets
from gpu_engine.spec.read import from_dict

from ..command_line import called


def test_it_says_what_ones_own_are_for_and_how_they_differ_from_those_that_they_hide():
    presets.save("ddp", presets.load("ddp").spec, "two cards")
    rows = {row["name"]: row for row in json.loads(called("presets", "--json").stdout)}
    assert (rows["ddp"]["description"], rows["ddp"]["changes"]) == ("two cards", [])
    assert rows["single"]["description"]  # from the comment in its file
    assert rows["single"]["changes"] is None
    presets.save("ddp", from_dict({"batch": {"size": 7}}))
    listed = called("presets").stdout
    assert "ddp.toml  (hides the shipped one)" in listed
    assert "two cards" in listed
    assert "batch.size: 64 → 7" in listed


def test_broken_ones_are_listed_and_a_fifo_is_not_waited_for():
    folder = presets.own_folder()
    folder.mkdir(parents=True)
    (folder / "bad.toml").write_text("[")
    os.mkfifo(folder / "pipe.toml")
    listed = called("presets")
    assert listed.returncode == 0
    assert "it is a FIFO, not a file" in listed.stdout
