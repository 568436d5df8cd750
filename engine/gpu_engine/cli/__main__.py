"""`python -m gpu_engine.cli` is the same as `gpu-engine`."""

from gpu_engine.cli import main

if __name__ == "__main__":
    main()
