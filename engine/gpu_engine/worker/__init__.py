"""What a rank executes: the only part of gpu_engine that imports torch, and never at import.

It needs torch and the standard library alone, so that a rank can run in any environment that
has torch, whether gpu-panel is installed there or not.
"""
