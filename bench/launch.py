"""What launching costs: from the command to a rank's first line and first step, and from the end of
the last rank to the end of the command.

The same script, on two ranks, is started by hand as two plain processes, by torchrun and by
gpu-engine. They take turns, and what is compared is the difference to the processes started by hand
in the same round. One script trains under DDP (gloo); importing torch takes most of its time, and
differs more from round to round than the launchers do. So another, without torch, shows them alone,
in more rounds. Ranks say what they do through a socket, and the kernel says when a process has
ended (pidfd), so that nothing here looks at a clock again and again.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpu_engine.common.ports import free_port

RANKS = 2
Way = Callable[[dict[str, str]], "list[subprocess.Popen[bytes]]"]
"""Starts the script with this environment; returns the processes that were started."""
Ways = dict[str, Way]
"""By name."""

TELL = '''
import os, socket, time

told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
told.connect(os.environ["BENCH_TELL"])
tell = lambda what: told.send(f"{what} {os.getpid()} {time.monotonic()}".encode())
tell("line")
'''
WAITS = f"{TELL}time.sleep(1)\n"
TRAINS = TELL + '''import torch

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    loss = model(torch.randn(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 0:
        tell("step")
torch.distributed.destroy_process_group()
'''


@dataclass
class Seen:
    """What was seen of one launch, in seconds of the monotonic clock."""

    began: float
    lines: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    exit: float = 0.0

    def figures(self) -> dict[str, float]:
        """Seconds: of the rank that was last, each from the command on; and the end."""
        steps = {"first step": max(self.steps) - self.began} if self.steps else {}
        return {"first line": max(self.lines) - self.began, **steps,
                "end": self.exit - max(self.ends)}


def follow(start: Way, folder: Path) -> Seen:
    """Start a launch, whose processes `start` returns, and follow it until they have ended."""
    path = folder / "tell"
    path.unlink(missing_ok=True)
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(path))
    seen = Seen(time.monotonic())
    started = start(os.environ | {"BENCH_TELL": str(path), "OMP_NUM_THREADS": "1"})
    poll = select.poll()
    poll.register(told, select.POLLIN)
    ranks: set[int] = set()
    commands = {os.pidfd_open(process.pid) for process in started}
    for fd in commands:
        poll.register(fd, select.POLLIN)
    while commands or len(seen.ends) < RANKS:
        for fd, _ in poll.poll():
            if fd == told.fileno():
                what, pid, at = told.recv(200).split()
                (seen.lines if what == b"line" else seen.steps).append(float(at))
                if what == b"line":
                    rank = os.pidfd_open(int(pid))
                    ranks.add(rank)
                    poll.register(rank, select.POLLIN)
                continue
            now = time.monotonic()
            if fd in ranks:
                seen.ends.append(now)
            else:
                commands.discard(fd)
                seen.exit = now
            poll.unregister(fd)
            os.close(fd)
    told.close()
    for process in started:
        if process.wait() != 0:
            sys.exit(f"{process.args} ended with {process.returncode}")
    seen.exit = max(seen.exit, *seen.ends)
    return seen


def ways(folder: Path, text: str) -> Ways:
    """How to launch a script with this text, by name."""
    script = folder / "train.py"
    script.write_text(text)
    bin = Path(sys.executable).parent

    def one(argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, env=env, cwd=folder, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def by_hand(env: dict[str, str]) -> list[subprocess.Popen[bytes]]:
        env |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port())}
        return [one([sys.executable, str(script)], env | {"RANK": str(rank)})
                for rank in range(RANKS)]

    def torchrun(env: dict[str, str]) -> list[subprocess.Popen[bytes]]:
        return [one([str(bin / "torchrun"), "--standalone", f"--nproc-per-node={RANKS}",
                     str(script)], env)]

    def engine(env: dict[str, str]) -> list[subprocess.Popen[bytes]]:
        slots = ",".join(f"cpu:{i}" for i in range(RANKS))
        return [one([str(bin / "gpu-engine"), "run", "--mode", "ddp", "--devices", slots, "--",
                     sys.executable, str(script)], env | {"GPU_PANEL_HOME": str(folder / "home")})]

    return {"by hand": by_hand, "torchrun": torchrun, "gpu-engine": engine}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("BENCH_RUNS", "9")),
                        help="of the script that trains; three times as many of the other")
    parser.add_argument("--without", action="append", default=[], choices=["torchrun", "training"])
    args = parser.parse_args(argv or [])
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody trains with it, and it hides a cache
    for text, rounds in ((WAITS, 3 * args.rounds), (TRAINS, args.rounds)):
        if text is TRAINS and "training" in args.without:
            continue
        with tempfile.TemporaryDirectory() as folder:
            names = ways(Path(folder), text)
            if "torchrun" in args.without:
                del names["torchrun"]
            sys.stdout.write("a script that trains:\n" if text is TRAINS else "without torch:\n")
            report(measure(names, Path(folder), rounds))


def measure(names: Ways, folder: Path, rounds: int) -> dict[str, list[dict[str, float]]]:
    """The figures of each launch of each way, which take turns in being first."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(-1, rounds):
        first = turn % len(names)
        for name in (*list(names)[first:], *list(names)[:first]):
            figures = follow(names[name], folder).figures()
            if turn >= 0:  # the round before fills caches
                found[name].append(figures)
    return found


def report(found: dict[str, list[dict[str, float]]]) -> None:
    """Print medians and ranges, and what each way takes more than by hand in the same round."""
    hand = found["by hand"]
    say = sys.stdout.write
    for what in hand[0]:
        title = "command to " + what if what != "end" else "last rank's end to the command's"
        for name, each in found.items():
            seconds = [figures[what] for figures in each]
            say(f"{title:<34} {name:<11} median {_ms(statistics.median(seconds))} "
                f"({_ms(min(seconds))} to {_ms(max(seconds))})")
            if each is not hand:
                more = [s - h[what] for s, h in zip(seconds, hand, strict=True)]
                say(f"   over by hand: median {_ms(statistics.median(more))} "
                    f"({_ms(min(more))} to {_ms(max(more))})")
                if what != "end":
                    ratios = [s / h[what] for s, h in zip(seconds, hand, strict=True)]
                    say(f", {statistics.median(ratios):.2f} ×")
            say(f"   {len(each)} rounds\n" if each is hand else "\n")
    sys.stdout.flush()


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


if __name__ == "__main__":
    main(sys.argv[1:])
