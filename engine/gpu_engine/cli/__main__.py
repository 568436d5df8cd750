"""`python -m gpu_engine.cli` is `gpu-engine` too."""

from gpu_engine.cli import main

if __name__ == "__main__":
    main()
