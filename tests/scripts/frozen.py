"""Imported first, this saves a script a second: the garbage collector does not go through all of
torch's objects at its start and end. While the script trains, the collector works as usual."""

import atexit
import gc

gc.disable()
atexit.register(gc.freeze)  # registered first, so called last
import torch  # noqa: E402, F401

gc.freeze()
gc.enable()
