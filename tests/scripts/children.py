"""Ranks that are children of torch's multiprocessing (`spawn`) or Python's (`fork`). The second
argument says how each rank but the first one fails (`fail` or `exit`), separated by commas."""
# ruff: noqa: T201

import multiprocessing
import sys

import quick  # noqa: F401
import show
import torch


def train(rank, how):
    torch.set_num_threads(1)
    import os

    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(1 + len(how))
    model = show.toy(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        loss = (model(torch.randn(16, 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank and step == 3:
            if how[rank - 1] == "exit":
                try:
                    raise KeyError("handled")
                except KeyError:
                    sys.exit(1)
            raise ValueError("rank one has had enough")
    if rank == 0:
        show.weights(model)


if __name__ == "__main__":
    way, how = sys.argv[1], sys.argv[2].split(",")
    if way == "spawn":
        torch.multiprocessing.spawn(train, (how,), nprocs=1 + len(how))
    else:
        context = multiprocessing.get_context(way)
        children = [context.Process(target=train, args=(rank, how))
                    for rank in range(1 + len(how))]
        for child in children:
            child.start()
            child.join()
        print([child.exitcode for child in children], flush=True)
        sys.exit(max(child.exitcode for child in children))
