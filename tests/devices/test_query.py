"""When a refused question is asked again. The driver is a stand-in with one function."""

from __future__ import annotations

from gpu_engine.devices.backends.nvml import AGAIN, Handle


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
    value = 3  # NVML_ERROR_NOT_SUPPORTED


def asked_for(driver: Driver, gpu: Handle, seconds: int) -> list[int | None]:
    """The answers of so many seconds, one each."""
    found = []
    for _ in range(seconds):
        driver.now += 1.0
        found.append(gpu.query("nvmlDeviceGetPowerUsage"))
    return found


def test_what_was_refused_is_asked_again_after_a_while():
    driver = Driver()
    gpu = Handle(driver, object(), lambda: driver.now)
    assert asked_for(driver, gpu, 3) == [54_000] * 3
    driver.refuses, driver.asked = True, 0
    assert set(asked_for(driver, gpu, 60)) == {None}
    assert driver.asked == 60 / AGAIN
    driver.refuses = False
    assert asked_for(driver, gpu, int(AGAIN) + 1)[-1] == 54_000
