"""The same small training under each program: one file each, run by the others' interpreter.

They import nothing of gpu-panel, except `task`, which the engine trains.
"""
