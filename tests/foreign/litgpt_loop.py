import torch
from lightning import Fabric
from litgpt import GPT, Config
from litgpt.utils import chunked_cross_entropy
from made import tell, tell_weights

fabric = Fabric(accelerator="cpu", devices=1)
model = GPT(Config(n_layer=1, n_head=2, n_embd=16, block_size=16, vocab_size=32,
                   padded_vocab_size=32))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), 0.01))
for _ in range(5):
    tokens = torch.randint(0, 32, (4, 17))
    loss = chunked_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], chunk_size=0)
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    tell("loss", loss)
tell_weights(model)
