"""Which version of gpu-panel this is."""

from __future__ import annotations

import sys


def version() -> str:
    """"0.1.0", as the package itself has it. Looked up by the package's name: the package offers
    `launch`, so a file that `launch` needs can't import the package without a circle."""
    return str(sys.modules[__name__.partition(".")[0]].__dict__["__version__"])
