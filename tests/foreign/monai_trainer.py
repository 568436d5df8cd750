import torch
from made import examples, net, tell_weights
from monai.engines import SupervisedTrainer
from torch.utils.data import DataLoader

data = [{"image": x, "label": y} for x, y in examples()]
model = net()
SupervisedTrainer(
    device=torch.device("cpu"), max_epochs=2, network=model,
    train_data_loader=DataLoader(data, batch_size=8),
    optimizer=torch.optim.Adam(model.parameters(), 0.01), loss_function=torch.nn.MSELoss()).run()
tell_weights(model)
