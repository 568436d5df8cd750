"""`python -m gpu_engine.devices.probe`: started by `gpu_engine.devices.probe.client`."""

from __future__ import annotations

from gpu_engine.devices.probe.child import main

if __name__ == "__main__":
    main()
