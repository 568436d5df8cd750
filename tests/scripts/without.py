"""Makes packages that are installed look as if they were not.

Frameworks use many others if these are there. torchmetrics, which Lightning imports, imports
transformers and scipy, which takes longer than all of the training.
"""

import importlib.metadata
import sys


def packages(*names):
    """To be called before anything has imported them."""
    version = importlib.metadata.version

    def version_of_others(name):
        if name in names:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    importlib.metadata.version = version_of_others
    for name in names:
        sys.modules[name] = None  # what Python takes for a module that can't be found
