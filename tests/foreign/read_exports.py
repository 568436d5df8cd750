"""Open what was exported of a run of tiny_gpt.py with other people's programs: the weights with
transformers, the figures with TensorBoard. Arguments: the weights as .safetensors and as .pt, and
the folder for TensorBoard."""

import shutil
import sys
from pathlib import Path

import torch
from made import tell
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_gpt import CONFIG, GPT2LMHeadModel

weights, other, figures = map(Path, sys.argv[1:])
folder = weights.parent / "model"
folder.mkdir()
CONFIG.save_pretrained(folder)
shutil.copy(weights, folder / "model.safetensors")
model, told = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
assert not any(told[kind] for kind in ("missing_keys", "mismatched_keys", "unexpected_keys")), told
state = torch.load(other, weights_only=True)
assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
tell("weights", sum(p.detach().double().abs().sum() for p in model.parameters()))

for path in sorted({path.parent for path in figures.rglob("*tfevents*")}):
    read = EventAccumulator(str(path)).Reload()
    for name in read.Tags()["scalars"]:
        if name.endswith("loss"):
            for scalar in read.Scalars(name):
                tell(f"step-{scalar.step}", scalar.value)
