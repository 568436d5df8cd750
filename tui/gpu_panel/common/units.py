"""Formats for figures on the screen. They are the engine's, so that the command line agrees."""

from gpu_engine.common.units import (
           UNKNOWN,
           ago,
           clock,
           count,
           gib,
           loss,
           pace,
           pace_cell,
           rate,
           share,
           short,
           size,
           time_of_day,
)

__all__ = ["UNKNOWN", "ago", "clock", "count", "gib", "loss", "pace", "pace_cell", "rate", "share",
           "short", "size", "time_of_day"]
