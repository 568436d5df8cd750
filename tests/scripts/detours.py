"""Leaves the usual loop in every way, in an order drawn from a seed; arguments: the seed, and how
many times. "straight" as a third one: observed steps may not take the short way. Records what came
of each of them before the next, so that two runs can be compared line by line."""

import os
import random
import sys
import threading

import quick  # noqa: F401
import show
import torch

here = sys.modules.get("_gpu_panel.observe.install")
if here is not None:
    # What is recorded is written here after each way, and never by the thread in the middle of one.
    sys.modules["_gpu_panel.observe.recorder"].ScriptRecorder._look_and_write = lambda rec: None
if here is not None and sys.argv[3:] == ["straight"]:
    sys.modules["_gpu_panel.observe.short_way"].ShortWay.open = lambda *given: None


class Sgd(torch.optim.SGD):
    """Its step is a step of torch's SGD within one of its own."""

    inside = staticmethod(lambda: None)

    def step(self, closure=None):
        self.inside()
        return super().step(closure)


draw = random.Random(int(sys.argv[1]))
model, other = show.toy(), show.toy(1)
usual = torch.optim.SGD(model.parameters(), lr=0.1)
adam = torch.optim.Adam(other.parameters(), lr=0.01)
nested = Sgd(model.parameters(), lr=0.05)
third = show.toy(2)
by_group = torch.optim.SGD([{"params": [p]} for p in third.parameters()], lr=0.05)
lbfgs = torch.optim.LBFGS(third.parameters(), lr=0.1, max_iter=3)
phases = []


def loss(of=model):
    return (of(torch.randn(4, 8)) - 1).square().mean()


def step(optimizer=usual, of=model):
    optimizer.zero_grad()
    one = loss(of)
    one.backward()
    optimizer.step()
    show.loss(one)


def look():
    phases.append(here and here.observer.rec and here.observer.rec.phase)


def in_a_thread(what):
    thread = threading.Thread(target=what)
    thread.start()
    thread.join()


def fail():
    raise ValueError("not this one")


def with_inside(what, optimizer=nested):
    """A step in which `what` happens."""
    optimizer.inside = what
    try:
        step(optimizer)
    except ValueError:
        pass
    finally:
        optimizer.inside = lambda: None


def add_up():
    for _ in range(draw.randint(1, 3)):
        loss().backward()
    step()


def weighted():
    both = torch.stack([loss(), loss()])
    both.backward(gradient=torch.tensor([1.0, 0.5]))
    usual.step()


def closure():
    def evaluate():
        usual.zero_grad()
        one = loss()
        one.backward()
        return one
    usual.step(evaluate)


def closure_of_several():
    def evaluate():
        lbfgs.zero_grad()
        one = loss(third)
        one.backward()
        look()
        return one
    lbfgs.step(evaluate)


def group_by_group():
    by_group.zero_grad()
    loss(third).backward()
    every = by_group.param_groups
    for group in every:
        by_group.param_groups = [group]
        by_group.step()
    by_group.param_groups = every


def pass_in_a_step():
    loss(other).backward()
    look()


def hooked_pass():
    one = loss()
    one.register_hook(lambda gradient: look())
    one.backward()
    look()


def slower():
    for group in usual.param_groups:
        group["lr"] *= 0.9
    step()


def no_closure():
    usual.zero_grad()
    loss().backward()
    usual.step(None)


def no_scalar():
    try:
        torch.stack([loss(), loss()]).backward()
    except RuntimeError:
        usual.step()


def fork():
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


def within_another_pass():
    """backward() on a number of its own, from inside a pass that torch.autograd.grad began."""
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            with torch.enable_grad():
                loss(other).backward()
            return gradient * 2

    x = torch.ones(1, requires_grad=True)
    torch.autograd.grad(Inner.apply(x), x)
    step()


WAYS = {
    "usual": (step, 12), "adam": (lambda: step(adam, other), 4), "add up": (add_up, 2),
    "weighted": (weighted, 1), "closure": (closure, 1), "slower": (slower, 2),
    "no scalar": (no_scalar, 1), "without a loss": (usual.step, 1), "fork": (fork, 1),
    "keywords": (lambda: torch.autograd.backward(tensors=loss()), 1),
    "a pass alone": (lambda: loss().backward(), 1),
    "nested": (lambda: step(nested), 1), "fails": (lambda: with_inside(fail), 1),
    "fails in a thread": (lambda: in_a_thread(lambda: with_inside(fail)), 1),
    "a pass in a thread": (lambda: in_a_thread(lambda: loss().backward()), 1),
    "a step in a thread": (lambda: in_a_thread(step), 2),
    "a step in a thread in a step": (lambda: with_inside(
        lambda: in_a_thread(lambda: step(adam, other))), 1),
    "a fork in a step": (lambda: with_inside(fork), 1),
    "a pass in a step": (lambda: with_inside(pass_in_a_step), 1),
    "a step of another in a step": (lambda: with_inside(adam.step), 2),
    "closure of several": (closure_of_several, 1), "group by group": (group_by_group, 2),
    "hooked pass": (hooked_pass, 2), "no closure": (no_closure, 2),
    "within another pass": (within_another_pass, 1),
}
again, long, usually = 0, 0, {"usual", "no closure"}
before = ""
for way in draw.choices(list(WAYS), [often for _, often in WAYS.values()], k=int(sys.argv[2])):
    stepped = here and here.observer.stepped
    WAYS[way][0]()
    if here is not None:
        if way in usually and before in usually:
            again += 1
            long += here.observer.stepped > stepped
        look()
        here.observer.rec.metric({"way": len(way)})  # ends the span of events
        here.observer.rec.settled_step()
    before = way
show.weights(model)
show.weights(other)
if here is not None:
    (here.observer.run / "seen").write_text(f"{again} {long} {' '.join(phases)}")
