"""Runs other scripts one after another, each in a process of its own, forked from this one, which
has imported torch: each then starts within a moment. The first argument is `quick`, or `whole` for
all of torch with its compiler; the second a folder for their outputs, each further one a script
with its arguments. They are recorded as the ranks 1, 2, …"""
# ruff: noqa: T201

import os
import pathlib
import runpy
import sys

which, folder, *scripts = sys.argv[1:]
if which == "whole":
    import frozen

    with frozen.imports():
        import torch._dynamo  # noqa: F401
else:
    import quick  # noqa: F401
for number, script in enumerate(scripts, 1):
    child = os.fork()
    if child == 0:
        os.environ["GPU_PANEL_RANK"] = str(number)
        output = os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = script.split()
        runpy.run_path(str(pathlib.Path(__file__).with_name(sys.argv[0])), run_name="__main__")
        sys.exit()
    print(script, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
