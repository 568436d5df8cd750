"""The figures of a run's devices, as its supervisors have recorded them: the latest ones, and
curves over the seconds of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_engine.common.clean import clean
from gpu_engine.common.series import Series
from gpu_engine.events import schema
from gpu_engine.plan.records import LaunchPlan

DeviceKey = tuple[str | None, str]
"""(host, None for this machine; the device's id there)."""
UTILIZATION, POWER, TEMPERATURE, USED = "utilization", "power", "temperature", "memory_used"
"""The fields of `schema.Devices`."""
FRESH = 30.0
"""Seconds after which a figure of a live run is no longer shown as the present one."""
BUCKETS = 512


@dataclass(slots=True)
class DeviceFigures:
    curves: dict[str, dict[DeviceKey, Series]] = field(default_factory=dict)
    """Field → device → its values."""
    latest: dict[DeviceKey, tuple[float, dict[str, float]]] = field(default_factory=dict)
    """Device → (Unix seconds, field → value). A value that is not known has no entry."""
    version: int = 0

    def fold(self, host: str | None, event: schema.Devices, second: float | None) -> None:
        """Take in one reading, of this second of the run."""
        each: dict[str, tuple[float | None, ...] | tuple[int | None, ...]] = {
            UTILIZATION: event.utilization, POWER: event.power, TEMPERATURE: event.temperature,
            USED: event.memory_used}
        for place, name in enumerate(event.ids):
            key = host, name
            now: dict[str, float] = {}
            for kind, values in each.items():
                value = values[place] if place < len(values) else None
                if value is not None:
                    now[kind] = float(value)
                    of_kind = self.curves.setdefault(kind, {})
                    series = of_kind.get(key)
                    if series is None:
                        series = of_kind[key] = Series(BUCKETS)
                    series.add(int(second or 0), float(value))
            self.latest[key] = event.t, now
        self.version += 1

    def now(self, key: DeviceKey, moment: float) -> Mapping[str, float]:
        """A device's figures at this moment (Unix seconds); empty if older than `FRESH`."""
        at, figures = self.latest.get(key, (0.0, {}))
        return figures if moment - at <= FRESH else {}


def keys_of(plan: LaunchPlan | None) -> dict[int, list[DeviceKey]]:
    return {r.rank: [(r.host, d.id.removeprefix(f"{r.host}:")) for d in r.devices]
            for r in (plan.ranks if plan is not None else ())}


def labels_of(plan: LaunchPlan | None) -> dict[DeviceKey, str]:
    """Device → "GPU 0", with the machine before it if it is another one."""
    keys = keys_of(plan)
    return {key: clean(f"{r.host} {d.label}" if r.host else d.label, 32)
            for r in (plan.ranks if plan is not None else ())
            for key, d in zip(keys[r.rank], r.devices, strict=True)}
