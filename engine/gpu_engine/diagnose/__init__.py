"""Why a run is slow, who hangs, and what a machine can do: pure rules over what was recorded."""
