"""The program that a rank runs, from its command line to its exit code.

It needs only torch and the standard library, so a rank runs in any environment that has torch,
whether gpu-panel is installed there or not. Importing this package does not import torch.
"""
