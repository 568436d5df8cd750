"""Imported first, spares a script a second: at its start and at its end the garbage collector does
not walk through all that torch consists of. While the script trains it works as ever."""

import atexit
import gc

gc.disable()
atexit.register(gc.freeze)  # registered first, so called last
import torch  # noqa: E402, F401

gc.freeze()
gc.enable()
