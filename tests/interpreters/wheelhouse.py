"""A folder of wheels, which is all that pip knows."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from .environments import VERSION


def wheelhouse(folder: Path, monkeypatch: pytest.MonkeyPatch, torch: str = "2.13.0+cpu") -> None:
    """Have pip know a torch of two files and an empty numpy, in `folder`, and no index."""
    folder.mkdir()
    cuda = None if torch.endswith("cpu") else "13.0"
    _wheel(folder, "torch", torch, {
        "torch/__init__.py": "raise SystemExit('torch was imported')",
        "torch/version.py": VERSION.format(version=torch, cuda=cuda, hip=None)})
    _wheel(folder, "numpy", "2.0", {"numpy/__init__.py": ""})
    for name, value in {"PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": str(folder),
                        "PIP_NO_INDEX": "1"}.items():
        monkeypatch.setenv(name, value)


def _wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    info = f"{name}-{version}.dist-info"
    files |= {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
              f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n"
                               "Tag: py3-none-any\n"}
    record = "".join(f"{path},sha256={_sum(text)},{len(text)}\n" for path, text in files.items())
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in (files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}).items():
            archive.writestr(path, text)


def _sum(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
