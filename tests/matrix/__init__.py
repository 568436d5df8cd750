"""Runs gpu-panel on other Pythons and torches, for docs/compatibility.md. No part of `make test`.

`combinations` lists what is run, `environments` makes the environments, `ranks` and `panel` run
something in one, `table` writes what came out. `python -m tests.matrix --help` says the rest.
"""
