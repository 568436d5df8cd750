from ..training.conftest import make

__all__ = ["make"]
