"""The probe: a process of its own that calls drivers, as a driver call may never return."""
