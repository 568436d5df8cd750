"""Telling a person of a run when the endpoint, the command, the file or the sender fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

from gpu_engine.notify import config, journal
from gpu_engine.runs import folder as runs

from ..conftest import wait_for
from ..notify.endpoint import Endpoint, endpoint, private
from .kit import UNTIL_LET_GO, Box, case

SECRET = "hushhush-b7d1"


def tell(**entries: Endpoint | list[str]) -> None:
    """Write notify.toml: an endpoint's address with a secret in it, or a command, by name."""
    text = ""
    for name, given in entries.items():
        where = f"command = {json.dumps(given)}\nkind = 'command'" if isinstance(given, list) \
            else f"url = '{given.url}/{SECRET}'\ntoken = '{SECRET}'\nkind = 'json'"
        text += f"[[to]]\nname = '{name}'\n{where}\n" \
            "on = ['finished', 'failed', 'stopped', 'lost']\n"
    private(config.path(), text)


def sender(run: runs.Run) -> int | None:
    """The pid of the process that tells of a run."""
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0") if path.name.isdigit() else ()
            if b"gpu_engine.notify" in words and os.fsencode(run.path) in words:
                return int(path.name)
    return None


def told(run: runs.Run) -> list[tuple[str, str, str]]:
    """What notify.log says, once the sender has ended: (state, entry, result)."""
    wait_for(lambda: sender(run) is None)
    return [(key.split()[0], to, result) for key, to, result in journal.read(run.path)]


@case("SIGKILL to the process that tells of the run",
      "the run goes on and completes, nobody is told; a resume is told again")
def the_sender_is_killed(box: Box) -> None:
    with endpoint(200) as there:
        tell(phone=there)
        run = box.go("start()" + UNTIL_LET_GO, ranks=1)
        box.running(run)
        os.kill(wait_for(lambda: sender(run)), signal.SIGKILL)
        box.let_go(run)
        assert box.ended(run).state == "completed"
        assert (told(run), there.got) == ([], [])
        assert box.cli("resume", run.id, "--detach").returncode == 0
        assert box.ended(run).state == "completed"
        assert told(run) == [("completed", "phone", "sent")]
        assert there.got[0].json["attempt"] == 2


@case("SIGKILL to the supervisor of a run that somebody is to be told of",
      "the process that tells lives on and says that the run is lost")
def a_lost_run_is_told(box: Box) -> None:
    with endpoint(200) as there:
        tell(phone=there)
        run = box.go("start(); train()")
        state = box.running(run)
        os.kill(state.pid, signal.SIGKILL)
        wait_for(lambda: there.got)
        assert there.got[0].json["event"] == "lost"
        assert "its supervisor died" in there.got[0].json["cause"]
        assert told(run) == [("lost", "phone", "sent")]
