"""A person's own script that trains nothing, for jobs whose training is not the subject. It is ended
as a script is that saves when it is interrupted; a file `dies` has it fail at once."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

if Path("dies").exists():
    sys.exit("no data here")
print("waits", flush=True)
try:
    signal.pause()
except KeyboardInterrupt:
    print("saved")
