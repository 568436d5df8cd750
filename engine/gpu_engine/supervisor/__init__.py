"""Owns the processes of one run on one node, detached: starts, watches, stops and restarts them.

One thread, as a rank's parent-death signal follows the thread that forked it.
"""
