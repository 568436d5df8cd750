"""Why a run is slow, who hangs, and what a machine can do: rules over what was recorded, and the
reader of the ranks' traces."""
