"""gpu-engine skill: a page for agents, each of whose commands is typed here as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.runs import folder

from ..command_line import called
from ..conftest import over

TRAIN = """import sys, time
print("val_bpb: 0.9979", flush=True)
if "--wait" in sys.argv:
    time.sleep(600)
"""


@pytest.mark.timeout(300)
def test_every_command_of_the_skill_does_what_it_says(home, tmp_path, monkeypatch):
    text = called("skill").stdout
    assert len(text.splitlines()) <= 80
    front = text.split("---\n")[1]
    assert re.fullmatch(r"name: gpu-engine\ndescription: [^\n]{1,1024}\n", front)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "train.py").write_text(TRAIN)
    for words in (("init", "-q"), ("add", "train.py"),
                  ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")):
        subprocess.run(["git", *words], check=True)
    live = called("run", "--detach", "--devices", "cpu:1", "--", "python", "train.py",
                  "--wait").stdout.strip()
    lines = re.findall(r"^ +(gpu-engine .+)$", text, re.MULTILINE)
    lines += re.findall(r"`(gpu-engine [^`]+)`", text)
    assert len(lines) >= 18
    run, told = "", {}
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for line in lines:
        typed = re.sub("RUN|BEST", live if " stop " in line else run, line)
        done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=False,
                              timeout=100, env={**os.environ, "PATH": path})
        assert done.returncode == 0, (typed, done)
        told[line] = json.loads(done.stdout) if "--json" in line.split(" -- ")[0] else done.stdout
        if " run " in line and not re.search("--grid|--repeat", line):
            run = told[line]["id"]
            over(folder.find(run))
            (project / "train.py").write_text(TRAIN + "# an idea\n")
    shown = next(told[line] for line in lines if " show " in line)
    assert shown["state"]["state"] == "completed"
    best = next(told[line] for line in lines if "--best" in line)
    assert [(row["id"], row["best"]) for row in best] == [
        (run, {"name": "val_bpb", "value": 0.9979})]
    assert next(told[line] for line in lines if " curve " in line)["least"] == 0.9979
    assert "+# an idea" in next(told[line] for line in lines if " code " in line)
    assert (project / "train.py").read_text() == TRAIN  # `git apply -R` has brought it back
    assert folder.find(live).state().state == "stopped"
