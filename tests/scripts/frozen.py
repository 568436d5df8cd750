"""Imported first, this saves a script a second: the garbage collector does not go through all of
torch's objects at its start and end. While the script trains, the collector works as usual."""

import atexit
import contextlib
import gc


@contextlib.contextmanager
def imports():
    """The same for what is imported within."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


atexit.register(gc.freeze)  # registered first, so called last
with imports():
    import torch  # noqa: F401
