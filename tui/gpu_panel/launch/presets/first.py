"""The draft that the panel opens with, made from its command line. No widgets."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.spec import presets
from gpu_panel.launch import saved_form
from gpu_panel.launch.draft import Draft


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
        last, lost = saved_form.read()
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
