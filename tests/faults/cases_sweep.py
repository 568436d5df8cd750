"""A sweep of which some members fail."""

from __future__ import annotations

import json

from gpu_engine.queue import serve
from gpu_engine.runs import folder as runs
from gpu_engine.runs import sweep

from .kit import Box, case

BODY = """
start()
about = json.loads((run / "sweep.json").read_text())
lr, width = (float(v) for v in about["values"].values())
step(1, 100.0)
if about["index"] % 2 == 0 and not Path(os.environ["MENDED"]).exists():
    tell("error", type="RuntimeError", message="every second", traceback="…", phase="forward",
         step=1)
    finish("failed", 1)
step(2, lr * width / about["repeat"])
finish("completed", 2)
"""


@case("every second member of a sweep fails; then what it failed of is mended",
      "the others go on and are in the table with the failures; a retry completes")
def a_sweep_with_failures(box: Box) -> None:
    body = box.tmp / "body.py"
    body.write_text(BODY)
    box.patch.setenv("FAULT_BODY", str(body))
    box.patch.setenv("MENDED", str(box.tmp / "mended"))
    told = json.loads(box.cli(
        "run", "--set", "task.use=gpu_engine.tasks.bytes_gpt:BytesGPT", "--json", "--set",
        "devices.pick=1", "--set", f"run.python={box.interpreter()}", "--grid", "train.lr=1,2",
        "--grid", "task.params.width=8,16", "--repeat", "2").stdout)
    members = {sweep.read(r.path).index: r for r in runs.all_runs()}
    assert [members[i].id for i in range(1, 9)] == told["runs"]
    for run in members.values():
        box.ended(run)
    states = {i: r.state().state for i, r in members.items()}
    assert states == {i: "completed" if i % 2 else "failed" for i in range(1, 9)}
    found = json.loads(box.cli("sweep", told["id"], "--json").stdout)
    assert [(p["values"], p["best"]["mean"], p["counts"]) for p in found["points"]] == [
        ({"train.lr": lr, "task.params.width": width}, float(lr) * float(width),
         {"done": 1, "failed": 1})
        for lr, width in (("1", "8"), ("1", "16"), ("2", "8"), ("2", "16"))]
    assert f"4 failed ({', '.join(members[i].id for i in (2, 4, 6, 8))}): " \
           "rank 0: every second" in box.cli("sweep", "last").stdout
    (box.tmp / "mended").touch()
    for index in (4, 6, 8):
        assert box.cli("runs", "rm", "--yes", members[index].id).returncode == 0
    assert box.cli("sweep", "retry", told["id"]).returncode == 0
    state = box.ended(members[2])
    assert (state.state, [a.outcome for a in state.attempts]) == (
        "completed", ["failed", "completed"])
    best = json.loads(box.cli("sweep", "last", "--json").stdout)["points"][0]["best"]
    assert (best["n"], best["mean"]) == (2, 6.0)  # 8 of the first seed, 8 / 2 of the second
    assert serve.alone() == {}
