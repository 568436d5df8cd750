"""A person's own script that trains nothing, for jobs whose training is not the subject. It ends as
a script does that saves when it is interrupted; a file `dies` has it fail at once."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

if Path("dies").exists():
    sys.exit("no data here")
sys.stdout.write("waits\n")
sys.stdout.flush()
try:
    signal.pause()
except KeyboardInterrupt:
    sys.stdout.write("saved\n")
