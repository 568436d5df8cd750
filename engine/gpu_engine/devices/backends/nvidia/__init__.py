"""NVIDIA GPUs and MIG slices, through NVML."""
