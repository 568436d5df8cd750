import torch
from ignite.engine import Events, create_supervised_trainer
from made import loader, net, tell, tell_weights

model = net()
trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), 0.1),
                                    torch.nn.functional.mse_loss)
trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: tell("loss", e.state.output))
trainer.run(loader(), max_epochs=2)
tell_weights(model)
