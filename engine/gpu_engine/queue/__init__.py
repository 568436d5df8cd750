"""Runs that wait for their devices, each in its own supervisor.

`turns` decides (pure), `submit` puts a run into the line, `wait` is what its supervisor does there,
`change` moves it, `serve` gives it another supervisor after a reboot. What a run waits for is on
disk (`runs/waiting.py`).
"""
