"""Starts ranks quickly: imports torch once, then forks a process for each rank.

Reads JSON objects ({"number", "argv", "env", "log", "program"}), one a line, and answers {"number",
"pid"}; when that process has ended, it writes {"number", "code"}. A `program` is a Python file to
run instead of a rank. Ends, with its ranks, when its input ends.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import sys
import traceback
from collections.abc import Callable, MutableMapping


def serve() -> None:
    gc.disable()
    import torch._dynamo

    from gpu_engine.training import session  # noqa: F401
    from gpu_engine.worker import with_torch  # noqa: F401
    from gpu_engine.worker.start import main

    torch.set_num_threads(1)
    gc.freeze()  # the garbage collector of a rank would write to all these pages, and so copy them
    gc.enable()
    pending = b""
    numbers: dict[int, int] = {}  # of the living processes, by pid
    while True:
        ready, _, _ = select.select([0], [], [], 0.01)
        if ready:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = spawn(order, main)
                numbers[pid] = order["number"]
                say({"number": order["number"], "pid": pid})
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            say({"number": numbers.pop(pid), "code": os.waitstatus_to_exitcode(status)})


def spawn(order: dict, main: Callable[[list[str], MutableMapping[str, str]], int]) -> int:
    """The pid of a new process for `order`."""
    def run() -> int:
        program = order.get("program")
        if program is None:
            return main(order["argv"], os.environ)
        sys.argv = [program, *order["argv"]]
        runpy.run_path(program, run_name="__main__")
        return 0

    return fork(run, order["env"], order["log"])


def fork(run: Callable[[], int], env: dict[str, str], log: str | None = None) -> int:
    """The pid of a new process that leads a session and ends with the exit status that `run()`
    returns. It has nothing open but its output, which goes to the file `log` (None: where this
    process writes)."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        gc.freeze()  # what the parent had is not collected here: that would close our files
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, 1024)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if log is not None:
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(file, 1)
            os.dup2(file, 2)
        os.closerange(3, 1024)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        for name in [n for n in os.environ if n not in env]:
            del os.environ[name]
        os.environ.update(env)
        code = run()
    except SystemExit as err:
        code = err.code if isinstance(err.code, int) else int(err.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def say(what: dict) -> None:
    os.write(3, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    # Answers have a descriptor of their own, as anybody may print to 1 and 2.
    os.dup2(1, 3)
    os.dup2(2, 1)
    serve()
