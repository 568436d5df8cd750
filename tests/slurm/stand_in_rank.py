"""A rank that keeps its run folder and trains nothing: the interpreter of a job whose training is
not the subject. A signal ends it as it ends a rank that saves; a file `dies` has it fail before it
reports."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

if sys.argv[1] == "-c":
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])

if (Path.cwd() / "dies").exists():
    sys.exit("no torch here")

from gpu_engine.cli.spec_options import choose_spec
from gpu_engine.plan.build import resolve
from gpu_engine.runs import folder as runs
from gpu_engine.slurm.script import job_of, placed
from gpu_engine.spec.write import to_toml
from gpu_engine.worker import restarts

folder = restarts.named(sys.argv[sys.argv.index("--folder") + 1])
run = runs.Run(folder)
sets = [word for before, word in zip(sys.argv, sys.argv[1:], strict=False) if before == "--set"]
spec = choose_spec(None, sets).spec
plan = resolve(placed(spec, job_of(spec, None, None)), python=sys.executable)
batch = restarts.batch_job(os.environ)
assert batch is not None, os.environ
run, lock, number, before = restarts.open_run(
    folder, "stand-in", to_toml(spec), plan, batch)
now = time.time()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
this = runs.AttemptRecord(number, now, requeued=batch.restarts)
state = runs.State("running", run.id, "stand-in", now, now, attempt=number, pid=os.getpid(),
                   attempts=(*before, this))
run.write_state(state)
sent = signal.sigwait([signal.SIGUSR1, signal.SIGTERM])
os.write(1, f"stopped by {signal.Signals(sent).name}\n".encode())
run.write_state(replace(state, state="stopped", ended=time.time(), exit_code=130, attempts=(
    *before, replace(this, ended=time.time(), outcome="stopped"))))
os._exit(75)
