"""What is installed, found, missing and broken, and what to type about it: `gpu-engine doctor`.

`machine` and `user_files` look and say what they found; `checks` runs them, each with a time limit
of its own, as a driver or a network file system may never answer.
"""
