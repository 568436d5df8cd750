"""The sentences of docs/performance.md: what was compared, and why something is slower."""

from __future__ import annotations

INTRODUCTION = """\
# Beside the others

`make bench-peers` measures all of this on the same work and writes this page; nothing in it is
typed by hand. Programs take turns within a round. Each figure is the median of the rounds (the
least to the greatest); less is better. The machine has no GPU.
"""

TITLES = {
    "train1": "Training in one process: step and start",
    "train2": "Training on two ranks: step and start",
    "stop": "Stopping two ranks",
    "gpus": "Watching GPUs",
    "observe": "Where a step's time goes",
    "log": "Recording each step",
    "open": "Opening a million points",
    "points": "Opening a finished run",
    "runs": "Many runs",
    "ranks": "Live ranks",
}

HOW = {
    "train1": """\
A perceptron (784-256-10, batch 64, SGD), one thread a rank, pinned to a core. "By hand" is the
loop in plain PyTorch: the floor. gpu-panel records every loss, the learning rate, memory and
heartbeats; accelerate, Fabric and "Lightning, all off" record nothing; "loss logged" is the
Trainer as it comes.""",
    "train2": """\
The same work on two ranks under DDP over gloo. Fabric is started by `fabric run`, Lightning by its
Trainer, accelerate's script by `torchrun` (`accelerate launch` starts no two ranks on CPUs). Linux
shares busy cores by sessions: torchrun's ranks lead one each, and so do those of gpu-panel's
engine; the ranks of a person's own command share one with their supervisor.""",
    "stop": """\
Two ranks of the same script, which has no handler for signals. Ctrl-C is SIGINT to the program in
the foreground (by hand: to both ranks); from outside is SIGTERM to it, and for gpu-panel
`gpu-engine stop`, which sends SIGINT, and whose own start is in the figure. gpu-panel's engine
trains the same as a task, and saves a checkpoint. It ends when the last process is gone.""",
    "gpus": """\
A stand-in for NVIDIA's driver library, two processes on each GPU; all figures change once a
second. All programs watch at the same time, on terminals of 120×36, each as it comes. nvtop asks
every GPU for its bus rates, which takes 2.6 s for 64 GPUs. Children count.""",
    "observe": """\
The loop by hand with about 10 ms a step, in one process. gpu-panel's is the script unchanged,
observed; TraceML's has `trace_step` around each step. Processor time is that of the training
process.""",
    "log": """\
The loop by hand in one process, whose loss and learning rate are recorded in each of its steps of
about 1 ms. Processor time is that of the training process.""",
    "open": """\
A finished run with one curve of a million points, written by each tool itself. gpu-panel and LEET
are measured until the last step stands on the terminal; the servers until they have given the
sample of points that their page asks for.""",
    "points": """\
A finished run of eight ranks, opened with the panel: `4`, `enter`.""",
    "runs": """\
A folder of finished runs. `runs --json` lists them for the first time, and nothing is remembered
of them; the others read what it has kept.""",
    "ranks": """\
Each rank records 20 steps a second. The panel shows the run on a terminal of 120×36 and is
watched for 12 s; the key is `?`, until the list of keys is there.""",
}

LOSSES = {
    ("train", "step"): """\
- **A step beside the loop by hand**: recording is not free. What is recorded is every loss, the
  learning rate, memory and a heartbeat; accelerate and Fabric record nothing.""",
    ("train", "cpu"): """\
- **Processor time of a step**: the thread that writes the events is part of it.""",
    ("train", "start"): """\
- **Start**: between the command and the ranks stand the command line, the plan, the checks of
  devices and ports, and the supervisor. They import no torch, which `torchrun` and `accelerate
  launch` do.""",
    ("stop", "stop"): """\
- **Stopping**: the supervisor asks the ranks, waits for them, and then looks for processes that
  they have left behind; plain processes are just gone.""",
    ("gpus", "first frame"): """\
- **First frame**: the panel is a Python program on Textual with a form, a plan and runs beside
  the devices; nvtop is a small program in C, nvitop draws with curses.""",
    ("gpus", "watching"): """\
- **Watching**: the panel asks the driver in a process of its own, so that a driver that hangs
  does not stop the screen, asks who holds each device, and redraws a larger screen.""",
    ("log", "step"): """\
- **Recording**: "nothing" records nothing. Ours records each loss, the learning rate, memory, and
  what the time of each step went into.""",
    ("log", "cpu"): """\
- **Processor time of recording**: the thread that writes is in it.""",
    ("open", "opened"): """\
- **Opening**: most of it is the start of the panel, see the first frame.""",
}

NEVER = ["""\
- Anything on a real GPU: neither steps, nor nccl, nor a real driver's answers
  ([gpu-verification.md](gpu-verification.md)).""", """\
- Browsers: what TensorBoard's and Trackio's pages take to draw, and W&B's own pages, which need
  its server."""]
