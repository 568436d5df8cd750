"""gpu-engine's command line, called in the test's own process.

A process of its own costs some 0.3 s of a processor. Tests that look only at output and exit status
can do without; those that send signals, or start it in another environment, can't.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import traceback
from unittest import mock

from gpu_engine.cli import main


def called(*words: str) -> subprocess.CompletedProcess[str]:
    """Call it with these words. Returns what a process would have printed, and its exit status."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors, newline="")
                for errors in ("strict", "backslashreplace"))  # as a process has them
    code: int | str | None = 0
    with mock.patch.object(sys, "argv", ["gpu-engine", *words]), \
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except Exception:  # noqa: BLE001 - as of a process, its traceback is output
            traceback.print_exc()
            code = 1
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode())
    return subprocess.CompletedProcess(words, code if isinstance(code, int) else int(bool(code)),
                                       *said)
