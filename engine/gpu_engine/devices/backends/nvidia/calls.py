"""Calling the driver, and remembering which of its functions work for a device.

pynvml raises an exception whenever it has no answer. Here, a value that a device can't give is
None, a query that was refused is not repeated every second, the newer and older names of a function
are tried in order, and only errors of the whole device are raised, as `Trouble`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpu_engine.devices.backends.nvidia import codes

ASK_AGAIN_FIRST, ASK_AGAIN_AFTER = 2.0, 300.0
"""Seconds after which a refused query is tried again, at first and at most: a driver may refuse in
passing, and MIG or rights may change. In between they double."""


class Trouble(Exception):
    """The device, or the whole driver, can't be used. The text is for people."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(codes.error(code))


def code_of(error: Exception) -> int:
    """NVML's error code in an exception of pynvml's. `NVMLLibraryMismatchError`, raised for a
    function that the library lacks, carries none."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else codes.FUNCTION_NOT_FOUND


class Calls:
    """The queries about one device, or about the driver itself."""

    def __init__(self, nvml: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._refused: dict[str, tuple[float, float, int]] = {}
        """When it is tried again, the seconds until then, and NVML's code."""
        self._chosen: dict[str, str] = {}
        self.answered = 0
        """How many queries got a value since this was last set to 0."""
        self.last_error: int | None = None
        """NVML's code of the last error."""

    def query(self, function: str, *args: Any, names: tuple[str, ...] = (), key: str = "") -> Any:
        """Call `function` of pynvml, or the first of `names` that works, and return its answer.

        Returns None if there is no answer now. `key` names the query if one function, by its
        arguments, serves several. Raises `Trouble` for an error of the whole device.
        """
        key = key or function
        refused = self._refused.get(key)
        if refused is not None and self._clock() < refused[0]:
            return None
        chosen = self._chosen.get(key)
        code = codes.FUNCTION_NOT_FOUND
        for name in (chosen,) if chosen else (function, *names):
            try:
                answer = self._call(name, args)
            except Exception as error:  # noqa: BLE001  pynvml makes its classes at run time
                code = code_of(error)
            else:
                self._chosen[key] = name
                self._refused.pop(key, None)
                self.answered += 1
                return answer
            self.last_error = code
            if code in codes.TROUBLE:
                raise Trouble(code)
            if code not in codes.REFUSALS:
                return None  # a passing error: try again next time
        self._chosen.pop(key, None)
        wait = min(2 * refused[1], ASK_AGAIN_AFTER) if refused is not None else ASK_AGAIN_FIRST
        self._refused[key] = self._clock() + wait, wait, code
        return None

    def refuses(self, key: str) -> bool:
        """Whether the driver refused this query; False if it was not tried yet."""
        return key in self._refused

    def unsupported(self, key: str) -> bool:
        """Whether the driver said that this device does not support this query."""
        return key in self._refused and self._refused[key][2] == codes.NOT_SUPPORTED

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        base, _, version = name.partition("@")
        function = getattr(self._nvml, base, None)
        if function is None:  # an older pynvml
            raise self._nvml.NVMLError(codes.FUNCTION_NOT_FOUND)
        if version:  # "nvmlDeviceGetMemoryInfo@nvmlMemory_v2": the version is an argument
            return function(*args, version=getattr(self._nvml, version))
        return function(*args)
