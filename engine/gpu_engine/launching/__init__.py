"""From a spec to a run that goes on without us: launched, resumed, kept alive after a logout."""
