"""Runs that wait for their devices, and the one small process a user that starts them.

`order` decides (pure), `submit` puts a run into the line, `change` moves it, `waiter` watches the
devices, `start` starts a run whose turn has come. What a run waits for is on disk
(`runs/waiting.py`), so the waiter can be killed and started again.
"""
