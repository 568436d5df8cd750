"""gpu-engine follow, and what else the wire has given to people: a run is followed from where a
reader got to, and a preset comes on standard input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from gpu_engine.places.verbs import launch
from gpu_engine.runs import disk_room
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict

from ..command_line import called
from ..conftest import over, wait_for
from .run.kit import make_hosts

SLOW = {"task": {"command": [sys.executable, "-u", "-c",
                             "import time\nfor i in range(10 ** 6): print(i); time.sleep(0.02)"]},
        "devices": {"ids": ["cpu:0"]}}


def program(*words: str, **more) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "gpu_engine", *words], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)


@pytest.mark.parametrize("hosts", [None, ["a:cpu:0"]], ids=["here", "on a host"])
def test_a_reader_that_is_killed_goes_on_where_it_was(home, hosts):
    make_hosts(home, "a")
    run = launch(from_dict(SLOW | {"devices": {"hosts": hosts}} if hosts else SLOW))
    log = ""
    with program("follow", run.id, "--json") as reader:
        while log.count("\n") < 5:
            line = json.loads(reader.stdout.readline())
            if line.get("name") == "ranks/00000.log":
                assert line["offset"] == len(log)
                log += line["text"]
        reader.kill()
    with program("follow", run.id, "--json", "--rank", "0", "--at",
                 f"ranks/00000.log:{len(log)}") as reader:
        while log.count("\n") < 20:
            line = json.loads(reader.stdout.readline())
            if line.get("name") == "ranks/00000.log":
                assert line["offset"] == len(log)
                log += line["text"]
        run.stop(now=True)
        lines = [json.loads(line) for line in reader.stdout]
    log += "".join(line["text"] for line in lines if line.get("name") == "ranks/00000.log")
    assert (lines[-1]["kind"], lines[-1]["state"], reader.returncode) == ("ended", "stopped", 130)
    assert run.log(0).read_text() == log
    over(run)


def test_ctrl_c_ends_the_following_and_not_the_run(home):
    run = launch(from_dict(SLOW))
    with program("follow", run.id) as reader:
        while reader.stdout.readline() != "3\n":
            continue
        reader.send_signal(signal.SIGINT)
        reader.stdout.read()
    assert reader.returncode == 130
    assert run.state().live
    run.stop(now=True)
    over(run)


def test_a_preset_comes_on_standard_input_and_what_can_not_start_now_is_refused(
        home, monkeypatch):
    with program("run", "-", "--detach", "--json", stdin=subprocess.PIPE) as starts:
        said, _ = starts.communicate(json.dumps(SLOW))
    run = Run(home / "runs" / json.loads(said)["id"])
    wait_for(lambda: run.state().state == "running")
    run.stop(now=True)
    over(run)
    monkeypatch.setattr(disk_room, "LEAST", 1 << 60)
    planned = ("plan", "--devices", "cpu:0", "--json", "--", "true")
    assert called(*planned).returncode == 0
    refused = called("plan", "--now", *planned[1:])
    assert "no space left" in json.loads(refused.stdout)["errors"][0]["why"]
    with program("plan", "-", stdin=subprocess.PIPE) as refuses:
        assert "no preset as JSON: Expected `object`, got `array`" in refuses.communicate("[]")[0]
    for words, why in ((("follow", run.id, "--json", "--at", "x"), "expected FILE:BYTE"),
                       (("follow", run.id, "--json", "--at", "ranks/00000.log:-1"), "FILE:BYTE"),
                       (("follow", run.id, "--json", "--at", "spec.toml:1"), "is none of the"),
                       (("follow", run.id, "--at", "x:1"), "go with --json"),
                       (("devices", "--watch", "1"), "--watch goes with --json"),
                       (("plan", "default", "--now", "--repeat", "2"), "--now is for one run")):
        assert why in called(*words).stderr
