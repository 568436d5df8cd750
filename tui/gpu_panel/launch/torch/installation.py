"""An installation of torch that goes on beside the screen."""

from __future__ import annotations

import threading
from contextlib import closing

from gpu_engine.interpreters import own_torch
from gpu_engine.interpreters.own_torch import Offer, Progress
from gpu_panel.common.background import in_thread

_WAIT = 15.0
"""Seconds in which an installer has ended, and what it has written is taken away."""


class Installation:
    """It goes on while its dialog is closed, and ends with the panel."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.progress = Progress("", 0)
        """How far it is."""
        self.failure: Exception | None = None
        """Why it has failed."""
        self.over = False
        """Whether it has ended: well, if nothing has failed and it was not given up."""
        self.given_up = False
        """Whether the person has ended it."""
        self._stop = threading.Event()
        self._ended = threading.Event()

    async def run(self) -> None:
        """Install, and wait for it. What goes wrong is in `failure`."""
        try:
            await in_thread(self._install, name="panel-install-torch")
        except Exception as err:  # noqa: BLE001 - shown by whoever shows the installation
            self.failure = err
        self.over = True

    def _install(self) -> None:
        try:
            with closing(own_torch.install(self.offer, self._stop)) as steps:
                for progress in steps:
                    self.progress = progress
        finally:
            self._ended.set()

    def give_up(self) -> None:
        """End it; `run` returns soon after."""
        self.given_up = True
        self._stop.set()

    def give_up_at_once(self) -> None:
        """End it and wait for that. Blocks: for a panel that closes."""
        if not self.over:
            self.give_up()
            self._ended.wait(_WAIT)
