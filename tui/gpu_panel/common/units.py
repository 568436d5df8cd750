"""How figures look on the screen: the engine's, as the command line shows the same ones."""

from gpu_engine.common.units import UNKNOWN, ago, clock, count, gib, loss, pace, rate, share, size

__all__ = ["UNKNOWN", "ago", "clock", "count", "gib", "loss", "pace", "rate", "share", "size"]
