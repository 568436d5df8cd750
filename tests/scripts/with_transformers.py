"""transformers.Trainer, on a model that is made from a configuration, without a download."""

import sys

import frozen
import show
import torch
import without

without.packages("scipy")
with frozen.imports():
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PrinterCallback,
        Trainer,
        TrainingArguments,
    )

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=16))
tokens = torch.randint(0, 32, (48, 8))
data = [{"input_ids": t, "labels": t} for t in tokens]


class Showing(Trainer):
    total = 0.0
    seen = 0

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.total, self.seen = self.total + loss.item(), self.seen + 1
        if self.seen == 2:
            show.loss(self.total)
            self.total, self.seen = 0.0, 0
        return loss


trainer = Showing(model=model, train_dataset=data, args=TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=4, gradient_accumulation_steps=2,
    num_train_epochs=1, save_strategy="no", logging_strategy="no", report_to=[], use_cpu=True,
    disable_tqdm=True, dataloader_num_workers=0))
trainer.remove_callback(PrinterCallback)  # prints how long it took
trainer.train()
show.weights(model)
