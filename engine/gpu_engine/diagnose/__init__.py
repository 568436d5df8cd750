"""Why a run is slow, and who hangs: pure rules over what the ranks tell."""
