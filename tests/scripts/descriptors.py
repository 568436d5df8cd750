"""Does with file descriptors what daemons do: closes all that it finds, and opens files of its own,
which get the numbers that have become free. Prints what is in them at the end."""
# ruff: noqa: T201, SIM115, PTH123

import os
import sys
import tempfile
import time

folder, how = tempfile.mkdtemp(), sys.argv[1]
if how == "stdout":
    os.close(1)
import quick  # noqa: E402, F401
import show  # noqa: E402
import torch  # noqa: E402

if how == "stdout":
    sys.stdout = open(f"{folder}/out", "w+")
    print("number", sys.stdout.fileno())
model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    show.loss(loss)


step()
os.closerange(3, {"low": 256, "all": 4096, "stdout": 3}[how])
own = [open(f"{folder}/{i}", "wb+", buffering=0) for i in range(1000 if how == "all" else 12)]
print("lowest", own[0].fileno())
for _ in range(4):
    step()
    time.sleep(0.3)
    for file in own:
        file.write(b"own ")
for file in own:
    file.seek(0)
assert {file.read() for file in own} == {b"own " * 4}
if how == "stdout":
    sys.stdout.seek(0)
    sys.stderr.write(sys.stdout.read())
sys.stderr.write("it fails plainly\n")
sys.exit(1)
