"""When a refused question is asked again. The driver is a stand-in with one function."""

from __future__ import annotations

from gpu_engine.devices.backends.nvidia.calls import ASK_AGAIN_AFTER, Calls
from gpu_engine.devices.backends.nvidia.codes import NOT_SUPPORTED


class Driver:
    """Refuses while `refuses`."""

    def __init__(self) -> None:
        self.refuses, self.asked, self.now = False, 0, 0.0

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int:
        self.asked += 1
        if self.refuses:
            raise Refusal
        return 54_000


class Refusal(Exception):
    value = NOT_SUPPORTED


def asked_for(driver: Driver, calls: Calls, seconds: int) -> list[int | None]:
    """The answers of so many seconds, one each."""
    found = []
    for _ in range(seconds):
        driver.now += 1.0
        found.append(calls.query("nvmlDeviceGetPowerUsage", None))
    return found


def test_what_was_refused_once_is_known_again_within_seconds():
    driver = Driver()
    calls = Calls(driver, lambda: driver.now)
    assert asked_for(driver, calls, 3) == [54_000] * 3
    driver.refuses = True
    assert asked_for(driver, calls, 1) == [None]
    driver.refuses = False
    assert asked_for(driver, calls, 3)[-1] == 54_000


def test_what_is_refused_for_good_is_asked_ever_more_rarely():
    driver = Driver()
    driver.refuses = True
    calls = Calls(driver, lambda: driver.now)
    assert set(asked_for(driver, calls, 600)) == {None}
    assert driver.asked < 12
    driver.refuses = False
    assert asked_for(driver, calls, int(ASK_AGAIN_AFTER) + 1)[-1] == 54_000
