"""What a training step under the engine costs, compared with the same loop written by hand.

Both train the same model on the same data; the engine's telemetry is on. Runs alternate, and the
ratio is taken for each pair. The models' steps take about 1 ms and about 20 ms, in one process and
on two gloo ranks.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_engine.common.ports import free_port

PAIRS = int(os.environ.get("BENCH_PAIRS", "7"))
CASES = (
    ("1 ms, single", 1, 64, {"sizes": "784,256,10", "steps": 2500, "warm": 300}),
    ("20 ms, single", 1, 128, {"sizes": "784,1216,1216,10", "steps": 220, "warm": 30}),
    ("1 ms, DDP x2", 2, 64, {"sizes": "784,256,10", "steps": 1200, "warm": 150}),
    ("20 ms, DDP x2", 2, 128, {"sizes": "784,1216,1216,10", "steps": 120, "warm": 20}),
)
ROOT = Path(__file__).parents[1]


def by_hand(ranks: int, batch: int, params: dict, out: Path) -> float:
    port = str(free_port())
    cores = sorted(os.sched_getaffinity(0))
    started = []
    for rank in range(ranks):
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        if ranks > 1:
            env |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port}
        argv = [sys.executable, "-m", "bench.by_hand", json.dumps(params | {"out": str(out)}),
                str(batch), str(ranks)]
        core = cores[rank % len(cores)]
        started.append(subprocess.Popen(
            argv, env=env, cwd=ROOT,
            preexec_fn=lambda core=core: os.sched_setaffinity(0, [core])))
    for process in started:
        process.wait()
    return json.loads(out.read_text())


def engine(ranks: int, batch: int, params: dict, out: Path, home: str) -> float:
    sets = {"task.use": f"{ROOT / 'bench' / 'tasks.py'}:Timed", "batch.size": batch,
            "batch.meaning": "per_gpu", "train.steps": params["steps"], "train.lr": 0.01,
            "train.workers": 0, "train.checkpoint_every": 0,
            "parallel.mode": "ddp" if ranks > 1 else "single",
            "devices.ids": ",".join(f"cpu:{i}" for i in range(ranks))}
    sets |= {f"task.params.{k}": json.dumps(v) for k, v in (params | {"out": str(out)}).items()}
    argv = [sys.executable, "-m", "gpu_engine", "run", "--json"]
    argv += [word for k, v in sets.items() for word in ("--set", f"{k}={v}")]
    done = subprocess.run(argv, env=os.environ | {"GPU_PANEL_HOME": home}, capture_output=True,
                          text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return json.loads(out.read_text())


def pair(engine_first: bool, case: tuple, out: Path, home: str) -> tuple[float, float]:
    """Seconds per step as (by hand, engine). They take turns in going first, as machines drift."""
    _, ranks, batch, params = case
    if engine_first:
        ours = engine(ranks, batch, params, out, home)
        return by_hand(ranks, batch, params, out), ours
    hand = by_hand(ranks, batch, params, out)
    return hand, engine(ranks, batch, params, out, home)


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        for case in CASES:
            pairs = [pair(bool(i % 2), case, Path(home) / "seconds", home) for i in range(PAIRS)]
            ratios = [ours / hand for hand, ours in pairs]
            sys.stdout.write(
                f"{case[0]:<14} by hand {statistics.median(h for h, _ in pairs) * 1e3:7.3f} ms   "
                f"engine {statistics.median(e for _, e in pairs) * 1e3:7.3f} ms   ratio median "
                f"{statistics.median(ratios):.3f} (of {PAIRS}: {min(ratios):.3f} to "
                f"{max(ratios):.3f})\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
