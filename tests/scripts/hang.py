"""Two ranks over gloo, with one of the faults by which ranks wait for each other, or with none."""

import ctypes
import os
import sys
import threading
import time
from datetime import timedelta

import quick  # noqa: F401
import torch
import torch._prims.rng_prims
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

fault = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=float((sys.argv[2:] or [600])[0])))
rank = dist.get_rank()
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x, both=True):
        return self.a(x).mean() + (self.b(x).mean() if both else 0)


model = nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=0.001)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def step(both=True):
    optimizer.zero_grad()
    model(torch.randn(8, 64), both).backward()
    optimizer.step()


def spin():
    while True:  # a third of the time, to leave the cores to others
        for _ in range(100_000):
            time.monotonic()
        time.sleep(0.01)


def checkpoint():
    if rank == 0:
        dist.barrier()


def read():
    """A wait that only SIGKILL interrupts, as for a disk that has gone: for a process below, which
    begins with opening a pipe to which nobody writes."""
    libc = ctypes.CDLL(None)
    os.mkfifo(f"pipe-{rank}")
    actions = ctypes.create_string_buffer(1 << 10)
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 0, f"pipe-{rank}".encode(), os.O_RDONLY, 0)
    words = (ctypes.c_char_p * 2)(b"true", None)
    libc.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, words, None)


taken = threading.Lock()
taken.acquire()


def locked():
    taken.acquire()


class Deadlock(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        if i == 39 and rank == 1:
            taken.acquire()
        return torch.zeros(1)


class Last:
    """What comes after everything else: native code that is too late for the interpreter's end, as
    gloo's threads may be."""

    def __del__(self, abort=os.abort):
        abort()


if fault == "aborted" and rank == 1:
    last = Last()
for _ in range(20):
    step()
if fault == "loader":
    for _ in DataLoader(Deadlock(), num_workers=1):
        step()
if fault == "size" and rank == 0:
    dist.all_reduce(torch.ones(3))
if fault == "barrier":
    checkpoint()
if fault == "loop" and rank == 1:
    spin()
if fault == "read" and rank == 1:
    read()
if fault == "lock" and rank == 1:
    trains = threading.Thread(target=locked)
    trains.start()
    trains.join()
if fault == "recv" and rank == 1:
    dist.recv(torch.ones(1), 0)
if fault == "left" and rank == 1:
    sys.exit()
if fault == "gone" and rank == 1:
    os._exit(0)
if fault == "aborted":
    try:
        if rank == 1:
            raise ValueError("of a single batch")
        step()
    except ValueError:
        pass
for _ in range(20):
    step(both=fault != "unused" or rank == 0)
if fault == "aborted" and rank == 1:
    dist.destroy_process_group()
