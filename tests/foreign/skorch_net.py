import torch
from made import examples, net, tell, tell_weights
from skorch import NeuralNetRegressor

x, y = examples().tensors
fitted = NeuralNetRegressor(net, max_epochs=2, lr=0.1, batch_size=8, train_split=None, verbose=0,
                            optimizer=torch.optim.SGD).fit(x.numpy(), y.numpy())
for row in fitted.history:
    tell("loss", float(row["train_loss"]))
tell_weights(fitted.module_)
