"""A GPT that does not fit one card: FSDP2 divides its weights, gradients and Adam's moments among
the ranks, and backward computes activations again. It needs torch alone.

    gpu-engine run --mode ddp -n 2 -- python examples/sharded.py --save {run.dir}/sharded
    gpu-engine stop RUN; gpu-engine resume RUN --set devices.pick=4    # from what it has saved
    torchrun --nproc-per-node=2 examples/sharded.py --save sharded     # without gpu-engine

A parameter takes 16 bytes: itself, its gradient and two moments in float32. Of N ranks each holds
16/N, and beside that a block or two as a whole: 6.5 billion are 52 GB on each of two cards with
--layers 32 --width 4096 --heads 32 --context 2048 --batch 32 --accumulate 8. A step's loss is the
same on any number of ranks, up to the order in which numbers are added.
"""

import argparse
import os
import shutil
import signal
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def options():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, default, meaning in (
            ("layers", 4, "blocks"), ("width", 128, "numbers that stand for each byte"),
            ("heads", 4, "attention heads"), ("context", 64, "bytes that the model looks back"),
            ("batch", 32, "windows of a step, over all ranks and passes"),
            ("accumulate", 1, "passes into which each rank divides its part of a batch"),
            ("steps", 200, "in all"), ("lr", 1e-3, "learning rate"), ("warmup", 20, "steps"),
            ("seed", 0, "of all"), ("save-every", 100, "steps"), ("print-every", 10, "steps")):
        parser.add_argument(f"--{name}", type=type(default), default=default, help=meaning)
    parser.add_argument("--text", type=Path, help="a file to learn from; None: Python's library")
    parser.add_argument("--save", type=Path, help="a folder for checkpoints, to go on from, too")
    parser.add_argument("--amp", choices=["off", "bf16"], help="None: bf16 on GPUs only")
    return parser.parse_args()


class Block(nn.Module):
    """Causal attention, then two layers at each position. (B, T, width) → (B, T, width)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h):
        # Only a block's input is kept, and backward computes the rest again: a third more work, but
        # activations may take more than weights. (FSDP, around this, has gathered those by then.)
        return checkpoint(self.compute, h, use_reentrant=False)

    def compute(self, h):
        b, t, w = h.shape
        q, k, v = (part.view(b, t, self.heads, w // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(h)).chunk(3, dim=-1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(seen.transpose(1, 2).reshape(b, t, w))
        return h + self.down(F.gelu(self.up(self.norm2(h))))


class GPT(nn.Module):
    """Bytes (B, T) → logits (B, T, 256). There is no dropout, so a step draws no random numbers."""

    def __init__(self, layers, width, heads, context):
        super().__init__()
        self.byte, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, x):
        h = self.byte(x) + self.position.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def sharded_model(args, device):
    """The model with its first weights, of which each rank has a part."""
    with torch.device("meta"):  # shapes only: as a whole it would not fit
        model = GPT(args.layers, args.width, args.heads, args.context)
    # bfloat16 is what is computed with. Weights stay float32, and so do sums over ranks.
    policy = MixedPrecisionPolicy(torch.bfloat16 if args.amp == "bf16" else None, torch.float32)
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    # What is wrapped is gathered and given up as one: each block, and at last what is in none.
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    # Every rank draws each weight as a whole and keeps its part: the same for any number of ranks.
    draws = torch.Generator().manual_seed(args.seed)
    for name, p in model.named_parameters():
        whole = 0.02 * torch.randn(p.shape, generator=draws) if p.dim() > 1 \
            else torch.full(p.shape, float(name.endswith("weight")))  # a norm's, or a bias
        mine = distribute_tensor(whole.to(device), mesh, p.placements, src_data_rank=None)
        p.detach().copy_(mine)
    return model


def finished(folder):
    """The whole checkpoints in order. Torch writes `.metadata` when all parts are there."""
    return sorted(file.parent for file in folder.glob("step-*/.metadata"))


def save(folder, step, model, optimizer):
    """Each rank writes its part. The two newest checkpoints are kept."""
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": step}
    dcp.save(state, checkpoint_id=folder / f"step-{step:08d}")
    if dist.get_rank() == 0:
        for old in finished(folder)[:-2]:
            (old / ".metadata").unlink()  # first, so that a half one never passes for a whole
            shutil.rmtree(old)


def load(folder, model, optimizer):
    """Load the newest checkpoint, of however many ranks: its step, or 0 where there is none."""
    # If each machine had a folder of its own, none would ever hold a whole checkpoint.
    told, mark = [os.urandom(8).hex(), None], folder / "seen-by-all"
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(told[0])
        told[1] = max(finished(folder), default=None)
    dist.broadcast_object_list(told)
    seen = [None] * dist.get_world_size()
    dist.all_gather_object(seen, mark.exists() and mark.read_text())
    if set(seen) != {told[0]}:
        raise SystemExit(f"--save {folder}: not the same one on all machines; have them share it")
    if told[1] is None:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=told[1])  # its pickles can run code: load only what is yours
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return state["step"]


def main():
    args, asked = options(), []
    # All ranks have to save together, so each only notes a stop, and they agree after the step.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: asked.append(1))
    cuda = torch.cuda.is_available()
    device, args.amp = "cuda" if cuda else "cpu", args.amp or ("bf16" if cuda else "off")
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    # Started by hand it is one rank. Gloo beside NCCL: what ranks agree on does not wait for GPUs.
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", **alone)
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.batch % (world * args.accumulate):
        raise SystemExit(f"--batch {args.batch} does not divide by {world} x {args.accumulate}")
    files = [args.text] if args.text else sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)
    model = sharded_model(args, device)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1, fused=True)
    first = load(args.save, model, optimizer) if args.save else 0
    for step in range(first + 1, args.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(step / (args.warmup or 1), 1)
        # All ranks' batch follows from seed and step: of the data a checkpoint needs only the step.
        draws = torch.Generator().manual_seed(1_000_003 * args.seed + step)
        begins = torch.randint(len(text) - args.context, (args.batch, 1), generator=draws)
        batch = text[begins + torch.arange(args.context + 1)].long()
        loss = torch.zeros((), device=device)
        # Each pass divides its gradients at once: kept until the last pass, they might not fit.
        for part in batch[rank::world].chunk(args.accumulate):
            part = part.to(device)
            logits = model(part[:, :-1]).float().flatten(0, 1)
            mean = F.cross_entropy(logits, part[:, 1:].flatten()) / args.accumulate
            mean.backward()
            loss += mean.detach()
        # FSDP has averaged them over the ranks, which have equally many windows: over the batch.
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        if step % args.print_every == 0:
            dist.all_reduce(loss)
            if rank == 0:
                print(f"step {step}: loss {loss / world:.7g}, gradients {norm:.7g}", flush=True)  # noqa: T201
        stop = torch.tensor(len(asked))
        dist.all_reduce(stop)
        if args.save and (stop or step == args.steps or step % args.save_every == 0):
            save(args.save, step, model, optimizer)
        if stop:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
