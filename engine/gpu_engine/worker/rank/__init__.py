"""What every rank has, whether it runs the engine's loop or a person's own script: its identity,
its group, its record and its signals.

Some of these modules import torch; importing the package itself does not.
"""
