"""Put each listed fault into a copy of the code, run its tests, and report the faults they miss.

    make mutants                          # or: python -m tests.mutants [WORDS …] [--jobs N]

WORDS select the mutations whose function or description contains one of them. The checkout is never
changed. Exit status 1: the tests noticed fewer than GOAL %; 2: the tests fail without any fault, or
a mutation no longer fits the code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from .listed import ROOT, Mutation, Stale, read

GOAL = 90
"""The percentage of mutations that tests must notice."""
_LEFT_OUT = (".venv", ".git", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis", "build",
             "dist")
_ONE_TEST = 100  # seconds: a fault may make ranks wait for each other
_ALL_TESTS = 500


def main() -> int:
    args = argparse.ArgumentParser(prog="python -m tests.mutants")
    args.add_argument("words", nargs="*")
    args.add_argument("--jobs", type=int, default=2)
    asked = args.parse_args()
    chosen = [m for m in read() if not asked.words
              or any(w.lower() in f"{m.at} {m.why}".lower() for w in asked.words)]
    try:
        for mutation in chosen:
            mutation.apply(ROOT)
    except Stale as err:
        say(str(err))
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-panel-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(asked.jobs):
            copy = Path(folder, str(number))
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))
            copies.put(copy)
        return _run(chosen, copies, asked.jobs)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _run(chosen: list[Mutation], copies: SimpleQueue[Path], jobs: int) -> int:
    copy = copies.get()
    tests = list(dict.fromkeys(t for m in chosen for t in m.tests))
    code, said = run_tests(copy, tests, limit=4 * _ALL_TESTS)
    copies.put(copy)
    if code != 0:
        say(f"{said}\nthe tests fail without any fault")
        return 2

    def judge(mutation: Mutation) -> tuple[Mutation, bool]:
        copy = copies.get()
        began = time.monotonic()
        path = copy / mutation.file
        whole = path.read_text()
        try:
            path.write_text(mutation.apply(copy))
            code, said = run_tests(copy, mutation.tests)
        finally:
            path.write_text(whole)
            copies.put(copy)
        if code not in (0, 1, None):
            raise SystemExit(f"pytest ended with status {code} for {mutation.why!r}:\n{said}")
        word = {0: "SURVIVED", 1: "noticed", None: "noticed (hung)"}[code]
        by = next((line.split()[1].rpartition("/")[2] for line in said.splitlines()
                   if line.startswith(("FAILED ", "ERROR "))), "")
        say(f"{word:9} {time.monotonic() - began:4.0f} s  {mutation.at}: {mutation.why}"
            + (f"  [{by}]" if by else ""))
        return mutation, code != 0

    with ThreadPoolExecutor(jobs) as pool:
        judged = list(pool.map(judge, chosen))
    return _sum_up(judged)


def _sum_up(judged: list[tuple[Mutation, bool]]) -> int:
    say("")
    rooms: dict[str, list[bool]] = {}
    for mutation, noticed in judged:
        rooms.setdefault(mutation.module, []).append(noticed)
    for module, found in rooms.items():
        say(f"{module:34} {sum(found):3} of {len(found)}")
    for mutation, noticed in judged:
        if not noticed:
            say(f"survived: {mutation.at}: {mutation.why}"
                + (f"\n    {mutation.survives}" if mutation.survives else "  (not explained)"))
    noticed = sum(n for _, n in judged)
    score = 100 * noticed / max(len(judged), 1)
    say(f"{noticed} of {len(judged)} noticed: {score:.0f} %, goal {GOAL} %")
    return 0 if score >= GOAL else 1


def run_tests(copy: Path, tests: list[str] | tuple[str, ...], limit: float = _ALL_TESTS
              ) -> tuple[int | None, str]:
    """Run the tests of a copy. Returns (pytest's exit status, its output), or None if they hung.

    They run in a process forked from this one, which has already imported torch.
    """
    log = copy / "mutant.log"
    pid = os.fork()
    if pid == 0:
        _child(copy, tests, log)
    deadline = time.monotonic() + limit
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None, "hung"
        time.sleep(0.05)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), log.read_text(errors="replace")


def _child(copy: Path, tests: list[str] | tuple[str, ...], log: Path) -> None:
    """Run pytest in this process, on the copy alone."""
    code = 3
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(copy)
        paths = [str(copy / "engine"), str(copy / "tui")]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "mutants",
                       "OMP_NUM_THREADS": "1"}
        sys.dont_write_bytecode = True
        sys.path[:] = [*paths, *(p for p in sys.path if Path(p or ".").resolve() not in (
            ROOT, ROOT / "engine", ROOT / "tui"))]
        for name in [n for n in sys.modules if n.partition(".")[0] in (
                "tests", "gpu_engine", "gpu_panel")]:
            del sys.modules[name]
        import gpu_engine

        assert Path(gpu_engine.__file__).is_relative_to(copy), gpu_engine.__file__
        import pytest

        code = int(pytest.main([
            "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", f"timeout={_ONE_TEST}",
            *(f"tests/{test}" for test in tests)]))
    except BaseException as err:  # noqa: BLE001 - never go on as a second runner
        say(f"{type(err).__name__}: {err}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    import torch._dynamo  # imported once, for all forked processes

    torch.set_num_threads(1)
    sys.exit(main())
