"""What a training step under the engine costs, beside the same loop written by hand.

Both train the same model on the same data in one process (bench/beside.py), in blocks of steps that
take turns, so that other load on the machine affects both alike. The engine's telemetry is on. The
models' steps take about 1 ms and about 20 ms, in one process and on two gloo ranks. Told are the
ratios of wall time, which other work on the machine changes most, and of processor time, to which
that of the engine's own threads is added.
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

BLOCKS = int(os.environ.get("BENCH_BLOCKS", "40"))
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
            found = measure(ranks, batch, params, home)
            engine, cpu, hand, hand_cpu = zip(*found["blocks"], strict=True)
            block, threads = params["block"], found["threads"]
            wall = [a / b for a, b in zip(engine, hand, strict=True)]
            spent = [(a + threads * block) / b for a, b in zip(cpu, hand_cpu, strict=True)]
            low, middle, high = statistics.quantiles(spent, n=4)
            sys.stdout.write(
                f"{name:<14} by hand {statistics.median(hand) / block * 1e3:7.3f} ms   engine "
                f"{statistics.median(engine) / block * 1e3:7.3f} ms   wall: median ratio "
                f"{statistics.median(wall):.3f}   processor: {middle:.3f} (quartiles {low:.3f} to "
                f"{high:.3f} of {len(spent)} blocks; the engine's threads {threads * 1e6:.1f} µs a "
                f"step)\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
