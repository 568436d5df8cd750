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
from ..notify.endpoint import Endpoint, drip, endpoint, hang, private, redirect
from .kit import Box, case, members

SECRET = "hushhush-b7d1"
HELD = "start()\nwhile not (run / 'go').exists(): time.sleep(0.02)\ntrain(5)"
"""Trains as soon as it is let go."""


def let_go(run: runs.Run) -> None:
    (run.path / "go").touch(0o600)


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


def leaks(run: runs.Run) -> list[str]:
    """Where the secret is to be seen: in argument lists, the ranks' environments, files."""
    found = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and SECRET.encode() in (path / "cmdline").read_bytes():
                found.append(f"{path}/cmdline")
    for pid in [*members(run), *filter(None, [sender(run), run.state().pid])]:
        with contextlib.suppress(OSError):
            if SECRET.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(f"/proc/{pid}/environ")
    return found + [str(p) for p in run.path.rglob("*")
                    if p.is_file() and SECRET.encode() in p.read_bytes()]


@case("A notification's endpoint that takes the message and never answers",
      "the run ends as without it; the secret is in no argument list, environment, log or folder")
def an_endpoint_hangs(box: Box) -> None:
    with endpoint(hang) as there:
        tell(phone=there)
        run = box.go(HELD, ranks=1)
        box.running(run)
        assert leaks(run) == []
        let_go(run)
        assert box.ended(run).state == "completed"
        wait_for(lambda: there.got)
        assert sender(run) is not None, "it waits, and the run has ended all the same"
        assert SECRET in there.got[0].path
        assert leaks(run) == []
    assert told(run) == [("completed", "phone", "connection refused, 3 times")]
    assert leaks(run) == []
    shown = box.cli("show", run.id).stdout
    assert "completed: phone was not notified: connection refused, 3 times" in shown
    assert SECRET not in box.cli("notify").stdout + shown


@case("Endpoints that answer 500, redirect to a local address, or drip an answer without an end",
      "three tries; never followed; only the answer's head is read. Nobody waits for another")
def endpoints_misbehave(box: Box) -> None:
    with endpoint(200) as local, endpoint(500) as broken, endpoint(drip("body")) as slow, \
            endpoint(redirect(f"{local.url}/admin")) as sly:
        tell(broken=broken, sly=sly, slow=slow)
        run = box.go("start(); raise ValueError('bad data')", ranks=1)
        assert box.ended(run).state == "failed"
        assert sorted(told(run)) == [
            ("failed", "broken", "the endpoint answered 500, 3 times"),
            ("failed", "slow", "sent"),
            ("failed", "sly", "the endpoint answered 307, a redirect, which is never followed")]
        assert local.got == []
        assert (len(broken.got), len(sly.got), len(slow.got)) == (3, 1, 1)
        assert "bad data" in slow.got[0].json["cause"]
    assert leaks(run) == []


@case("SIGKILL to the process that tells of the run",
      "the run goes on and completes, nobody is told; a resume is told again")
def the_sender_is_killed(box: Box) -> None:
    with endpoint(200) as there:
        tell(phone=there)
        run = box.go(HELD, ranks=1)
        box.running(run)
        os.kill(wait_for(lambda: sender(run)), signal.SIGKILL)
        let_go(run)
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


@case("notify.toml that other users can read",
      "the launch warns with the chmod to type; nothing is sent, and the run completes")
def notify_toml_is_open_to_others(box: Box) -> None:
    with endpoint(200) as there:
        tell(phone=there)
        config.path().chmod(0o644)
        prepared = box.prepared("start(); train(5)", ranks=1)
        assert f"chmod 600 {config.path()}" in "\n".join(prepared.plan.warnings)
        run = box.go("start(); train(5)", ranks=1)
        assert box.ended(run).state == "completed"
        [(state, to, why)] = told(run)
        assert (state, to) == ("completed", "anybody")
        assert f"chmod 600 {config.path()}" in why
        assert there.got == []
        listed = box.cli("notify")
        assert listed.returncode == 2
        assert SECRET not in listed.stdout + listed.stderr + why


@case("A notification's command that never ends and ignores SIGTERM",
      "ended after 30 s with its group; the run has ended long before", always=False)
def a_command_never_ends(box: Box) -> None:
    pids = box.tmp / "pids"
    tell(desk=["sh", "-c", f"trap '' TERM; sleep 600 & echo $$ $! > {pids}; wait; sleep 600"])
    run = box.go("start(); train(5)", ranks=1)
    assert box.ended(run).state == "completed"
    started = wait_for(lambda: pids.exists() and pids.read_text().split())
    assert told(run) == [("completed", "desk",
                          "its command did not end within 30 s, and was ended")]
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
