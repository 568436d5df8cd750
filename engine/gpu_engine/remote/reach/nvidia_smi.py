"""A host's GPUs as `nvidia-smi` tells of them, where our program is not there to ask the driver.

    nvidia-smi --query-gpu=index,uuid,… --format=csv,noheader,nounits

gives a line a GPU: MiB, percent, degrees Celsius, watts, and "[N/A]" or the like for what the
driver does not know (nvidia-smi --help-query-gpu). Who is on a GPU is not told, so none of them is
called free.
"""

from __future__ import annotations

import csv
import math
import re
import time

from gpu_engine.common.clean import clean
from gpu_engine.devices.records import Device, Inventory, Sample, Snapshot
from gpu_engine.remote.reach.call import Unreachable, run
from gpu_engine.remote.reach.records import Host

FIELDS = ("index", "uuid", "name", "utilization.gpu", "memory.used", "memory.total",
          "temperature.gpu", "power.draw")
ABSENT = "there is no nvidia-smi there either"
_PLACES = ("/usr/bin", "/usr/local/bin", "/usr/lib/wsl/lib", "/opt/bin", "/run/nvidia/driver/bin")
"""Where it is beside the PATH, which is short for a shell that nobody logged in to."""
SCRIPT = (f"PATH=$PATH:{':'.join(_PLACES)}\ncommand -v nvidia-smi >/dev/null 2>&1 || exit 127\n"
          f"exec nvidia-smi --query-gpu={','.join(FIELDS)} --format=csv,noheader,nounits\n"
          ).encode()
_SECONDS = 25.0
_MOST = 64 << 10
_MOST_GPUS = 128
_BIGGEST = 1e9
"""MiB: a PiB."""


class NotSeen(Exception):
    """Why there is no look, in words."""


def query(host: Host) -> tuple[Inventory, Snapshot]:
    """The GPUs of `host`, and how they are. Raises NotSeen."""
    try:
        ran = run(host, SCRIPT, _SECONDS, most=_MOST)
    except Unreachable as err:
        raise NotSeen(err.reason) from None
    if ran.code == 127:
        raise NotSeen(ABSENT)
    if ran.code != 0:
        said = next((line for line in ran.out.splitlines() if line.strip()), "")
        raise NotSeen(clean(said, 200) or "nvidia-smi does not answer there")
    return read(ran.out, time.time())


def read(text: str, taken: float) -> tuple[Inventory, Snapshot]:
    """The table as records. What is no line of it is passed over. Raises NotSeen where nothing of
    it is one."""
    samples: dict[str, Sample] = {}
    for cells in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(cells) != len(FIELDS) or not re.fullmatch("[0-9]{1,3}", cells[0]):
            continue
        number, uuid, name = (clean(cell, 100).strip() for cell in cells[:3])
        share, used, total, heat, power = map(_number, cells[3:])
        size = _bytes(total)
        device = Device(str(int(number)), "gpu", name or "GPU", int(number), uuid, size)
        samples.setdefault(device.id, Sample(
            device, None if share is None else share / 100, _bytes(used), size, heat, power,
            taken=taken))
    if not samples and text.strip():
        raise NotSeen(clean(text.strip().splitlines()[0], 200))
    found = tuple(samples.values())[:_MOST_GPUS]
    return Inventory(tuple(s.device for s in found), "nvidia-smi"), Snapshot(taken, found)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:  # "[N/A]" and the like
        return None
    return value if math.isfinite(value) and 0 <= value < _BIGGEST else None


def _bytes(value: float | None) -> int | None:
    return None if value is None else int(value * (1 << 20))
