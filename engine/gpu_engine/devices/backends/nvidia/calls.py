"""Asking the driver, and remembering which questions it answers.

pynvml raises an exception for anything that it can't answer. Here a value that a device can't give
is None, a question that was refused is not repeated each second, the newer and older names of one
function are tried in order, and errors of the whole device are raised as `Trouble`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpu_engine.devices.backends.nvidia import words

ASK_AGAIN_AFTER = 300.0
"""Seconds after which a refused question is tried once more (MIG switched, rights changed)."""


class Trouble(Exception):
    """The device, or the driver as a whole, can't be used; the text is for people."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(words.error(code))


def code_of(error: Exception) -> int:
    """NVML's number of an exception of pynvml's; an unversioned call that the library lacks
    raises `NVMLLibraryMismatchError`, which carries none."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else words.FUNCTION_NOT_FOUND


class Calls:
    """The questions about one device (or about the driver itself)."""

    def __init__(self, nvml: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._refused: dict[str, float] = {}
        self._codes: dict[str, int] = {}
        self._chosen: dict[str, str] = {}
        self.answered = 0
        """How many questions got a value since it was last set to 0."""
        self.last_error: int | None = None

    def ask(self, question: str, *args: Any, names: tuple[str, ...] = (), key: str = "") -> Any:
        """The answer of `question` (a pynvml function), or of the first of `names` that works.

        `key` names the question where one function answers several, by its arguments. None: not
        known now. Raises `Trouble` for an error of the whole device.
        """
        key = key or question
        refused = self._refused.get(key)
        if refused is not None and self._clock() - refused < ASK_AGAIN_AFTER:
            return None
        chosen = self._chosen.get(key)
        code = words.FUNCTION_NOT_FOUND
        for name in (chosen,) if chosen else (question, *names):
            try:
                answer = self._call(name, args)
            except Exception as error:  # noqa: BLE001  pynvml makes its classes at run time
                code = code_of(error)
            else:
                self._chosen[key] = name
                self._refused.pop(key, None)
                self._codes.pop(key, None)
                self.answered += 1
                return answer
            self.last_error = code
            if code in words.TROUBLE:
                raise Trouble(code)
            if code not in words.REFUSALS:
                return None  # a passing error: ask again next time
        self._chosen.pop(key, None)
        self._refused[key], self._codes[key] = self._clock(), code
        return None

    def refuses(self, key: str) -> bool:
        """Whether the driver declined this question; False where it was not asked yet."""
        return key in self._refused

    def unsupported(self, key: str) -> bool:
        """Whether the driver said that this device has no such thing."""
        return self._codes.get(key) == words.NOT_SUPPORTED

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        base, _, version = name.partition("@")
        function = getattr(self._nvml, base, None)
        if function is None:  # an older pynvml
            raise self._nvml.NVMLError(words.FUNCTION_NOT_FOUND)
        if version:  # "nvmlDeviceGetMemoryInfo@nvmlMemory_v2": the version is an argument
            return function(*args, version=getattr(self._nvml, version))
        return function(*args)
