"""A training loop with a loader, of one rank or several, that the first argument makes slow in some
way: `loader`, `rank` (a sleep in the forward pass), `save`, `disk` (one that sleeps), `eval`; or
not: `nothing`, `item` (a loss that is read in each step). With a second argument it is that rank
alone."""

import os
import sys
import tempfile
import time

import quick  # noqa: F401
import torch
from torch.utils.data import DataLoader, Dataset

fault, world = sys.argv[1], int(os.environ.get("WORLD_SIZE", "1"))
rank = int(os.environ.get("RANK", "0"))
mine = len(sys.argv) == 2 or int(sys.argv[2]) == rank
torch.set_num_threads(1)
torch.manual_seed(0)


class Data(Dataset):
    def __len__(self):
        return 80

    def __getitems__(self, indices):
        if fault == "loader" and mine:
            time.sleep(0.08)
        return [(torch.ones(64), i % 10) for i in indices]


class Disk:
    """A file on a disk that has to wake up."""

    def write(self, data):
        return len(data)

    def flush(self):
        time.sleep(0.2)


model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
if world > 1:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
data, held_out = DataLoader(Data(), batch_size=8), DataLoader(Data(), batch_size=8)
for _epoch in range(10):
    for x, y in data:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        time.sleep(0.04)
        if fault == "rank" and mine:
            time.sleep(0.08)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fault == "item":
            loss.item()
        if fault == "save":
            with tempfile.TemporaryFile() as file:
                torch.save({"model": model.state_dict(), "more": torch.zeros(3_000_000)}, file)
    if fault == "disk":
        torch.save(model.state_dict(), Disk())
    if fault == "eval":
        model.eval()
        for x, _ in held_out:
            with torch.no_grad():
                model(x)
                time.sleep(0.12)
        model.train()
if world > 1:
    time.sleep(0.3)  # gloo's threads still release what they hold: see ddp.py
    torch.distributed.destroy_process_group()
