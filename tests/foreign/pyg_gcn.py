import torch
from made import tell, tell_weights
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GCNConv(4, 8), torch.nn.Linear(8, 1)

    def forward(self, data):
        x = self.first(data.x, data.edge_index).relu()
        return self.last(global_mean_pool(x, data.batch))


def graph(i: int) -> Data:
    edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, i % 5]])
    return Data(x=torch.randn(5, 4), edge_index=edges, y=torch.tensor([[i % 3 / 2]]))


model, graphs = Net(), [graph(i) for i in range(32)]
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for _ in range(2):
    for batch in DataLoader(graphs, batch_size=8, shuffle=True):
        loss = torch.nn.functional.mse_loss(model(batch), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tell("loss", loss)
tell_weights(model)
