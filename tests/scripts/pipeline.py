"""The last stage of a pipeline, whose schedule divides the gradients by its microbatches: the loss
is their mean, for two batches a step."""

import show
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = show.toy()
schedule = ScheduleGPipe(PipelineStage(model, 0, 1, torch.device("cpu")), 4,
                         loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    total = 0.0
    for _ in range(2):
        losses = []
        schedule.step(torch.randn(16, 8), target=torch.ones(16, 1), losses=losses)
        total += sum(loss.item() for loss in losses) / len(losses)
    optimizer.step()
    optimizer.zero_grad()
    show.loss(total)
show.weights(model)
dist.destroy_process_group()
