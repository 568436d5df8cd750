"""The recorder's thread tells the CUDA runtime to keep its calls out of other threads' captures.

A stand-in for the runtime library is loaded in the way torch's CUDA build loads the real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ...training import ranks

RUNTIME = """
#include <sys/syscall.h>
#include <unistd.h>
#include <stdio.h>
int cudaThreadExchangeStreamCaptureMode(int *mode) {
    printf("thread %ld mode %d\\n", syscall(SYS_gettid), *mode); fflush(stdout);
    *mode = 0;
    return 0;
}
"""
RANK = """
import ctypes, os, sys, threading
from pathlib import Path
from gpu_engine.worker.rank import record_writer, recorder
import torch
begun = []
def say(*words):  # a line at once: two threads print
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
torch.cuda.is_initialized = lambda: bool(begun)
record_writer.exclude_thread()                       # CUDA is not in use: nothing to say
ticks = threading.Semaphore(0)
rec = recorder.Recorder(Path(sys.argv[1]))
rec.watches.append(lambda: (ticks.release(), say("tick", threading.get_native_id())))
rec.begin()
ticks.acquire()
if len(sys.argv) > 2:
    ctypes.CDLL(sys.argv[2])
say("begun")
begun.append(1)
for _ in range(3):
    ticks.acquire()
rec.close()
"""


def run(tmp_path: Path, *library: str) -> list[list[str]]:
    program, log = tmp_path / "rank.py", tmp_path / "log"
    program.write_text(RANK)
    rank = ranks.zygote().start([str(tmp_path / "r.jsonl"), *library], dict(os.environ), log,
                                program)
    assert rank.wait() == 0, log.read_text()
    return [line.split() for line in log.read_text().splitlines()]


def test_the_thread_leaves_captures_alone_once_cuda_is_in_use(tmp_path: Path) -> None:
    compiler = next(c for c in ("cc", "gcc", "clang") if shutil.which(c))
    library = tmp_path / "libcudart.so.13"
    source = tmp_path / "runtime.c"
    source.write_text(RUNTIME)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    said = run(tmp_path, str(library))
    assert {words[0] for words in said} == {"tick", "begun", "thread"}  # no error
    (told,) = [words for words in said if words[:1] == ["thread"]]  # once
    assert said.index(told) > said.index(["begun"])
    threads = {words[1] for words in said if words[0] == "tick"}
    assert told[2:] == ["mode", "2"]
    assert {told[1]} == threads


def test_a_torch_without_the_runtime_library_works(tmp_path: Path) -> None:
    assert all(words[0] in ("tick", "begun") for words in run(tmp_path))
