"""Starts ranks quickly: imports torch once, then forks a process for each rank.

Any number of test processes connect to the abstract Unix socket that is named as its argument. It
reads JSON objects ({"number", "argv", "env", "log", "program"}), one a line, and answers {"number",
"pid"}; when that process has ended, it writes {"number", "code"}. A `program` is a Python file to
run instead of a rank. It kills what a connection has started when that ends, and ends with the
last one; where another process has the socket, it ends at once.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, MutableMapping
from multiprocessing import util
from pathlib import Path

MUTANTS = "mutmut" in sys.modules
"""Whether `make mutants` runs the tests: this is then a fork of the test's process, which has the
fault, and its ranks tell what of the code they have reached."""


class Client:
    """A test process."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.living: dict[int, tuple[int, dict]] = {}
        """Pid and order of each of its living processes, by the file that tells its end."""
        self._rest = b""

    def fileno(self) -> int:
        return self.connection.fileno()

    def orders(self) -> list[dict] | None:
        """The orders that have arrived; None if it has gone."""
        try:
            data = self.connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def say(self, what: dict) -> None:
        with contextlib.suppress(OSError):  # it has gone, which `orders` notices
            self.connection.sendall(json.dumps(what).encode() + b"\n")


def imported() -> Callable[[list[str], MutableMapping[str, str]], int]:
    """What a rank runs, with all that it imports."""
    import torch._dynamo

    from gpu_engine.training import session  # noqa: F401
    from gpu_engine.worker import check  # noqa: F401
    from gpu_engine.worker.start import main

    torch.set_num_threads(1)
    return main


def serve(listener: socket.socket) -> None:
    gc.disable()
    main = imported()
    gc.freeze()  # the garbage collector of a rank would write to all these pages, and so copy them
    gc.enable()
    if MUTANTS:
        hits().clear()
    clients: list[Client] = []
    while True:
        ends = [end for client in clients for end in client.living]
        ready, _, _ = select.select([listener, *clients, *ends], [], [])
        for found in ready:
            if isinstance(found, int):  # an end: see `reap`
                continue
            if found is listener:
                clients.append(Client(listener.accept()[0]))
                continue
            orders = found.orders()
            for order in orders or ():
                pid = spawn(order, main)
                found.living[os.pidfd_open(pid)] = pid, order
                found.say({"number": order["number"], "pid": pid})
            if orders is None:
                clients.remove(found)
                for end, (pid, _) in found.living.items():
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    os.close(end)
                found.connection.close()
                if not clients and not select.select([listener], [], [], 0)[0]:
                    return
        reap(clients)


def reap(clients: list[Client]) -> None:
    """Tell each client which of its processes have ended."""
    for client in clients:
        for end, (pid, order) in list(client.living.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del client.living[end]
                os.close(end)
                answer = {"number": order["number"], "code": os.waitstatus_to_exitcode(status)}
                with contextlib.suppress(OSError):
                    answer["reached"] = reached(order, pid).read_text().split()
                client.say(answer)


def spawn(order: dict, main: Callable[[list[str], MutableMapping[str, str]], int]) -> int:
    """The pid of a new process for `order`."""
    return fork(lambda: work(order, main), order["env"], order["log"])


def work(order: dict, main: Callable[[list[str], MutableMapping[str, str]], int]) -> int:
    """Do what is ordered, in this process; the exit status."""
    program = order.get("program")
    try:
        if program is None:
            return main(order["argv"], os.environ)
        sys.argv = [program, *order["argv"]]
        runpy.run_path(program, run_name="__main__")
        return 0
    finally:
        if MUTANTS:
            reached(order, os.getpid()).write_text(" ".join(hits()))


def reached(order: dict, pid: int) -> Path:
    """Where a process tells what of the mutated code it has reached."""
    return Path(f"{order['log']}-{pid}")


def hits() -> set[str]:
    """The mutated functions that this process has reached so far."""
    return importlib.import_module("mutmut.state").state()._stats


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
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        for name in [n for n in os.environ if n not in env]:
            del os.environ[name]
        os.environ.update(env)
        code = run()
    except SystemExit as err:
        code = err.code if isinstance(err.code, int) else int(err.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        util._exit_function()  # as at the end of any Python: data workers go, and their folder
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(name: str) -> int:
    """Serve at the socket of that name."""
    with socket.socket(socket.AF_UNIX) as here:
        try:
            here.bind("\0" + name)
        except OSError:
            return 0
        here.listen(64)
        serve(here)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
