"""What a launch here would fail at: all of it, before anything starts."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.common.files import open_file, reason
from gpu_engine.common.values import show
from gpu_engine.launching.launcher import prepare
from gpu_engine.remote.reach.protocol import Check, Checked, Wrong
from gpu_engine.remote.there.place import inside
from gpu_engine.remote.there.wire import Asked
from gpu_engine.runs import disk_room
from gpu_engine.spec.read import from_dict


def check(asked: Asked, request: Check) -> None:
    wrong: list[Wrong] = []
    warnings: tuple[str, ...] = ()
    folder = ""
    try:
        with inside(request.folders) as folder:
            wrong += [w for named in request.files.items()
                      if (w := _file(*named)) is not None]
            warnings = prepare(from_dict(request.spec), cwd=Path(folder)).plan.warnings
    except SpecError as err:
        wrong += [Wrong(p.key, "" if p.value is None else show(p.value), p.message)
                  for p in err.problems if not _reported(p.key, wrong)]
    except UserError as err:
        wrong.append(Wrong("", "", str(err)))
    full = disk_room.problem(paths.runs_folder())
    if full is not None:
        wrong.append(Wrong("", "", full.message))
    asked.send(Checked(tuple(wrong), warnings, folder))


def _reported(key: str, wrong: list[Wrong]) -> bool:
    """A task whose file is not there was told of already."""
    return key == "task.use" and any(w.key == "" for w in wrong)


def _file(name: str, sha256: str) -> Wrong | None:
    path = Path(name)
    try:
        with open_file(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return Wrong("", "", f"{name} is not there: {path.absolute()}")
    except OSError as err:
        return Wrong("", "", f"{name} can't be read there: {reason(err)}")
    if digest != sha256:
        return Wrong("", "", f"{name} there ({path.absolute()}) is another than here")
    return None
