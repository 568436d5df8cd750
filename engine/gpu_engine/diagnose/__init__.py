"""Why a run is slow, and who hangs: rules over what ranks say, and the reader of their traces."""
