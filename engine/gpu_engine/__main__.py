"""`python -m gpu_engine` is the command `gpu-engine`."""

from gpu_engine.cli import main

if __name__ == "__main__":
    main()
