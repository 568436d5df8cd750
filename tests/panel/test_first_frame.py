"""What the first frame does not wait for."""

import subprocess
import sys

LATER = {"gpu_engine.launching.launcher", "gpu_engine.plan.records", "gpu_engine.runs.folder",
         "gpu_engine.events.schema", "gpu_engine.devices.leases", "gpu_engine.spec.schema",
         "gpu_panel.launch.draft", "gpu_panel.launch.fields", "gpu_panel.launch.run_feed",
         "gpu_panel.run.screen"}
"""Modules that take long to import and show nothing in the first frame."""


def test_what_takes_long_is_imported_after_the_first_frame():
    asked = "import sys, gpu_panel.__main__, gpu_panel.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert not LATER & set(done.stdout.split())
