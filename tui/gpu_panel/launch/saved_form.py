"""The form as it was left, and the draft that the panel opens with. No widgets.

`form.json` in the panel's folder has it. What of it can't be read is moved to a file beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.common.files import open_file, write_json
from gpu_engine.devices.records import Inventory
from gpu_engine.spec import presets
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import SECTIONS, keys
from gpu_engine.spec.write import to_dict
from gpu_panel.launch.draft import Draft

VERSION = 1
_LARGEST = 1 << 20
"""Bytes of the largest file that is read."""


def path() -> Path:
    """The file with the form of last time."""
    return paths.home() / "form.json"


def written(draft: Draft, inventory: Inventory | None) -> dict[str, Any]:
    """What is kept of a draft: where it is from and, if it has unsaved changes, its content, with
    ticked cards named by UUID."""
    preset, run = draft.preset, draft.run
    name = None if preset is None else \
        str(preset.path.absolute()) if preset.name.endswith(".toml") or "/" in preset.name \
        else preset.name
    changed = draft.changed or (preset is None and run is None)
    return {"version": VERSION, "preset": name,
            "run": None if run is None else {"id": run[0], "spec": to_dict(run[1])},
            "data": draft.to_keep(inventory) if changed else None,
            "ticked": (draft.ids_by_hand or draft.ticked_before) and changed,
            "asked": not draft.should_ask}


def write(kept: dict[str, Any]) -> None:
    """Keep a form. Raises OSError, ValueError."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(file, kept)


def read() -> tuple[Draft | None, UserError | None]:
    """The form of last time; None if there is none or it can't be read. The error says, in words
    for a person, what of it could not be used and where it is now."""
    file = path()
    try:
        kept = _load(file)
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError) as err:
        return None, UserError(f"The saved form can't be read ({err}). "
                               f"{_moved(file, 'form-damaged.json')}")
    data, dropped = _known(kept["data"]) if kept["data"] is not None else (None, [])
    trouble = None
    if dropped:
        trouble = UserError("The saved form has keys that this version does not know: "
                            f"{', '.join(dropped)}. They are left out. "
                            f"{_moved(file, 'form-unknown.json')}")
    preset, gone = None, None
    if kept["preset"] is not None:
        try:
            preset = presets.load(kept["preset"])
        except UserError as err:
            gone = err
    if data is None and preset is None and kept["run"] is None:
        return None, gone  # nothing but a preset was kept, and that can't be read
    run = None
    if kept["run"] is not None:
        try:
            run = str(kept["run"]["id"]), from_dict(kept["run"]["spec"])
        except SpecError as err:
            gone = gone or UserError(f"The saved form is of run {kept['run']['id']}, whose "
                                     f"settings no longer fit: {err}")
    return Draft.restored(preset, run, data, ticked=kept["ticked"], asked=kept["asked"]), \
        trouble or (gone if data is None or preset is None else None)


def first_draft(name: str | None, assignments: Sequence[str],
                command: Sequence[str] | None, usual: str = presets.DEFAULT
                ) -> tuple[Draft, UserError | None]:
    """The draft of the preset `name`, with `command` in place of its task and the `key=value`
    assignments applied; and None. If nothing is asked for, the form of last time or else the
    preset `usual`.

    If something can't be read, the error takes the place of None. The draft is then that of the
    preset without the assignments, or, if the preset can't be read, one with all defaults.
    """
    lost: UserError | None = None
    if name is None and command is None and not assignments:
        last, lost = read()
        if last is not None:
            return last, lost
    try:
        if command is not None:
            draft = Draft.of_command(command, presets.load(name) if name else None)
        else:
            draft = Draft(presets.load(name or usual))
    except UserError as err:
        return (Draft() if command is None else Draft.of_command(command)), err
    try:
        draft.assign(*assignments)
        draft.spec()
    except SpecError as err:
        return Draft(draft.preset), err
    return draft, lost


def _load(file: Path) -> dict[str, Any]:
    """The content of a file that was kept. Raises OSError, and ValueError if it is no such file."""
    with open_file(file) as opened:
        text = opened.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise ValueError("it is larger than a form can be")
    try:
        kept = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not valid JSON") from None
    if not isinstance(kept, dict) or kept.get("version") != VERSION:
        raise ValueError("it is not of this version")
    data, run = kept.get("data"), kept.get("run")
    fits = (isinstance(kept.get("preset"), str | None) and isinstance(data, dict | None)
            and (run is None or (isinstance(run, dict) and isinstance(run.get("spec"), dict)
                                 and isinstance(run.get("id"), str)))
            and all(isinstance(value, dict) for name, value in (data or {}).items()
                    if name in SECTIONS)
            and isinstance((data or {}).get("task", {}).get("params", {}), dict))
    if not fits:
        raise ValueError("a value in it has the wrong type")
    return {"preset": kept.get("preset"), "run": run, "data": data,
            "ticked": kept.get("ticked") is True, "asked": kept.get("asked") is True}


def _known(data: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`data` without keys that the spec does not have, and these with their values. A value that
    does not fit stays: its field shows it, with what is wrong."""
    out: dict[str, Any] = {}
    dropped: list[str] = []
    for name, value in data.items():
        if name == "name":
            out[name] = value
        elif name not in SECTIONS:
            dropped.append(f"{name} = {json.dumps(value)}")
        else:
            out[name] = {key: one for key, one in value.items() if f"{name}.{key}" in keys()}
            dropped += [f"{name}.{key} = {json.dumps(one)}" for key, one in value.items()
                        if key not in out[name]]
    return out, dropped


def _moved(file: Path, name: str) -> str:
    """Move a file aside, so that the next form does not replace it, and say where it is."""
    aside = file.with_name(name)
    try:
        file.replace(aside)
    except OSError as err:
        return f"It could not be renamed: {err.strerror}."
    return f"The file is kept as {aside}."
