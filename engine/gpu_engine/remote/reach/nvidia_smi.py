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
import secrets
import time

from gpu_engine.common.clean import clean
from gpu_engine.devices.records import Device, Inventory, Sample, Snapshot
from gpu_engine.remote.reach import shell
from gpu_engine.remote.reach.channel import Unreachable
from gpu_engine.remote.reach.records import Host

FIELDS = ("index", "uuid", "name", "driver_version", "utilization.gpu", "memory.used",
          "memory.total", "temperature.gpu", "power.draw", "power.limit")
ABSENT = "there is no nvidia-smi there either"
_PLACES = ("/usr/bin", "/usr/local/bin", "/usr/lib/wsl/lib", "/opt/bin", "/run/nvidia/driver/bin")
"""Where it is beside the PATH, which is short for a shell that nobody logged in to."""
_SECONDS = 25.0
_MOST = 64 << 10
_MOST_GPUS = 128
_BIGGEST = 1 << 50


class NotSeen(Exception):
    """Why there is no look, in words."""


def query(host: Host) -> tuple[Inventory, Snapshot]:
    """The GPUs of `host`, and how they are. Raises NotSeen."""
    word = secrets.token_hex(8)
    try:
        ran = shell.answer(host, word, script(word), _SECONDS, most=_MOST)
    except Unreachable as err:
        raise NotSeen(err.reason) from None
    if ran.code == 127:
        raise NotSeen(ABSENT)
    if ran.code != 0:
        said = next((line for line in ran.out.splitlines() if line.strip()), "")
        raise NotSeen(clean(said, 200) or "nvidia-smi does not answer there")
    return read(ran.out, time.time())


def script(word: str) -> bytes:
    """What a shell there is told: `word` first, then the table."""
    query = f"--query-gpu={','.join(FIELDS)} --format=csv,noheader,nounits"
    return (f"printf '%s\\n' {word}\nPATH=$PATH:{':'.join(_PLACES)}\n"
            f"command -v nvidia-smi >/dev/null 2>&1 || exit 127\n"
            f"exec nvidia-smi {query}\n").encode()


def read(text: str, taken: float) -> tuple[Inventory, Snapshot]:
    """The table as records. What is no line of it is passed over. Raises NotSeen where nothing of
    it is one."""
    samples: dict[str, Sample] = {}
    driver = None
    for cells in csv.reader(text.splitlines(), skipinitialspace=True):
        gpu = _gpu(cells, taken)
        if gpu is not None and len(samples) < _MOST_GPUS:
            samples.setdefault(gpu.device.id, gpu)
            driver = driver or _known(cells[3])
    if not samples and text.strip():
        raise NotSeen(clean(text.strip().splitlines()[0], 200))
    devices = tuple(sample.device for sample in samples.values())
    return Inventory(devices, "nvidia-smi", driver=driver), Snapshot(taken, tuple(samples.values()))


def _gpu(cells: list[str], taken: float) -> Sample | None:
    if len(cells) != len(FIELDS) or not re.fullmatch("[0-9]{1,3}", cells[0]):
        return None
    index, uuid, name, _, util, used, total, heat, power, limit = cells
    size = _bytes(total)
    device = Device(str(int(index)), "gpu", _known(name) or "GPU", int(index), _known(uuid), size)
    share = _number(util)
    return Sample(device, None if share is None else share / 100, _bytes(used), size,
                  _number(heat), _number(power), _number(limit), taken=taken)


def _known(text: str) -> str | None:
    text = clean(text, 100).strip()
    return None if not text or text.startswith("[") or text == "N/A" else text


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < 1e7 else None


def _bytes(text: str) -> int | None:
    value = _number(text)
    return None if value is None or value * (1 << 20) > _BIGGEST else int(value * (1 << 20))
