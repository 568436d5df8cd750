"""One step, over before the panel's first heartbeat: the thread that would write it never runs."""

import _thread

_thread.start_new_thread = lambda *what: 0
import quick  # noqa: E402, F401
import torch  # noqa: E402

w = torch.ones(3, requires_grad=True)
w.sum().backward()
torch.optim.SGD([w], 0.1).step()
