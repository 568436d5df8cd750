"""Ends, prints and forks in unusual ways; the first argument lists them, separated by commas."""
# ruff: noqa: T201, PTH208

import os
import signal
import sys

how = sys.argv[1].split(",")
print("path", sys.path[1:], flush=True)
if "sitecustomize" in how:
    import sitecustomize

    print(sitecustomize.MARK, sitecustomize.__file__, flush=True)
if "no torch" in how:
    import threading

    print(sorted(sys.modules), threading.active_count(), len(os.listdir("/proc/self/task")),
          sys.excepthook, sys.argv)
    sys.exit(7)

if "chdir" in how:
    os.chdir("/")
import quick  # noqa: E402, F401
import show  # noqa: E402
import torch  # noqa: E402

model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    show.loss(loss)


def workers():
    """A DataLoader's, forked."""
    import torch._prims.rng_prims  # torch.Generator needs it, and `quick` leaves it out

    for x in torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=8, num_workers=2):
        loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show.loss(loss)


for i in range(5):
    step()
    if "binary" in how:
        sys.stdout.buffer.write(bytes(range(256)) + b"\n")
        sys.stdout.flush()
    if i == 2 and "fork" in how:
        pid = os.fork()
        if pid == 0:
            for _ in range(3):
                torch.randn(3).sum()
            sys.exit(5)
        print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    if i == 2 and "threads" in how:
        import threading

        print([t.name for t in threading.enumerate()], sys.path[1:], [
            m for m in sys.modules if "gpu_engine" in m], sys.meta_path[0].__class__.__name__,
            type(torch.__spec__.loader).__name__, vars(torch.__spec__.loader).keys(), flush=True)
if "workers" in how:
    workers()
if "raise" in how:
    try:
        torch.zeros(3).sum().backward()  # of no graph
    finally:
        print("cleaned up", flush=True)
elif "exit" in how:
    sys.exit(3)
elif "at_once" in how:
    os._exit(0)
elif "kill" in how:
    os.kill(os.getpid(), signal.SIGKILL)
elif "hook" in how:
    sys.excepthook = lambda *about: print("mine:", about[0].__name__, flush=True)
    raise KeyError("theirs")
if "log" in how:
    import gpu_engine

    gpu_engine.log(accuracy=0.93, tensor=torch.tensor(2.5), step=1, huge=10**400, **{"": 5.0})
    gpu_engine.log(**{f"value{i}": i for i in range(40)})
if "helper" in how:
    import subprocess

    env = os.environ | {"RANK": "0"}
    subprocess.run([sys.executable, __file__, "chdir"], env=env, check=True)
    step()
show.weights(model)
