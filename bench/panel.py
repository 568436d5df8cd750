"""What an open panel costs, and how long a key takes: python -m bench panel

The panel is on a terminal of its own (120×36, pyte's). BENCH_PARTS chooses among:

run     The run screen of a live run of 64 ranks, each of which records 20 events a second. The key
        shows the next rank's log.
list    The launch screen with BENCH_LISTED runs, a thousand, which have ended; the key moves the
        cursor.
lively  The same with three more, which are live: 8 ranks each, 20 events a second.

First the share of a core is measured while nobody types, over BENCH_SECONDS, then BENCH_KEYS keys
at random moments. The ranks are one process (bench/ranks.py), so that the machine is not busy with
them.
"""

from __future__ import annotations

import os
import random
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.line import COLUMNS, ROWS, Terminal
from bench.runs import make

SECONDS = float(os.environ.get("BENCH_SECONDS", "30"))
KEYS = int(os.environ.get("BENCH_KEYS", "200"))
ROUNDS = int(os.environ.get("BENCH_RUNS", "1"))
LISTED = int(os.environ.get("BENCH_LISTED", "1000"))
PARTS = os.environ.get("BENCH_PARTS", "run,list,lively").split(",")
APART = (0.15, 0.45)
"""Seconds between the effect of a key and the next key."""
LOST = 10.0
"""Seconds after which a key has no effect any more."""

State = Callable[[], Hashable]
"""Something on the screen, which a key changes."""


class Typist:
    """Presses keys and sees when they take effect."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self._noise = random.Random(1)

    def key(self, key: bytes, state: State) -> float:
        """Seconds from the key to the arrival of the bytes that show its effect."""
        before, terminal = state(), self.terminal
        began = time.perf_counter()
        os.write(terminal.fd, key)
        while select.select([terminal.fd], [], [], LOST)[0]:
            arrived = time.perf_counter()
            terminal._take(os.read(terminal.fd, 1 << 16))
            if state() != before:
                return arrived - began
            if arrived - began > LOST:
                break
        sys.exit("a key has no effect:\n" + "\n".join(terminal.screen.display))

    def keys(self, key: Callable[[int], bytes], state: State) -> list[float]:
        found = []
        for number in range(KEYS):
            found.append(self.key(key(number), state))
            self.terminal.read(self._noise.uniform(*APART))
        return found


def show(name: str, share: float, took: list[float]) -> None:
    """One line of figures."""
    took = sorted(took)
    at = [took[min(int(len(took) * q), len(took) - 1)] * 1e3 for q in (0.5, 0.9, 0.99)]
    sys.stdout.write(f"{name:<24} {share * 100:5.2f} % of a core   a key takes p50 {at[0]:5.1f}, "
                     f"p90 {at[1]:5.1f}, p99 {at[2]:5.1f}, at worst {took[-1] * 1e3:5.1f} ms "
                     f"({len(took)} keys)\n")
    sys.stdout.flush()


def environment(home: str) -> dict[str, str]:
    env = os.environ | {"GPU_PANEL_HOME": home, "TERM": "xterm-256color", "LANG": "C.UTF-8",
                        "COLORTERM": "truecolor"}
    for key in ("TMUX", "STY", "LC_ALL", "LC_CTYPE"):
        env.pop(key, None)
    return env


@contextmanager
def live(ranks: int, rate: int) -> Iterator[Path]:
    """A run whose ranks record; this process is its supervisor, as far as the panel can see."""
    from gpu_engine.common import procs
    from gpu_engine.devices.records import Device, Inventory
    from gpu_engine.places.verbs import prepare
    from gpu_engine.runs.create import create_run
    from gpu_engine.runs.folder import State as RunState
    from gpu_engine.spec.read import from_dict
    from gpu_engine.spec.write import to_toml

    devices = Inventory(tuple(Device(f"cpu:{i}", "cpu", f"CPU core {i}", i, cores=(0,))
                              for i in range(ranks)), "cpu")
    made = prepare(from_dict({
        "name": "many-ranks", "task": {"use": "gpu_engine.tasks.digits:Digits"},
        "devices": {"ids": [d.id for d in devices.devices]}, "parallel": {"mode": "ddp"},
        "batch": {"size": 64 * ranks}, "train": {"steps": 1_000_000}}), inventory=devices)
    run, lock = create_run("many-ranks", to_toml(made.spec), made.plan)
    now, pid = time.time(), os.getpid()
    (run.path / "ranks").mkdir(exist_ok=True)
    for rank in range(ranks):
        run.log(rank).write_text("".join(f"rank {rank} says {n}\n" for n in range(100)))
    run.write_state(RunState("running", run.id, "many-ranks", now, now, pid=pid,
                             ticks=procs.start_ticks(pid), boot=procs.boot_id()))
    writer = subprocess.Popen([sys.executable, "-S", "-E",
                               str(Path(__file__).with_name("ranks.py")),
                               str(run.path), str(ranks), str(rate)])
    try:
        yield run.path
    finally:
        writer.kill()
        writer.wait()
        os.close(lock)


def idle(terminal: Terminal) -> float:
    """The share of a core while nobody types."""
    began, cpu = time.perf_counter(), terminal.cpu()
    terminal.read(SECONDS)
    return (terminal.cpu() - cpu) / (time.perf_counter() - began)


def row_of(terminal: Terminal, pattern: str) -> int:
    return next(y for y, text in enumerate(terminal.screen.display) if re.search(pattern, text))


def run_screen(env: Mapping[str, str]) -> tuple[float, list[float]]:
    terminal = Terminal([sys.executable, "-m", "gpu_panel"], env, None)
    try:
        terminal.read(120.0, until="many-ranks")
        terminal.read(3.0)
        terminal.key(b"4", "open")
        terminal.key(b"\r", "log . rank 0")
        terminal.read(8.0)
        share = idle(terminal)
        row, screen = row_of(terminal, "log . rank 0"), terminal.screen

        def title() -> Hashable:
            return "".join(screen.buffer[row][x].data for x in range(24))

        return share, Typist(terminal).keys(lambda _: b"r", title)
    finally:
        terminal.end()


def launch_screen(env: Mapping[str, str], runs: int) -> tuple[float, list[float]]:
    terminal = Terminal([sys.executable, "-m", "gpu_panel"], env, None)
    try:
        terminal.read(120.0, until=rf"{runs:,}")
        terminal.key(b"4", "open")
        terminal.read(40.0)  # the figures of all are read meanwhile
        share = idle(terminal)
        screen, top = terminal.screen, row_of(terminal, r"Runs ")

        def cursor() -> Hashable:
            return tuple((screen.buffer[y][4].bg, *(screen.buffer[y][x].data for x in range(28)))
                         for y in range(top, ROWS))

        down, up = b"\x1b[B", b"\x1b[A"
        return share, Typist(terminal).keys(lambda n: down if n // 8 % 2 == 0 else up, cursor)
    finally:
        terminal.end()


def main() -> None:
    sys.stdout.write(f"at {COLUMNS}×{ROWS}\n")
    with tempfile.TemporaryDirectory(prefix="panel-") as home:
        os.environ["GPU_PANEL_HOME"] = home
        env = environment(home)
        for _ in range(ROUNDS):
            if "run" in PARTS:
                with tempfile.TemporaryDirectory(prefix="run-") as own:
                    os.environ["GPU_PANEL_HOME"] = own
                    with live(64, 20):
                        show("64 ranks × 20 events/s", *run_screen(environment(own)))
                    os.environ["GPU_PANEL_HOME"] = home
        if not {"list", "lively"} & set(PARTS):
            return
        make(Path(home), LISTED)
        for _ in range(ROUNDS):
            if "list" in PARTS:
                show(f"{LISTED:,} runs", *launch_screen(env, LISTED))
            if "lively" in PARTS:
                with ExitStack() as stack:
                    for _ in range(3):
                        stack.enter_context(live(8, 20))
                    show(f"{LISTED:,} runs, 3 more live", *launch_screen(env, LISTED + 3))


if __name__ == "__main__":
    main()
