"""What is installed, found, missing and broken, and what to type about it: `gpu-engine doctor`.

`gather` looks at the machine and returns facts; `software`, `devices`, `folders`, `surroundings`
and `kept` judge them, and look at nothing. `checks` joins the two, `examine` runs the checks, each
with a time limit of its own.
"""
