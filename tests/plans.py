"""Plans for tests that need a run folder but no launch."""

from __future__ import annotations

from typing import Any

from gpu_engine.plan.batch import Batch, LearningRate
from gpu_engine.plan.records import DeviceUse, LaunchPlan, RankPlan
from gpu_engine.spec import modes
from gpu_engine.spec.read import from_dict


def plan(devices: int = 2, *, mode: str = "ddp", cpu: bool = True, global_size: int = 256,
         spec: dict[str, Any] | None = None, **more: Any) -> LaunchPlan:
    """A plan for one machine with so many devices."""
    kind, place = ("CPU", "cpu") if cpu else ("GPU", "cuda:{}")
    used = [DeviceUse(f"cpu:{i}" if cpu else str(i), f"{kind} {i}", None, place.format(i))
            for i in range(devices)]
    each = [[one] for one in used] if modes.get(mode).process_a_device else [used]
    return LaunchPlan(
        **{"mode": mode, "device_type": "cpu" if cpu else "cuda",
           "source": "cpu" if cpu else "nvml", "world_size": len(each),
           "local_world_size": len(each), "name": "toy",
           "batch": Batch(global_size, "global", 1, devices, global_size, global_size // devices),
           "lr": LearningRate(3e-4, "none", None, 1.0, 3e-4), "spec": from_dict(spec or {}),
           "ranks": tuple(RankPlan(i, i, 0, tuple(mine)) for i, mine in enumerate(each))} | more)
