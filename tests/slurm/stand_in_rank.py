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
from gpu_engine.common import paths
from gpu_engine.plan.build import resolve
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job
from gpu_engine.runs.create import create_run, reopen_run
from gpu_engine.slurm.script import job_of, placed
from gpu_engine.spec.write import to_toml

folder = paths.runs_folder() / sys.argv[sys.argv.index("--folder") + 1]
sets = [word for before, word in zip(sys.argv, sys.argv[1:], strict=False) if before == "--set"]
spec = choose_spec(None, sets).spec
plan = resolve(placed(spec, job_of(spec, None, None)), python=sys.executable)
batch = job.Job(int(os.environ["GPU_PANEL_SLURM_JOB"]), state="RUNNING",
                restarts=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
                nodes=os.environ.get("SLURM_JOB_NODELIST"))
if (folder / "plan.json").exists():
    run = runs.Run(folder)
    lock = reopen_run(run, to_toml(spec), plan, batch.id)
else:
    run, lock = create_run("stand-in", to_toml(spec), plan, path=folder)
if job.read(run.path) is None:
    job.write(run.path, batch)
before, number, now = run.state().attempts, run.state().attempt, time.time()
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
