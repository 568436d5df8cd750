"""A night in small: python -m bench night

A script that speaks the Model Context Protocol alone tries thirty learning rates on two CPU slots,
ten seconds each. One of its runs hangs and does not hear a stop, one crashes, one prints nothing.
In the middle its server is killed, and it starts another. In the end nothing may be left running,
and the best one has to be found. Prints what it took.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

RUNS, SECONDS, SLOTS = 30, 10, 2
HANGS, CRASHES, SILENT, SERVER_DIES = 7, 13, 21, 15
"""Which of the runs, from 0."""
BEST = 17
TRAIN = f"""
import signal, sys, time
number = int(sys.argv[2])
print("starting", flush=True)
if number == {HANGS}:
    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, signal.SIG_IGN)
    time.sleep(9999)
if number == {CRASHES}:
    raise ValueError("the loss is not what it was")
for step in range(9999):
    time.sleep(0.5)
    if number != {SILENT}:
        print(f"step {{step}} val: {{abs(number - {BEST}) + 1 / (step + 1):.4f}}", flush=True)
"""


class Agent:
    """Knows nothing but what the tools answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = self.longest = self.refused = 0
        self.ids: list[str] = []

    async def told(self, client: Any, name: str, **arguments: object) -> dict[str, Any]:
        """A tool's answer."""
        found = await client.call_tool(name, arguments)
        text = found.content[0].text
        self.calls, self.longest = self.calls + 1, max(self.longest, len(text.encode()))
        return json.loads(text)

    async def start(self, client: Any, until: int) -> None:
        """Put runs into the line, as fast as it lets us."""
        while len(self.ids) < until:
            number = len(self.ids)
            told = await self.told(
                client, "run", queue=True, devices=f"cpu:{number % SLOTS}",
                command=[sys.executable, "train.py", "--number", str(number)],
                metric=["val: (\\S+)"], set=["run.best=min:val", "run.grace=2"])
            if "errors" not in told:
                self.ids.append(told["id"])
                continue
            assert told["errors"][0]["what"] == "--max-runs", told
            self.refused += 1
            await asyncio.sleep(1)

    async def over(self, client: Any) -> list[dict[str, Any]]:
        """The rows of all runs, the best first, once none is live."""
        while (await self.told(client, "runs", filter="state:running"))["rows"] \
                or (await self.told(client, "queue"))["rows"]:
            await asyncio.sleep(1)
        return (await self.told(client, "runs", best="min:val", since="1h", n=50))["rows"]


async def night(home: Path) -> None:
    """Raises AssertionError where something is not as it has to be."""
    from mcp import Client, StdioServerParameters, stdio_client

    (home / "train.py").write_text(TRAIN)
    server = StdioServerParameters(
        command=str(Path(sys.executable).with_name("gpu-engine")), cwd=home,
        args=["mcp", "--allow", "run,stop", "--max-runs", "4", "--max-devices", str(SLOTS),
              "--limit", f"{SECONDS}s"],
        env={**os.environ, "GPU_PANEL_HOME": str(home / "home")})
    agent, began = Agent(home), time.monotonic()
    try:
        async with Client(stdio_client(server)) as client:
            await agent.start(client, SERVER_DIES)
            os.kill(next(pid for pid in _ours(home) if "mcp" in _words(pid)), signal.SIGKILL)
            await agent.told(client, "runs")
    except Exception as err:  # noqa: BLE001  however the SDK says that the server is gone
        sys.stdout.write(f"the server was killed: {type(err).__name__}\n")
    async with Client(stdio_client(server)) as client:
        await agent.start(client, RUNS)
        rows = await agent.over(client)
        took = time.monotonic() - began
        by_number = {agent.ids.index(row["id"]): row for row in rows}
        odd = [(await agent.told(client, "show", run=agent.ids[n]))["summary"]
               for n in (HANGS, CRASHES, SILENT)]
    assert sorted(by_number) == list(range(RUNS))
    assert rows[0]["id"] == agent.ids[BEST], rows[0]
    states = Counter(row["state"] for row in rows)
    assert states == {"completed": RUNS - 2, "failed": 2}, states
    while left := _ours(home):
        assert time.monotonic() < began + took + 20, [_words(pid) for pid in left]
        await asyncio.sleep(0.2)
    trained = sum(row["seconds"] for row in rows)
    sys.stdout.write("\n".join([
        f"{RUNS} runs in {took:.0f} s: {', '.join(f'{n} {s}' for s, n in states.items())}",
        f"the slots were in use for {trained / took / SLOTS:.0%} of the time",
        f"the best: run {BEST}, val {rows[0]['best']['value']}",
        f"{agent.calls} calls, {agent.refused} of them refused; the longest answer "
        f"{agent.longest:,} bytes", "nothing is left running", *odd, ""]))


def _ours(home: Path) -> list[int]:
    """The processes that have this home in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"GPU_PANEL_HOME={home}".encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def main() -> None:
    """Live through one."""
    with tempfile.TemporaryDirectory() as home:
        asyncio.run(night(Path(home)))
