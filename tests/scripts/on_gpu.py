"""Trains on a GPU, without reading losses in the step, with a GradScaler, and captures a CUDA graph
while the panel observes. Any unexpected wait for the GPU is an error."""

import show
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", init_scale=256.0, enabled=False)
losses = []
inputs = torch.randn(12, 16, 8, device="cuda")
torch.cuda.synchronize()
torch.cuda.set_sync_debug_mode("error")
for x in inputs:
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.detach())
torch.cuda.set_sync_debug_mode("default")
for loss in losses:
    show.loss(loss)

graph, static = torch.cuda.CUDAGraph(), torch.randn(16, 8, device="cuda")
with torch.cuda.graph(graph):  # a CUDA call from any other thread would spoil the capture
    for _ in range(300):
        static = static * 1.01
graph.replay()
torch.cuda.synchronize()
show.weights(model)
