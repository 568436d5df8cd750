"""What a checkpoint costs: the wait of a step, slower steps meanwhile, memory, and resuming.

    python -m bench save          BENCH_GB=1,4 by default

Measured with and without `train.checkpoint_async`. The wait is the longest gap between two steps.
Memory is the rank's own, RssAnon of proc(5): pages of the file that a run resumes from are shared
and can be dropped at any time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_engine.events.reader import Tail
from gpu_engine.events.schema import Checkpoint

SIZES = [float(x) for x in os.environ.get("BENCH_GB", "1,4").split(",")]
STEPS, SAVE_AT = 250, 130  # one while training goes on, one at the end
ROOT = Path(__file__).parents[1]


def measured(gigabytes: float, beside: bool, home: str) -> None:
    out = Path(home) / "out"
    sets = {"task.use": f"{ROOT / 'bench' / 'heavy.py'}:Heavy", "batch.size": 128,
            "task.params.gigabytes": gigabytes, "task.params.out": str(out), "train.lr": 0.01,
            "train.steps": STEPS, "train.workers": 0, "train.checkpoint_every": SAVE_AT,
            "train.keep": 2, "devices.ids": "cpu:0",
            "train.checkpoint_async": str(beside).lower()}
    argv = [sys.executable, "-m", "gpu_engine", "run", "--json"]
    run = engine(argv + [word for k, v in sets.items() for word in ("--set", f"{k}={v}")], home)
    seen = json.loads(out.read_text())
    events = Tail(Path(home) / "runs" / run / "ranks" / "00000.jsonl").read(1 << 26)
    saves = [e for e in events if isinstance(e, Checkpoint)]
    took = saves[0].seconds
    if took is None:
        sys.exit(f"how long it took is not recorded: {saves[0]}")
    began = saves[0].t - took
    gaps = [(b, b - a) for a, b in zip(seen["times"], seen["times"][1:], strict=False)]
    waited = max(gap for _, gap in gaps)
    while_writing = [gap for at, gap in gaps if began + 1 < at < saves[0].t and gap < waited]
    usual = statistics.median(gap for at, gap in gaps if at < began)
    held = seen["most"]["RssAnon"]
    beside_words = f"{statistics.mean(while_writing) * 1e3:.1f} ms" if while_writing else "none"
    engine([sys.executable, "-m", "gpu_engine", "resume", run, "--json", "--set",
            f"train.steps={STEPS + 5}", "--set", "train.checkpoint_every=0"], home)
    resumed = json.loads(out.read_text())["most"]
    sys.stdout.write(
        f"{gigabytes:g} GB, {'beside training' if beside else 'training waits'}: a step waited "
        f"{waited:.2f} s of {took:.2f} s; a step takes {usual * 1e3:.1f} ms, "
        f"while it is written {beside_words}; most memory {held / 1e9:.2f} GB, of the resumed "
        f"attempt {resumed['RssAnon'] / 1e9:.2f} GB\n")
    sys.stdout.flush()


def engine(argv: list[str], home: str) -> str:
    """Run a command of the engine to its end. Returns the run's id."""
    done = subprocess.run(argv, env=os.environ | {"GPU_PANEL_HOME": home}, capture_output=True,
                          text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return json.loads(done.stdout)["id"]


def main() -> None:
    for gigabytes in SIZES:
        for beside in (True, False):
            with tempfile.TemporaryDirectory() as home:
                measured(gigabytes, beside, home)


if __name__ == "__main__":
    main()
