"""What a run over several machines costs: python -m bench hosts

The machines are network namespaces of this one with a real `sshd` each (tests/nodes/rig.py; needs
root), so they share its cores: what is far apart in reality competes here. BENCH_PARTS
chooses among:

start   From the command to the end of rank 0's first step, with 1, 4 and 16 hosts, beside
        `torchrun` started on each host at the same moment, without ssh, as if somebody sat at
        each.
screen  From the moment a rank records a loss to the moment it stands on the panel's run screen.
mirror  Processor time and bytes for bringing the events of 64 ranks × 20 a second here.
panel   The panel's share of a core while it shows the devices of 16 hosts.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from tests.nodes.rig import Rig, why_not

from bench.line import Terminal
from bench.monitor import Watched

ROOT = Path(__file__).parents[1]
HOSTS = [int(n) for n in os.environ.get("BENCH_HOSTS", "1,4,16").split(",")]
RUNS = int(os.environ.get("BENCH_RUNS", "3"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "30"))
EMIT = str(Path(__file__).with_name("emit.py"))
OPEN_FIRST_RUN = (b"4", b"\r")
"""Keys: to the list of runs; open the first."""


class Person:
    """Somebody with a home folder and a hosts.toml, who reaches the nodes of `rig`."""

    def __init__(self, rig: Rig, home: Path) -> None:
        home.mkdir()
        (home / "hosts.toml").write_text("".join(
            f'[hosts.{n.name}]\npython = "{rig.python}"\nfolder = "{ROOT}"\n' for n in rig.nodes))
        self.env = os.environ | rig.environment() | {"GPU_PANEL_HOME": str(home)}
        self.home = home

    def engine(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `gpu-engine`; its mistakes end the measurement."""
        done = subprocess.run([sys.executable, "-m", "gpu_engine", *words], env=self.env, cwd=ROOT,
                              capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"gpu-engine {' '.join(words)}:\n{done.stdout}{done.stderr}")
        return done


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def sets(values: dict[str, Any]) -> list[str]:
    return [word for k, v in values.items() for word in ("--set", f"{k}={v}")]


def settings(hosts: int, ranks: int) -> dict[str, Any]:
    """The devices: `ranks` CPU slots on each of the first `hosts` nodes."""
    slots = ",".join(f"cpu:{i}" for i in range(ranks))
    return {"devices.hosts": json.dumps([f"gpu{n}:{slots}" for n in range(1, hosts + 1)])}


# --- start ----------------------------------------------------------------------------------------

def timed(folder: Path) -> tuple[dict[str, Any], Path]:
    """The parameters of a short training, and the file that gets the time of its first step."""
    first = folder / f"first-{time.monotonic_ns()}"
    return {"sizes": "784,256,10", "steps": 20, "warm": 1, "out": str(folder / "mean"),
            "first": str(first)}, first


def by_engine(person: Person, hosts: int, folder: Path) -> float:
    params, first = timed(folder)
    values = settings(hosts, 1) | {
        "task.use": f"{ROOT / 'bench' / 'tasks.py'}:Timed", "batch.size": 16,
        "batch.meaning": "per_gpu", "train.steps": params["steps"], "train.lr": 0.01,
        "train.workers": 0, "train.checkpoint_every": 0}
    values |= {f"task.params.{k}": json.dumps(v) for k, v in params.items()}
    began = time.time()
    person.engine("run", "--json", *sets(values))
    return float(first.read_text()) - began


def by_torchrun(rig: Rig, hosts: int, folder: Path) -> float:
    params, first = timed(folder)
    port = str(20_000 + time.monotonic_ns() % 20_000)
    began = time.time()
    typed = []
    for rank, node in enumerate(rig.nodes[:hosts]):
        argv = [rig.python, "-m", "torch.distributed.run", "--nnodes", str(hosts), "--node-rank",
                str(rank), "--nproc-per-node", "1", "--master-addr", rig.nodes[0].address,
                "--master-port", port, "-m", "bench.by_hand", json.dumps(params), "16", str(hosts)]
        # The node's own name means 127.0.1.1 there, as on Debian: gloo needs the interface.
        there = ["env", "-C", str(ROOT), "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=e0"]
        typed.append(subprocess.Popen(
            node.enter([*there, *argv]),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for process in typed:
        said = process.communicate()[0]
        if process.returncode:
            sys.exit(said)
    return float(first.read_text()) - began


def start() -> None:
    for hosts in HOSTS:
        with tempfile.TemporaryDirectory(prefix="rig-") as name:
            folder = Path(name)
            rig = Rig(hosts, folder / "rig")
            try:
                person = Person(rig, folder / "here")
                pairs = []
                for turn in range(RUNS):  # they take turns in going first, as machines drift
                    if turn % 2:
                        ours = by_engine(person, hosts, folder)
                        pairs.append((by_torchrun(rig, hosts, folder), ours))
                    else:
                        hand = by_torchrun(rig, hosts, folder)
                        pairs.append((hand, by_engine(person, hosts, folder)))
            finally:
                rig.close()
        ratios = [ours / hand for hand, ours in pairs]
        hand, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
        say(f"first step, {hosts:>2} hosts   torchrun {hand:6.2f} s   gpu-engine {ours:6.2f} s   "
            f"ratio median {statistics.median(ratios):.2f} (of {RUNS}: {min(ratios):.2f} to "
            f"{max(ratios):.2f})")


# --- ranks that only record -----------------------------------------------------------------------

def emitting(person: Person, hosts: int, ranks: int, rate: float) -> Path:
    """Start a run whose ranks record `rate` losses a second and do nothing else. Its folder."""
    command = json.dumps([sys.executable, "-S", "-E", EMIT, str(rate)])
    values = settings(hosts, ranks) | {"task.command": command}
    if hosts == 1:
        values["parallel.mode"] = "ddp" if ranks > 1 else "single"
    run = Path(json.loads(person.engine("run", "--detach", "--json", *sets(values)).stdout)["path"])
    wanted = [run / "ranks" / f"{rank:05d}.jsonl" for rank in range(hosts * ranks)]
    end = time.monotonic() + 300
    while not all(path.exists() and path.stat().st_size > 500 for path in wanted):
        if time.monotonic() > end:
            sys.exit("not every rank's events arrive here")
        time.sleep(0.05)
    return run


def mirror_process(run: Path) -> psutil.Process:
    """The process here that holds the run together."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "gpu_engine.remote.run" in words and str(run) in words:
            return process
    sys.exit("no process mirrors the run")


def mirror() -> None:
    hosts, ranks, rate = 32, 2, 20.0
    with tempfile.TemporaryDirectory(prefix="rig-") as name:
        folder = Path(name)
        rig = Rig(hosts, folder / "rig")
        try:
            person = Person(rig, folder / "here")
            run = emitting(person, hosts, ranks, rate)
            process = mirror_process(run)
            link = Path("/sys/class/net", rig.link, "statistics")

            def now() -> tuple[float, ...]:
                own = sum(process.cpu_times()[:2])
                ssh = sum(sum(p.cpu_times()[:2]) for p in psutil.process_iter(["cmdline"])
                          if str(rig.config) in (p.info["cmdline"] or []))
                agents = sum(sum(p.cpu_times()[:2]) for p in psutil.process_iter(["cmdline"])
                             if (p.info["cmdline"] or [])[1:4] == ["-m", "gpu_engine", "agent"])
                return (own, ssh, agents, int((link / "rx_bytes").read_text()),
                        int((link / "tx_bytes").read_text()),
                        sum(f.stat().st_size for f in (run / "ranks").glob("*.jsonl")))

            began, before = time.monotonic(), now()
            time.sleep(SECONDS)
            took, after = time.monotonic() - began, now()
            own, ssh, agents, received, sent, wrote = (
                (b - a) / took for a, b in zip(before, after, strict=True))
            say(f"mirroring {hosts} hosts × {ranks} ranks × {rate:.0f} losses a second: the "
                f"process here {own * 100:.1f} % of a core, its ssh {ssh * 100:.1f} %, the agents "
                f"there {agents / hosts * 100:.2f} % each; received {received / 1024:.0f} KiB/s "
                f"(events {wrote / 1024:.0f}), sent {sent / 1024:.0f} KiB/s")
            person.engine("stop", "--now", run.name)
        finally:
            rig.close()


# --- the screen -----------------------------------------------------------------------------------

class Screen(Terminal):
    """The panel on a terminal of its own; when each loss was first seen on it."""

    def look(self, seconds: float) -> dict[int, float]:
        """Read for a while. emit.py's losses are shown as 5,001, 5,002, …"""
        seen: dict[int, float] = {}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.01)
            now = time.time()
            for number in re.findall(r"\b5,\d{3}\b", "\n".join(self.screen.display)):
                seen.setdefault(int(number.replace(",", "")), now)
        return seen


def screen() -> None:
    with tempfile.TemporaryDirectory(prefix="rig-") as name:
        folder = Path(name)
        rig = Rig(4, folder / "rig")
        try:
            person = Person(rig, folder / "here")
            run = emitting(person, 4, 1, 4.0)
            watched = Screen([sys.executable, "-m", "gpu_panel"],
                             person.env | {"TERM": "xterm-256color"}, None)
            try:
                watched.read(10.0)
                for key in OPEN_FIRST_RUN:
                    os.write(watched.fd, key)
                    watched.read(5.0)
                seen = watched.look(SECONDS)
            finally:
                watched.end()
            recorded = {}
            for line in (run / "ranks/00000.jsonl").read_text().splitlines():
                event = json.loads(line)
                if event["kind"] == "step":
                    recorded[int(event["loss"])] = event["t"]
            person.engine("stop", "--now", run.name)
        finally:
            rig.close()
    if not seen:
        sys.exit("no loss was seen on the screen")
    lags = []
    for number, then in recorded.items():
        # One that was overwritten before a frame came counts until the next that was shown.
        shown = [at for n, at in seen.items() if n >= number]
        if shown and then > min(seen.values()):
            lags.append(min(shown) - then)
    lags.sort()
    say(f"a loss on a host to the screen: median {statistics.median(lags) * 1e3:.0f} ms, p95 "
        f"{lags[int(len(lags) * 0.95)] * 1e3:.0f} ms, worst {lags[-1] * 1e3:.0f} ms "
        f"({len(lags)} losses, 4 hosts)")


def panel() -> None:
    for hosts in (0, 16):
        with tempfile.TemporaryDirectory(prefix="rig-") as name:
            folder = Path(name)
            rig = Rig(hosts, folder / "rig") if hosts else None
            try:
                env = os.environ | {"GPU_PANEL_HOME": str(folder / "alone")}
                if rig is not None:
                    env = Person(rig, folder / "here").env
                watched = Watched([sys.executable, "-m", "gpu_panel"],
                                  env | {"TERM": "xterm-256color"})
                try:
                    watched.read(25.0 if hosts else 8.0)
                    cpu, wrote, began = watched.cpu(), watched.bytes, time.monotonic()
                    watched.read(SECONDS)
                    took = time.monotonic() - began
                    say(f"the panel with {hosts} hosts: {(watched.cpu() - cpu) / took * 100:.1f} % "
                        f"of a core, {(watched.bytes - wrote) / took / 1024:.1f} KiB/s to the "
                        "terminal")
                finally:
                    watched.end()
            finally:
                if rig is not None:
                    rig.close()


PARTS = {"start": start, "screen": screen, "mirror": mirror, "panel": panel}


def main() -> None:
    reason = why_not()
    if reason is not None:
        say(f"not measured: {reason}")
        return
    chosen = os.environ.get("BENCH_PARTS", ",".join(PARTS)).split(",")
    for name in chosen:
        PARTS[name]()


if __name__ == "__main__":
    main()
