"""A task of gpu-panel's whose model is one of transformers, made from its config."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gpu_engine import Task

CONFIG = GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=16, vocab_size=32, bos_token_id=0,
                    eos_token_id=0)


class TinyGpt(Task):
    def model(self):
        return GPT2LMHeadModel(CONFIG)

    def train_data(self):
        return torch.utils.data.TensorDataset(torch.randint(0, 32, (64, 8)))

    def loss(self, model, batch):
        return model(input_ids=batch[0], labels=batch[0]).loss
