"""DDP with torchrun's variables; with the argument `spawn` it starts two ranks itself."""

import os
import signal
import sys
import time

import quick  # noqa: F401
import show
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(rank, world, port=None):
    torch.set_num_threads(1)
    where = {} if port is None else {
        "init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": world}
    dist.init_process_group("gloo", **where)
    model = DistributedDataParallel(show.toy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(6):
        loss = (model(torch.randn(16, 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show.loss(loss, f"rank {rank} loss")
        if sys.argv[-1] == "fail" and rank == 1 and step == 3:
            raise ValueError("rank one has had enough")
        if sys.argv[-1] == "kill" and rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs out
    if rank == 0:
        show.weights(model)
    # gloo's threads release the Python objects of the last all-reduce a moment later; one that
    # comes too late for the interpreter aborts the process (seen with torch 2.13).
    time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "spawn" in sys.argv:
        import socket

        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        torch.multiprocessing.spawn(train, (2, port), nprocs=2)
    else:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
