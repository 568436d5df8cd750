"""Tasks that do what others have done to this engine: none of it may cost the training."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from gpu_engine.training import checkpoint

from . import ranks
from .conftest import names, own_task
from .toy import Numbers


@pytest.mark.parametrize(("made", "rates"), [
    # The tensor is changed in place by its schedule: 0.5, 0.25, 0.166…
    ("torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5))", [0.5, 0.25, 0.5 / 3]),
    ("torch.optim.SGD(model.parameters(), lr=numpy.float32(0.5))", [0.5] * 3),
    ("Relative(model.parameters(), {'lr': None})", [None] * 3),
    ("Relative(model.parameters(), {})", [None] * 3),
])
def test_a_learning_rate_of_any_kind_is_recorded_and_saved(tmp_path, made, rates):
    body = f"""\
def optimizer(self, model, lr):
    import numpy
    class Relative(torch.optim.Optimizer):
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data -= 0.01 * p.grad
    return {made}
def schedule(self, optimizer, total_steps):
    if isinstance(optimizer.param_groups[0].get("lr"), torch.Tensor):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + s))
"""
    run = ranks.train(own_task(tmp_path / "run", body, params={"double": False}, size=24,
                           train={"steps": 3, "checkpoint_every": 1}))
    steps = ranks.read(run, 0, "step")
    assert [e["step"] for e in steps] == [1, 2, 3]
    assert [e["lr"] for e in steps] == [r if r is None else pytest.approx(r) for r in rates]
    assert names(run) == ["step-00000001", "step-00000002", "step-00000003"]


def test_a_forked_child_that_is_ended_does_not_end_the_run(tmp_path):
    """In one that is ended at once, nothing of our own may have run yet."""
    body = """\
def train_data(self):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
    self.end_a_child()
    return super().train_data()
def trouble(self, loss):
    self.end_a_child()
    return loss
def end_a_child(self):
    for number in range(9):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        assert child.exitcode == -signal.SIGTERM
"""
    run = ranks.train(own_task(tmp_path / "run", body, size=24, train={"steps": 3}))
    assert ranks.read(run, 0, "end")[-1]["outcome"] == "completed"


def test_a_forked_child_has_the_handlers_of_any_program(tmp_path):
    body = """\
def train_data(self):
    heard, say = os.pipe()
    if not os.fork():
        signal.raise_signal(signal.SIGUSR1)  # as from Slurm, to all processes: nothing happens
        found = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        os.write(say, repr((found == [signal.SIG_DFL, signal.default_int_handler], blocked,
                            signal.set_wakeup_fd(-1))).encode())
        os._exit(0)
    os.wait()
    assert os.read(heard, 999) == b"(True, set(), -1)"
    return super().train_data()
"""
    ranks.train(own_task(tmp_path / "run", body, size=24, train={"steps": 3}))


@pytest.mark.parametrize(("place", "handler"), [
    ("self.calls == 0", "lambda *_: sys.exit(0)"),  # before training
    ("self.calls == 1", "lambda *_: sys.exit(0)"),  # by something that the first step has imported
    ("self.calls == 1", "signal.SIG_IGN"),
    ("self.calls == 4", "lambda *_: None")])
def test_a_handler_of_the_tasks_own_does_not_cost_the_training(tmp_path, place, handler):
    body = f"""\
def set_it(self):
    if {place}:
        signal.signal(signal.SIGTERM, {handler})
def train_data(self):
    self.set_it()
    return super().train_data()
def trouble(self, loss):
    self.set_it()
    if self.calls == 9:
        os.kill(os.getpid(), signal.SIGTERM)
    return super().trouble(loss)
"""
    run = ranks.train(own_task(tmp_path / "run", body, size=24, train={"steps": 100_000},
                           params={"pause": 0.01}))
    end = ranks.read(run, 0, "end")[-1]
    assert end["outcome"] == "stopped"
    assert names(run) == [checkpoint.name_of(end["steps"])]
    if place != "self.calls == 4":
        assert "SIGTERM" in ranks.read(run, 0, "warning")[-1]["message"]


@pytest.mark.parametrize("fails", [False, True])
def test_files_that_a_task_leaves_open_are_written(tmp_path, fails):
    """As at the end of any Python: threads end, functions of atexit are called, files written."""
    body = f"""\
def train_data(self):
    global kept, rows, pool
    pool = ThreadPoolExecutor(1)  # whose thread waits for ever, if nobody tells it
    pool.submit(abs, 1).result()
    kept = open({str(tmp_path / "rows.csv")!r}, "w")
    rows = csv.writer(kept)
    return super().train_data()
def trouble(self, loss):
    rows.writerow([self.calls])
    if self.calls == 1:
        atexit.register(open({str(tmp_path / "atexit")!r}, "w").write, "called")
    if {fails} and self.calls == 3:
        raise ArithmeticError("as the test wants it")
    return loss
"""
    run = own_task(tmp_path / "run", body, size=24, train={"steps": 3})
    ranks.train(run, expect=int(fails), python=sys.executable)
    assert (tmp_path / "rows.csv").read_text().split() == ["1", "2", "3"]
    assert (tmp_path / "atexit").read_text() == "called"


def test_held_out_data_is_read_in_its_own_precision(tmp_path):
    """As training data is, and as in plain torch, where only the model computes in autocast."""
    body = """\
def eval_data(self):
    class Rotated(Numbers):
        def __getitem__(self, i):
            return self.x[i] @ torch.eye(6), self.y[i], i
    return Rotated(24, 6, 0.0, torch.float32)
def metrics(self, model, batch):
    x, y, numbers = batch
    assert model(x).dtype == torch.bfloat16
    return {"float32": float(x.dtype == torch.float32), "count": 1}
"""
    run = ranks.train(own_task(tmp_path / "run", body, size=24, params={"double": False},
                           train={"steps": 1}, amp={"dtype": "bf16"}))
    assert ranks.read(run, 0, "eval")[-1]["float32"] == 1


@pytest.mark.parametrize(("calls", "way", "accumulate"), [
    (1, "getattr(model, 'module', model)", 1),
    (4, "self.net", 2)])  # the last pass of two averages gradients, after a good step
def test_a_pass_around_ddp_is_refused(tmp_path, calls, way, accumulate):
    body = f"""\
def model(self):
    self.net = super().model()
    return self.net
def loss(self, model, batch):
    if model.training and self.calls >= {calls} - 1:
        with torch.no_grad():
            model(batch[0])  # no gradients pass here
        return super().loss({way}, batch)
    return super().loss(model, batch)
"""
    options = {"size": 24, "params": {"held_out": 10}, "accumulate": accumulate}
    run = ranks.train(own_task(tmp_path / "run", body, world=2, train={"steps": 9}, **options),
                      expect=1)
    for rank in range(2):
        (error,) = ranks.read(run, rank, "error")
        if rank == 1 and error["message"].startswith("the connection to rank 0 broke"):
            continue  # rank 0 has refused it and ended before this one went on
        assert "did not call the model that it is given" in error["message"]
        assert error["traceback"] == ""
        assert ranks.read(run, rank, "end")[-1]["steps"] == (calls - 1) // accumulate
    ranks.train(own_task(tmp_path / "alone", body, train={"steps": 9}, **options))


def test_a_skipped_step_leaves_the_models_buffers_alone(tmp_path):
    """As a loop of plain torch that leaves the whole step out."""
    world = 2
    body = """\
def model(self):
    torch.manual_seed(4)
    return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1)).double()
def optimizer(self, model, lr):
    return torch.optim.SGD(model.parameters(), lr=lr)
def loss(self, model, batch):
    x, y, numbers = batch
    self.calls += 1
    if self.calls == 3 and RANK == 0:
        x = x * float("nan")
    with open(f"{self.record}/{RANK}", "a") as file:
        file.write(f"{numbers.tolist()}\\n")
    return (model(x) - y).square().mean()
"""
    (tmp_path / "saw").mkdir()
    run = ranks.train(own_task(tmp_path / "run", body, world=world, size=24,
                           params={"record": str(tmp_path / "saw")},
                           train={"steps": 5, "on_nonfinite": "skip"}))
    assert ranks.read(run, 0, "step")[-1]["skipped"] == 1
    (warning,) = ranks.read(run, 0, "warning")
    assert warning["message"].endswith("0 at step 3 is nan; the step is skipped on all ranks")
    saw = [[json.loads(line) for line in (tmp_path / "saw" / str(rank)).read_text().splitlines()]
           for rank in range(world)]

    torch.manual_seed(4)
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1)).double()
    optimizer, data = torch.optim.SGD(net.parameters(), lr=0.01), Numbers(240, 6, 0, torch.float64)
    for step in (0, 1, 3, 4):
        optimizer.zero_grad()
        for rank in reversed(range(world)):  # the averages are those of rank 0
            kept = {name: buffer.clone() for name, buffer in net.named_buffers()}
            index = saw[rank][step]
            ((net(data.x[index]) - data.y[index]).square().mean() / world).backward()
            if rank:
                net.load_state_dict(kept, strict=False)
        optimizer.step()
    found = ranks.last(run)["model"]
    for name, value in net.state_dict().items():
        assert torch.allclose(found[name], value, rtol=1e-12, atol=1e-14), name


def test_data_does_not_depend_on_what_the_model_draws(tmp_path):
    body = """\
def data(self, what):
    with open(f"{self.record}/{what}-{RANK}", "w") as file:
        file.write(f"{torch.randn(3).tolist()} {random.random()}")
    return Numbers(48, 6, 0.0, self.dtype)
def train_data(self):
    made = self.data("train")
    torch.randn(self.hidden)  # nor does held-out data depend on what the training data draws
    return made
def eval_data(self):
    return self.data("eval")
"""
    saw = []
    for hidden, seed, world in ((16, 0, 1), (40, 0, 2), (16, 1, 1)):
        record = tmp_path / f"{hidden}-{seed}"
        record.mkdir()
        ranks.train(own_task(tmp_path / f"run{hidden}{seed}", body, world=world, size=24,
                         train={"steps": 1, "seed": seed},
                         params={"hidden": hidden, "record": str(record)}))
        saw.append([[(record / f"{what}-{rank}").read_text() for rank in range(world)]
                    for what in ("train", "eval")])
    first, wider, other = saw
    assert wider == [two * 2 for two in first]
    assert first[0] != first[1]
    assert not {*first[0], *first[1]} & {*other[0], *other[1]}


def test_a_collate_of_the_objects_own_is_used(tmp_path):
    body = """\
def __post_init__(self):
    super().__post_init__()
    self.collate = lambda examples: [torch.stack(part) + 1 for part in zip(*examples)]
def train_data(self):
    return torch.utils.data.TensorDataset(torch.zeros(24, 6).double(), torch.arange(24))
def eval_data(self):
    return self.train_data()
def loss(self, model, batch):
    assert batch[0].min() == 1
    return model(batch[0]).square().mean()
def metrics(self, model, batch):
    return {"ones": batch[0].sum(), "count": batch[0].numel()}
"""
    run = ranks.train(own_task(tmp_path / "run", body, size=24, train={"steps": 1}))
    assert ranks.read(run, 0, "eval")[-1]["ones"] == 1


def test_checkpoints_have_the_same_names_whether_a_model_is_compiled(tmp_path):
    body = """\
def model(self):
    net = super().model()
    if ATTEMPT < 3:
        net[0] = torch.compile(net[0], backend="eager")
        return torch.compile(net, backend="eager")
    return net
"""
    known = None
    for attempt, world in enumerate((1, 2, 1), 1):
        run = own_task(tmp_path / "run", body, size=24, world=world, train={"steps": 3 * attempt})
        ranks.train(run, attempt=attempt)
        state = ranks.last(run)
        assert list(state["model"]) == ["0.weight", "0.bias", "3.weight", "3.bias"]
        assert state["step"] == 3 * attempt
        assert known is None or not torch.equal(state["model"]["0.weight"], known)
        known = state["model"]["0.weight"]


def test_a_failed_rank_ends_though_a_thread_of_its_task_does_not(tmp_path):
    body = f"""\
def trouble(self, loss):
    from gpu_engine.worker.rank import process
    process.PATIENCE = 0.1
    global kept
    kept = open({str(tmp_path / "rows")!r}, "w")
    kept.write("1")
    threading.Thread(target=threading.Event().wait).start()
    raise ArithmeticError("as the test wants it")
"""
    run = own_task(tmp_path / "run", body, size=24, train={"steps": 3})
    ranks.train(run, expect=1, python=sys.executable)
    assert (tmp_path / "rows").read_text() == "1"
