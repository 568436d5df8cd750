"""What a training step under the engine costs, beside the same loop written by hand.

Both train the same model on the same data in one process (bench/beside.py), in blocks of steps that
take turns, so that other load on the machine affects both alike. The engine's telemetry is on. The
models' steps take about 1 ms and about 20 ms, in one process and on two gloo ranks. Told are the
ratios of wall time, which other work on the machine changes most, and of processor time, to which
that of the engine's own threads is added.

Each case is measured in several runs, because where the two models happen to lie in memory makes
one up to 5 % slower than the other for as long as the process lives: two loops by hand, with a
model each, differ as much.
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

BLOCKS = int(os.environ.get("BENCH_BLOCKS", "24"))
RUNS = int(os.environ.get("BENCH_RUNS", "5"))
CASES = (
    ("1 ms, single", 1, 64, {"sizes": "784,256,10", "block": 250, "warm": 300}),
    ("20 ms, single", 1, 128, {"sizes": "784,1216,1216,10", "block": 20, "warm": 30}),
    ("1 ms, DDP x2", 2, 64, {"sizes": "784,256,10", "block": 150, "warm": 150}),
    ("20 ms, DDP x2", 2, 128, {"sizes": "784,1216,1216,10", "block": 12, "warm": 20}),
)
ROOT = Path(__file__).parents[1]


def measure(ranks: int, batch: int, params: dict[str, Any], home: str) -> dict[str, Any]:
    """What rank 0 has measured: see `Beside`."""
    out = Path(home) / "seconds"
    steps = params["warm"] + BLOCKS * params["block"] + 1
    sets = {"task.use": f"{ROOT / 'bench' / 'beside.py'}:Beside", "batch.size": batch,
            "batch.meaning": "per_gpu", "train.steps": steps, "train.lr": 0.01,
            "train.workers": 0, "train.checkpoint_every": 0,
            "parallel.mode": "ddp" if ranks > 1 else "single",
            "devices.ids": ",".join(f"cpu:{i}" for i in range(ranks))}
    told = params | {"out": str(out), "steps": steps, "batch": batch}
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
    with tempfile.TemporaryDirectory() as home:
        for name, ranks, batch, params in CASES:
            found = [measure(ranks, batch, params, home) for _ in range(RUNS)]
            hand = statistics.median(b[2] for f in found for b in f["blocks"]) / params["block"]
            threads = statistics.median(f["threads"] for f in found)
            sys.stdout.write(
                f"{name:<14} by hand {hand * 1e3:7.3f} ms   {_ratios(found, params['block'])}; the "
                f"engine's threads {threads * 1e6:.1f} µs a step\n")
            sys.stdout.flush()


def _ratios(found: list[dict[str, Any]], block: int) -> str:
    """The ratios of all blocks, and the medians of the single runs."""
    wall = [[b[0] / b[2] for b in f["blocks"]] for f in found]
    processor = [[(b[1] + f["threads"] * block) / b[3] for b in f["blocks"]] for f in found]
    told = []
    for name, runs in (("wall", wall), ("processor", processor)):
        low, middle, high = statistics.quantiles([r for run in runs for r in run], n=4)
        each = " ".join(f"{statistics.median(run):.3f}" for run in runs)
        told.append(f"{name} {middle:.3f} × (quartiles {low:.3f} to {high:.3f} of "
                    f"{sum(map(len, runs))} blocks; runs {each})")
    return "   ".join(told)


if __name__ == "__main__":
    main()
