"""Prints the warnings and errors of each function that the hook wraps, which name their callers,
and the operations that a mode sees."""
# ruff: noqa: T201, BLE001

import traceback
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode

warnings.simplefilter("always")


def attempt(name, function, *args, **kwargs):
    print("---", name)
    try:
        function(*args, **kwargs)
    except BaseException:
        traceback.print_exc()


class Warns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        for level in range(1, 7):
            warnings.warn(f"level {level}", stacklevel=level)
        return grad


class Own(torch.amp.GradScaler):
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)

    def scale(self, outputs):
        warnings.warn("own scale", stacklevel=2)
        return super().scale(outputs)

    def step(self, optimizer):
        warnings.warn("own step", stacklevel=2)
        return super().step(optimizer)


class Further(Own):
    def step(self, optimizer):
        warnings.warn("further", stacklevel=3)
        return super().step(optimizer)


class Counts(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        print("mode", func)
        return func(*args, **(kwargs or {}))


class BadFile:
    def write(self, data):
        warnings.warn("writes", stacklevel=3)
        raise OSError("no room")


class BadData(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, at):
        raise KeyError(at)


class BadSampler(torch.utils.data.Sampler):
    def __init__(self):
        pass

    def __iter__(self):
        warnings.warn("iterates", stacklevel=3)
        raise LookupError("no order")


def closure():
    for level in range(1, 7):
        warnings.warn(f"closure {level}", stacklevel=level)
    raise ArithmeticError("in the closure")


def subclass():
    class Bad(torch.amp.GradScaler, unknown=1):
        pass


w = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([w], lr=0.1)
for scaler in (torch.amp.GradScaler, torch.cuda.amp.GradScaler, Own, Further):
    attempt("enabled without a GPU", scaler)
attempt("wrong argument", torch.amp.GradScaler, nonsense=1)
attempt("a subclass", subclass)
scaler = Further("cpu")
attempt("backward", Warns.apply(w).sum().backward)
attempt("backward of a vector", (w * 2).backward)
attempt("twice", torch.autograd.backward, w.sum(), grad_variables=torch.ones(()))
attempt("scale", scaler.scale, "text")
attempt("scaled", scaler.scale(w.sum()).backward)
attempt("step", scaler.step, optimizer)
scaler.update()
attempt("step twice", lambda: (scaler.scale(w.sum()).backward(), scaler.step(optimizer),
                               scaler.step(optimizer)))
attempt("closure", optimizer.step, closure)
attempt("save", torch.save, w, BadFile())
attempt("iterate", lambda: next(iter(torch.utils.data.DataLoader(BadData()))))
attempt("order", lambda: iter(torch.utils.data.DataLoader(BadData(), sampler=BadSampler(),
                                                          num_workers=1)))
with Counts():
    for _ in range(2):
        optimizer.zero_grad()
        w.sum().backward()
        optimizer.step()
