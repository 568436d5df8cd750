"""The form as it was left: kept a moment after it has changed, and read when the panel opens.

`form.json` in the panel's folder has it. What of it can't be read is moved to a file beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from textual.screen import Screen
from textual.timer import Timer

from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.common.files import open_file, write_json
from gpu_engine.devices.records import Inventory
from gpu_engine.spec import presets
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import is_key
from gpu_engine.spec.write import to_dict
from gpu_panel import readonly
from gpu_panel.common.background import in_thread
from gpu_panel.common.errors import guard
from gpu_panel.launch.draft import Draft

VERSION = 2
_LARGEST = 1 << 20
"""Bytes of the largest file that is read."""
AFTER = 1.0
"""Seconds after a change until the form is written."""


class Autosave:
    """Writes the form a moment after it has changed, and as the panel closes."""

    def __init__(self, screen: Screen[Any], draft: Draft) -> None:
        """`draft`: the first one, which need not be written."""
        self._screen = screen
        self._written = written(draft, None)
        self._timer: Timer | None = None

    def keep_soon(self, draft: Draft, inventory: Inventory | None) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._screen.set_timer(AFTER, lambda: self._screen.run_worker(
            self._save(draft, inventory), group="keep", exit_on_error=False))

    async def _save(self, draft: Draft, inventory: Inventory | None) -> None:
        with guard(self._screen.app):
            try:
                form = self._unwritten(draft, inventory)
                await in_thread(lambda: form and write(form))
            except OSError as err:
                self._screen.notify(f"The form can't be saved: {err}",
                                    severity="warning", markup=False)

    def keep_at_once(self, draft: Draft, inventory: Inventory | None) -> None:
        """Write the form now, as the panel closes."""
        with suppress(OSError):
            if form := self._unwritten(draft, inventory):
                write(form)

    def _unwritten(self, draft: Draft, inventory: Inventory | None) -> dict[str, Any] | None:
        """What is to be written; None if that is in the file."""
        form = written(draft, inventory)
        if readonly.on or form == self._written:
            return None
        self._written = form
        return form


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
            "texts": dict(draft.texts) if changed else None,
            "devices": draft.lasting_devices(inventory) if changed else {},
            "ticked": (draft.ids_by_hand or draft.ticked_before) and changed,
            "asked": not draft.should_ask}


def write(kept: dict[str, Any]) -> None:
    """Keep a form. Raises OSError."""
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
    texts, trouble, preset, gone, run = kept["texts"], None, None, None, None
    if dropped := [key for key in texts or () if not is_key(key)]:
        trouble = UserError("The saved form has keys that this version does not know: "
                            + ", ".join(f"{key} = {texts.pop(key)}" for key in dropped)
                            + f". They are left out. {_moved(file, 'form-unknown.json')}")
    if kept["preset"] is not None:
        try:
            preset = presets.load(kept["preset"])
        except UserError as err:
            gone = err
    if texts is None and preset is None and kept["run"] is None:
        return None, gone  # nothing but a preset was kept, and that can't be read
    if kept["run"] is not None:
        try:
            run = str(kept["run"]["id"]), from_dict(kept["run"]["spec"])
        except SpecError as err:
            gone = gone or UserError(f"The saved form is of run {kept['run']['id']}, whose "
                                     f"settings no longer fit: {err}")
    draft = Draft.restored(preset, run, None if texts is None else (texts, kept["devices"]),
                           ticked=kept["ticked"] is True, asked=kept["asked"] is True)
    return draft, trouble or (gone if texts is None or preset is None else None)


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
    kept = dict.fromkeys(("preset", "run", "texts", "ticked", "asked")) | {"devices": {}} | kept
    texts, run = kept["texts"], kept["run"]
    if not (isinstance(kept["preset"], str | None) and isinstance(kept["devices"], dict)
            and (texts is None or (isinstance(texts, dict)
                                   and all(isinstance(text, str) for text in texts.values())))
            and (run is None or (isinstance(run, dict) and isinstance(run.get("spec"), dict)
                                 and isinstance(run.get("id"), str)))):
        raise ValueError("a value in it has the wrong type")
    return kept


def _moved(file: Path, name: str) -> str:
    """Move a file aside, so that the next form does not replace it, and say where it is."""
    aside = file.with_name(name)
    try:
        file.replace(aside)
    except OSError as err:
        return f"It could not be renamed: {err.strerror}."
    return f"The file is kept as {aside}."
