"""What NCCL's errors mean."""

from __future__ import annotations

_OWN = ("ncclinvalid", "invalid usage", "duplicate gpu", "ncclunhandledcuda", "cuda error",
        "out of memory")


def own_fault(message: str) -> bool:
    """Whether this rank itself is to blame for an error of NCCL's, though it looks like one of the
    connection to a peer."""
    text = message.lower()
    return any(sign in text for sign in _OWN)
