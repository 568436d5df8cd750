"""Starting the runs whose turn has come, each by a process of its own (`start`)."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_engine.common.files import json_inside, read_json
from gpu_engine.common.programs import own_program
from gpu_engine.queue.start import NOT_YET
from gpu_engine.runs import waiting
from gpu_engine.runs.folder import EXIT_CODES, Run, State
from gpu_engine.runs.waiting import Entry

MOST = 4
"""How many runs are started at the same time."""
_START_TIME = 180.0
"""Seconds after which the program that starts a run is given up."""
PAUSES = (5.0, 15.0, 60.0)
"""Seconds before a run whose start did not work out is tried again."""
_MOST_FAILURES = 3
"""How often the start of a run may fail through no fault of its spec."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Starting:
    """A run that is being started."""

    child: subprocess.Popen[bytes]
    devices: tuple[str, ...]
    began: float
    ended: bool = False
    """Whether the program that starts it has ended."""


@dataclass(slots=True)
class Trouble:
    """A run whose start did not work out."""

    until: float = 0.0
    """Not tried again before, monotonic seconds."""
    reason: str = ""
    times: int = 0
    failures: int = 0


class Starts:
    """The runs that are being started, and those that have to pause before they are tried again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = folder.parent / "runs"
        self.starting: dict[str, Starting] = {}
        self.troubles: dict[str, Trouble] = {}

    def begin(self, name: str, entry: Entry, devices: tuple[str, ...]) -> None:
        """Start the run on these devices."""
        run = Run(self._runs / name)
        log.info("run %s starts on %s", name, ", ".join(devices))
        argv = own_program("gpu_engine.queue.start", str(run.path), *devices)
        env, umask = self._environ(entry)
        try:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     env=env, umask=umask, cwd="/", start_new_session=True)
        except OSError as err:
            self._failed(name, f"it can't be started: {err}")
            return
        self.starting[name] = Starting(child, devices, time.monotonic())

    def poll(self) -> None:
        """See what has become of the starts."""
        now = time.monotonic()
        for name, starting in list(self.starting.items()):
            status = starting.child.poll()
            if status is None:
                if now - starting.began > _START_TIME:
                    with contextlib.suppress(OSError):
                        os.killpg(starting.child.pid, signal.SIGKILL)
                continue
            if not starting.ended:
                starting.ended, said = True, _output(starting.child)
                if status:
                    del self.starting[name]
                    self._failed(name, said or f"its start ended with {status}",
                                 failure=status != NOT_YET)
                    continue
            run = Run(self._runs / name)
            state = run.state()
            if state.state == "queued" and run.supervised():
                continue  # its supervisor is about to take the devices
            del self.starting[name]
            if state.state == "queued":
                self._failed(name, "for devices that others took meanwhile", failure=False)
            else:
                self.troubles.pop(name, None)

    def pausing(self) -> frozenset[str]:
        """The runs that are not to be tried now."""
        now = time.monotonic()
        return frozenset(name for name, trouble in self.troubles.items() if trouble.until > now)

    def forget(self, waiting_now: Mapping[str, Entry]) -> None:
        """Forget the troubles of runs that wait no longer."""
        self.troubles = {k: v for k, v in self.troubles.items() if k in waiting_now}

    def give_up(self, name: str, reason: str) -> None:
        """End a run that can't start any more."""
        run = Run(self._runs / name)
        log.warning("run %s is given up: %s", name, reason)
        self.troubles.pop(name, None)
        with contextlib.suppress(OSError):
            recorded = State.from_dict(json_inside(run.path, "state.json"))
            if recorded is not None and recorded.state == "queued" and not run.supervised():
                run.write_state(replace(recorded, state="stopped", ended=time.time(),
                                        exit_code=EXIT_CODES["stopped"], reason=reason))
            waiting.leave(run.path)

    def _failed(self, name: str, reason: str, *, failure: bool = True) -> None:
        """Try the run again later. After too many failures that are not about devices, end it."""
        trouble = self.troubles.setdefault(name, Trouble())
        trouble.reason, trouble.times = reason, trouble.times + 1
        trouble.failures += failure
        trouble.until = time.monotonic() + PAUSES[min(trouble.times, len(PAUSES)) - 1]
        log.warning("run %s: %s", name, reason)
        if trouble.failures >= _MOST_FAILURES:
            self.give_up(name, f"it could not be started: {reason}")

    def _environ(self, entry: Entry) -> tuple[dict[str, str], int]:
        """The environment that the run was submitted in, and the umask."""
        kept = read_json(self._folder / Path(entry.environ).name) if entry.environ else None
        match kept:
            case {"environ": dict(environ), "umask": int(umask)}:
                return {str(k): str(v) for k, v in environ.items()}, umask & 0o777
        log.warning("the environment of a run is lost: it gets that of the queue")
        return dict(os.environ), 0o077


def _output(child: subprocess.Popen[bytes]) -> str:
    """What the program that has ended printed. Does not wait for processes that have inherited its
    output."""
    assert child.stdout is not None
    try:
        os.set_blocking(child.stdout.fileno(), False)
        said = os.read(child.stdout.fileno(), 4096)
    except OSError:
        said = b""
    child.stdout.close()
    return said.decode("utf-8", "replace").strip()
