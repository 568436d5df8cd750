"""The supervisor of a run: a detached process that starts, watches, stops and restarts the run's
processes on one node.

It has only one thread, as a rank's parent-death signal follows the thread that forked it.
"""
