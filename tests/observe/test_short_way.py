"""The short way, which nearly all steps take, records what the long one does."""

from __future__ import annotations

import pytest

from gpu_engine.plan.processes import HOOK

from .. import event_lines
from .kit import SCRIPTS, Alone

TIMES = 150


def recorded(folder, *words):
    """Of `detours.py`: what it has recorded, without times; what it printed; its phases, at
    certain moments; how many usual steps came after a usual one, and how many of them took the
    long way."""
    (folder / "ranks").mkdir(parents=True)
    done = Alone(str(SCRIPTS / "detours.py"), *words, site=HOOK, env={
        "GPU_PANEL_RUN": str(folder), "GPU_PANEL_RANK": "0"}).done()
    assert done.returncode == 0, done.stdout.decode()
    told = [{k: v for k, v in e.items() if k != "t"}
            for e in event_lines.read(folder / "ranks" / "00000.jsonl")
            if e["kind"] in {"step", "metric", "training", "warning"}]
    again, long, *phases = (folder / "seen").read_text().split()
    return told, done.stdout, phases, int(again), int(long)


@pytest.mark.parametrize("seed", range(6))
def test_every_way_out_of_the_usual_loop_leads_to_the_same_record(tmp_path, seed):
    told, printed, phases, again, long = recorded(tmp_path / "short", str(seed), str(TIMES))
    straight, alone, known, *_ = recorded(tmp_path / "long", str(seed), str(TIMES),
                                          "straight")
    assert printed == alone
    assert told == straight
    assert phases == known
    assert {"running", "backward", "optimizer"} <= set(phases)
    steps = [e for e in told if e["kind"] == "step"]
    assert sum(one["n"] for e in steps for one in (e, *e.get("others", {}).values())) > TIMES / 2
    assert not [e for e in told if e["kind"] == "warning"]
    assert again > 5
    assert long == 0
