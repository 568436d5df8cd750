"""What a training step under the engine costs, beside the same loop written by hand.

Both train the same model with the same optimizer in one process (bench/beside.py), in short blocks
of steps that take turns, so that other load on the machine affects both alike. The engine's
telemetry is on. The models' steps take about 1 ms and about 20 ms, in one process and on two gloo
ranks. There the loop by hand has a DDP of its own, as one makes it; a second line is beside a loop
by hand that has the engine's DDP, with its settings.

Told are the ratios of the sums of wall time, and of processor time, to which that of the engine's
own threads is added. BENCH_TWICE=1 compares the loop by hand with itself: what is told then is
noise, and is as large as a difference has to be to mean something.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RUNS = int(os.environ.get("BENCH_RUNS", "3"))
TWICE = os.environ.get("BENCH_TWICE") == "1"
WINDOWS = 20
"""Parts of a run, each with a ratio of its own, to tell how much they differ."""
CASES = (
    ("1 ms, single", 1, 64, {"sizes": "784,256,10", "block": 10, "warm": 300}, 1000),
    ("20 ms, single", 1, 128, {"sizes": "784,1216,1216,10", "block": 3, "warm": 30}, 120),
    ("1 ms, DDP x2", 2, 64, {"sizes": "784,256,10", "block": 10, "warm": 150}, 600),
    ("20 ms, DDP x2", 2, 128, {"sizes": "784,1216,1216,10", "block": 3, "warm": 20}, 90),
)
"""Name, ranks, examples a step and rank, the task's parameters, blocks in a run."""
HANDS = ("by hand", "by hand, with the engine's DDP")
ROOT = Path(__file__).parents[1]


def measure(ranks: int, batch: int, params: dict[str, Any], blocks: int, home: str,
            ) -> dict[str, Any]:
    """What rank 0 has measured: see `Beside`."""
    out = Path(home) / "seconds"
    steps = params["warm"] + blocks * params["block"] + 1
    sets = {"task.use": f"{ROOT / 'bench' / 'beside.py'}:Beside", "batch.size": batch,
            "batch.meaning": "per_gpu", "train.steps": steps, "train.lr": 0.01,
            "train.workers": 0, "train.checkpoint_every": 0,
            "parallel.mode": "ddp" if ranks > 1 else "single",
            "devices.ids": ",".join(f"cpu:{i}" for i in range(ranks))}
    told = params | {"out": str(out), "steps": steps, "batch": batch, "twice": TWICE}
    sets |= {f"task.params.{k}": json.dumps(v) for k, v in told.items()}
    argv = [sys.executable, "-m", "gpu_engine", "run", "--json"]
    argv += [word for k, v in sets.items() for word in ("--set", f"{k}={v}")]
    done = subprocess.run(argv, env=os.environ | {"GPU_PANEL_HOME": home, "PYTHONPATH": str(ROOT),
                                                  "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return json.loads(out.read_text())


def main() -> None:
    asked = os.environ.get("BENCH_CASES", "")
    with tempfile.TemporaryDirectory() as home:
        for name, ranks, batch, params, blocks in CASES:
            if asked not in name:
                continue
            found = [measure(ranks, batch, params, blocks, home) for _ in range(RUNS)]
            for at, hand in enumerate(HANDS[:len(found[0]["blocks"][0]) - 1], 1):
                sys.stdout.write(f"{name:<14} {_told(found, params['block'] - 1, at, hand)}\n")
                sys.stdout.flush()


def _told(found: list[dict[str, Any]], block: int, at: int, hand: str) -> str:
    """Beside the loop by hand that is number `at` in a block of so many steps."""
    of = statistics.median(b[at][0] for f in found for b in f["blocks"]) / block
    threads = statistics.median(f["threads"] for f in found)
    return (f"{hand} {of * 1e3:7.3f} ms   {_ratios(found, block, at)}; the engine's threads "
            f"{threads * 1e6:.1f} µs a step")


def _ratios(found: list[dict[str, Any]], block: int, at: int) -> str:
    """The ratios of the sums of all blocks, and of the single runs."""
    told = []
    for clock, name in enumerate(("wall", "processor")):
        runs = [[(b[0][clock] + clock * f["threads"] * block, b[at][clock]) for b in f["blocks"]]
                for f in found]
        low, _, high = statistics.quantiles([_ratio(part) for run in runs for part in _parts(run)],
                                            n=4)
        each = " ".join(f"{_ratio(run):.3f}" for run in runs)
        told.append(f"{name} {_ratio([b for run in runs for b in run]):.3f} × (windows' quartiles "
                    f"{low:.3f} to {high:.3f}; runs {each})")
    return "   ".join(told)


def _ratio(blocks: list[tuple[float, float]]) -> float:
    return sum(b[0] for b in blocks) / sum(b[1] for b in blocks)


def _parts(blocks: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    each = max(len(blocks) // WINDOWS, 1)
    return [blocks[at:at + each] for at in range(0, len(blocks), each)]


if __name__ == "__main__":
    main()
