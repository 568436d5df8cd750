"""The Python interpreters near by, and which of them the ranks run in.

gpu-panel itself needs no torch, its ranks do. `choose.of_ranks` is the rule by which a run gets its
interpreter, `inspection.inspect` says what one has.
"""
