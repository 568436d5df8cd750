"""Asking small files, where an answer may not come."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """A small file's text; "" if it can't be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def in_container(root: Path = Path("/")) -> bool:
    """Whether this is inside a container of Docker, Podman, Kubernetes or Apptainer."""
    return any((root / name).exists() for name in (".dockerenv", "run/.containerenv",
                                                   ".singularity.d"))
