"""How long starting takes: the command line, the panel's first frame, a rank's first step."""

from __future__ import annotations

import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time

RUNS = int(os.environ.get("BENCH_RUNS", "9"))


def command(*args: str, home: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", *args], env=os.environ | {"GPU_PANEL_HOME": home},
                   stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def first_frame(home: str) -> float:
    """Seconds from start until the devices pane's title is on the terminal."""
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 48, 160, 0, 0))
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "gpu_panel"], stdin=slave, stdout=slave,
                               stderr=slave, start_new_session=True,
                               env=os.environ | {"GPU_PANEL_HOME": home, "TERM": "xterm-256color"})
    os.close(slave)
    seen = b""
    try:
        while b"Devices" not in seen:
            ready, _, _ = select.select([master], [], [], 20)
            if not ready:
                sys.exit("the panel drew nothing")
            seen += os.read(master, 65536)
        return time.perf_counter() - began
    finally:
        process.terminate()
        while process.poll() is None:  # read what it writes as it ends
            if select.select([master], [], [], 0.1)[0]:
                try:
                    os.read(master, 65536)
                except OSError:
                    break
        process.wait()
        os.close(master)


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        for name, measure in (
            ("python -m sysconfig", lambda: command("sysconfig", home=home)),
            ("gpu-engine presets", lambda: command("gpu_engine", "presets", home=home)),
            ("gpu-engine plan ddp", lambda: command("gpu_engine", "plan", "ddp", "--devices",
                                                    "cpu:0", home=home)),
            ("gpu-panel, first frame", lambda: first_frame(home)),
        ):
            took = sorted(measure() for _ in range(RUNS))
            sys.stdout.write(f"{name:<24} median {statistics.median(took) * 1e3:6.0f} ms   "
                             f"({took[0] * 1e3:.0f} to {took[-1] * 1e3:.0f}, {RUNS} runs)\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
