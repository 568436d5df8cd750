"""Tells by bell, notification and toast that a run has ended or stalls, or a device is free."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_panel import theme
from gpu_panel.common.background import in_thread
from gpu_panel.common.errors import record
from gpu_panel.launch import row_keys
from gpu_panel.terminal.notice import notice

if TYPE_CHECKING:
    from gpu_engine.devices.availability import Steady
    from gpu_panel.alerts.news import News, RunsNews
    from gpu_panel.launch.device_source import DeviceSource
    from gpu_panel.launch.run_line import RunLine
    from gpu_panel.theme import ThemedApp

EVERY = 1.5
"""Seconds between two polls."""
_FIRST = 3.0
"""Seconds after the opening of the panel until the first."""
_NEWEST = 50
"""Runs that have ended, from the newest, of which a resume is noticed on any screen."""
_SHOWN_FOR = 12.0
"""Seconds for which a toast is shown."""


class Teller:
    """Looks every now and then, and tells. All but the looking happens in the event loop."""

    def __init__(self, app: ThemedApp, source: DeviceSource, chosen: bool | None = None) -> None:
        """`chosen`: whether the person's settings want it; None: as it was turned last."""
        self._app, self._source = app, source
        self._news: RunsNews | None = None
        self._lines: tuple[RunLine, ...] = ()
        self._steady: Steady | None = None
        """None before the first look at devices."""
        self._chosen = chosen

    def begin(self) -> None:
        self._app.set_timer(_FIRST, lambda: self._app.run_worker(
            self._follow(), group="tell", exit_on_error=False))

    @property
    def on(self) -> bool:
        """Whether the person wants bell and notifications."""
        if self._chosen is None:
            self._chosen = theme.read().get("tell") is not False
        return self._chosen

    def turn(self) -> bool:
        """Turn them on or off, also for the next start. Returns which. Raises OSError."""
        self._chosen = not self.on
        theme.keep("tell", lambda: self._chosen)
        return self._chosen

    def note_runs(self, lines: Sequence[RunLine]) -> None:
        """Take the runs as the list has read them."""
        self._lines = tuple(lines)

    async def _follow(self) -> None:
        told = ""
        while True:
            try:
                await self.poll()
            except Exception as err:  # noqa: BLE001  a folder may be readable again later
                if told != repr(err):
                    told = repr(err)
                    record(err)
            await asyncio.sleep(EVERY)

    async def poll(self) -> None:
        """Look once at runs and devices, and tell what is new."""
        lines, self._lines = self._lines, ()
        for news in await in_thread(lambda: self._read(lines)):
            self._notify_run(news)
        if self._source.wanted:
            await self._check_devices()

    def _read(self, lines: Sequence[RunLine]) -> list[News]:
        if self._news is None:
            from gpu_panel.alerts.news import RunsNews

            self._news = RunsNews()
        ended = [line.run for line in lines if not line.live][:_NEWEST]
        self._news.note([line.run for line in lines if line.live and line.state != "queued"],
                        [line.run for line in lines if line.state == "queued"] + ended)
        return self._news.poll()

    async def _check_devices(self) -> None:
        freedom = dict(await self._source.judge())
        for seen in self._source.hosts:
            freedom |= {row_keys.of(seen.host.name, key): found
                        for key, found in seen.freedom.items()}
        wanted = self._source.wanted
        if self._steady is None:
            from gpu_engine.devices.availability import Steady  # after the first frame

            self._steady = Steady()
        found = [key for key in self._steady.update(freedom)
                 if key in wanted or row_keys.ANY in wanted]
        for key in found:
            wanted.discard(key)
        if found:
            wanted.discard(row_keys.ANY)
            self._notify_devices(sorted(found))

    def _notify_run(self, news: News) -> None:
        from gpu_engine.notify import messages, watch

        if news.sweep is not None:
            self._notify(news.sweep.partition(": ")[0], news.sweep, good=news.good)
            return
        what = news.happened
        message = messages.of_run(what.event, what.state, what.progress, name=news.name,
                                  machine=socket.gethostname(), on=watch.where(news.run),
                                  why=what.why, now=time.time())
        shown = getattr(self._app.screen, "run_folder", None) == news.run
        self._notify(message.title, message.text, toast=not shown,
                     good=what.event == "finished" and not message.warnings)

    def _notify_devices(self, found: Sequence[str]) -> None:
        words = []
        for key in found:
            host, name = row_keys.split(key)
            words.append(f"{name} on {host}" if host is not None else name)
        several = len(words) > 1
        title = f"Device{'s' if several else ''} {', '.join(words)} {'are' if several else 'is'}" \
            " free"
        self._notify(title, f"{title}, and nobody has taken {'them' if several else 'it'} for some "
                     "seconds", good=True)

    def _notify(self, title: str, text: str, *, good: bool, toast: bool = True) -> None:
        if not self.on:
            return
        if toast:
            self._app.notify(text, title=title, markup=False, timeout=_SHOWN_FOR,
                             severity="information" if good else "warning")
        terminal = self._app.terminal
        if terminal is not None:
            terminal.send(notice(os.environ, title, text))
        else:
            self._app.bell()
