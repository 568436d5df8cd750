"""`python -m gpu_engine` is `gpu-engine`."""

from gpu_engine.cli import main

if __name__ == "__main__":
    main()
