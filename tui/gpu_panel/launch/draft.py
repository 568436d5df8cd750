"""What the form is about: a preset's own nested dict, being edited.

No widgets here. Text typed into a field is read by `gpu_engine.spec.read.apply_set`, as the
command line's `--set` is, so a value that does not parse is kept as it was typed and becomes a
Problem when the spec is made of it.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_engine.common import values
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.devices.leases import Holder
from gpu_engine.devices.records import Device, Inventory, Snapshot
from gpu_engine.spec import modes
from gpu_engine.spec.catalog import TaskField
from gpu_engine.spec.presets import Preset
from gpu_engine.spec.read import apply_set, apply_sets, from_dict
from gpu_engine.spec.schema import SECTIONS, RunSpec
from gpu_engine.spec.write import to_dict


class Draft:
    """A preset being edited."""

    def __init__(self, preset: Preset | None = None) -> None:
        self.preset = preset
        self.data: dict[str, Any] = copy.deepcopy(preset.data) if preset else {}
        self.absent: tuple[str, ...] = ()
        self._asked = copy.deepcopy(self.data.get("devices", {}))
        self._aside: dict[str, Any] = {}
        self._ticked_by_hand = False
        self._loaded = copy.deepcopy(self.data)

    @classmethod
    def of_command(cls, command: Sequence[str], preset: Preset | None = None) -> Draft:
        """The person's own command, in place of the preset's task; without a preset over the
        defaults. What it is called is the command line's to say. Raises UserError."""
        from gpu_engine.cli.asked import ask

        asked = ask(preset.name if preset else None, [], list(command))
        draft = cls(preset)
        draft.data = to_dict(asked.spec, defaults=False)
        draft._loaded = draft.copy()
        return draft

    # --- values --------------------------------------------------------------------------------

    @property
    def base(self) -> tuple[str, RunSpec] | None:
        """What the typed line may build on."""
        return (self.preset.name, self.preset.spec) if self.preset else None

    @property
    def title(self) -> str:
        """"preset ddp (changed)"."""
        # Of a path the last part: the whole of it stands in the line.
        name = "preset " + self.preset.name.rpartition("/")[2] if self.preset else \
            f"your own {self.value('name')}" if "name" in self._loaded else "no preset"
        return f"{name} (changed)" if self.changed else name

    @property
    def changed(self) -> bool:
        """Whether it means something else than when it was loaded or saved."""
        return _said(self.data) != _said(self._loaded)

    def spec(self) -> RunSpec:
        """Raises SpecError with every value that does not parse."""
        return from_dict(self.data)

    def value(self, key: str) -> Any:
        """The value of a dotted key as it stands, the default where nothing is said."""
        section, _, name = key.partition(".")
        if key == "name":
            return self.data.get("name", RunSpec().name)
        if name.startswith("params."):
            return self.data.get("task", {}).get("params", {}).get(name[7:])
        part = self.data.get(section, {})
        return part[name] if name in part else getattr(SECTIONS[section](), name)

    def says(self, key: str) -> bool:
        """Whether the draft gives the key a value of its own."""
        section, _, name = key.partition(".")
        return key in self.data if not name else name in self.data.get(section, {})

    def text(self, key: str) -> str:
        """The value as a field shows it."""
        value = self.value(key)
        if value is None:
            return ""
        if key == "task.command":
            return " ".join(map(_typed, value)) if isinstance(value, list) else str(value)
        return values.show(value)

    def copy(self) -> dict[str, Any]:
        """The nested dict as it is now."""
        return copy.deepcopy(self.data)

    def assign(self, assignment: str) -> None:
        """One `key=value` of the command line. Raises SpecError."""
        apply_sets(self.data, [assignment])
        if assignment.startswith("devices."):
            self._asked = copy.deepcopy(self.data.get("devices", {}))

    def put(self, key: str, text: str) -> None:
        """Take what was typed; nothing typed means the default."""
        if key == "task.command":
            self._command(text)
        elif not text.strip():
            self.drop(key)
        elif key == "parallel.mode":
            self._mode(text)
        else:
            if key == "task.use":
                self.data.get("task", {}).pop("command", None)
            apply_set(self.data, f"{key}={text.strip()}")

    def put_param(self, field: TaskField, text: str) -> None:
        """A task's parameter: a text field keeps "123" a text."""
        key = f"task.params.{field.name}"
        if not text.strip():
            self.drop(key)
        else:
            params = self.data.setdefault("task", {}).setdefault("params", {})
            params[field.name] = values.parse(text, field.kind)

    def drop(self, key: str) -> None:
        """Say nothing about `key`, so that its default holds."""
        *sections, name = key.split(".")
        part = self.data
        for section in sections:
            part = part.get(section, {})
        part.pop(name, None)

    def use_task(self, use: str) -> None:
        """Another task: the parameters of the one before mean nothing to it."""
        task = self.data.setdefault("task", {})
        if task.get("use") != use or "command" in task:
            task.clear()
            if use:
                task["use"] = use

    def _command(self, text: str) -> None:
        task = self.data.setdefault("task", {})
        task.pop("use", None)
        task.pop("params", None)
        try:
            task["command"] = shlex.split(text)
        except ValueError:  # an open quote: the spec says what is wrong with a plain text
            task["command"] = text

    def _mode(self, name: str) -> None:
        """Choose a mode; the keys that mean nothing in it are kept aside until one wants them."""
        parallel, mode = self.data.setdefault("parallel", {}), modes.find(name)
        parallel["mode"] = name
        if mode is None:  # kept as it was typed: the spec says what is wrong with it
            return
        for key in [k for k in self._aside if mode.applies(f"parallel.{k}")]:
            parallel.setdefault(key, self._aside.pop(key))
        for key in [k for k in parallel if not mode.applies(f"parallel.{k}")]:
            self._aside[key] = parallel.pop(key)
        if mode.several_nodes:
            parallel.setdefault("nodes", 2)

    # --- devices -------------------------------------------------------------------------------

    @property
    def ids(self) -> list[str]:
        """What is ticked, in the order the ranks get."""
        ids = self.data.get("devices", {}).get("ids")
        return list(ids) if isinstance(ids, list) else []

    @property
    def hosts(self) -> list[str]:
        """The entries of other machines' devices, where some of those take part; then `ids` is
        empty, and this machine's are among these."""
        hosts = self.data.get("devices", {}).get("hosts")
        return list(hosts) if isinstance(hosts, list) else []

    @property
    def first_rank(self) -> int:
        """The rank of the first device that is ticked here."""
        node, mode = self.value("parallel.node_rank"), modes.find(self.value("parallel.mode"))
        return mode.node_rank(node) * len(self.ids) if mode and isinstance(node, int) else 0

    def tick(self, ids: Sequence[str]) -> None:
        """The person's ticks, all on this machine."""
        self._ticked_by_hand = True
        self.absent = ()
        self.data["devices"] = self._chosen(list(ids))

    def tick_hosts(self, entries: Sequence[str]) -> None:
        """The person's ticks on several machines, or on another one: entries of
        `devices.hosts`."""
        self.tick(())
        del self.data["devices"]["ids"]
        self.data["devices"]["hosts"] = list(entries)

    def forget_ticks(self) -> None:
        """Nothing is ticked until `resolve` has looked for what the preset asks for."""
        self.data.setdefault("devices", {})["ids"] = []

    def share(self) -> None:
        """Run beside others on what is ticked now; other ticks are another question."""
        self.data.setdefault("devices", {})["share"] = True

    def _chosen(self, ids: list[str]) -> dict[str, Any]:
        """The section for these ids; that the preset shares devices stays."""
        return {"ids": ids} | ({"share": True} if self._asked.get("share") is True else {})

    @property
    def ids_by_hand(self) -> bool:
        """Whether the person has ticked; then nobody else does."""
        return self._ticked_by_hand

    @property
    def picks(self) -> int | None:
        """How many of the freest devices the preset asks for, where it names none."""
        pick = self._asked.get("pick")
        return pick if isinstance(pick, int) and not self._asked.get("ids") else None

    @property
    def missing(self) -> int:
        """How many of the freest that the preset asks for could not be ticked."""
        if self._ticked_by_hand or self.picks is None:
            return 0
        return max(0, self.picks - len(self.ids))

    def resolve(self, inventory: Inventory, looks: Sequence[Snapshot],
                leases: Mapping[str, Holder]) -> None:
        """Turn what the preset asks for into ticks here: UUIDs into rows, a number into the
        freest. Names that are not here go to `absent`."""
        asked = self._asked.get("ids")
        chosen: list[Device] = []
        if isinstance(asked, list) and asked:
            found = [(str(name), inventory.find(str(name))) for name in asked]
            chosen = [device for _, device in found if device is not None]
            self.absent = tuple(name for name, device in found if device is None)
        elif self.hosts:
            return  # theirs are ticked as soon as those machines have been seen
        elif self.picks:
            chosen = freest(self.picks, inventory, looks, leases)
        self.data["devices"] = self._chosen([d.id for d in chosen])
        self._loaded["devices"] = copy.deepcopy(self.data["devices"])

    def to_save(self, inventory: Inventory | None) -> RunSpec:
        """The spec as a preset keeps it: cards by UUID; devices that nobody touched as the
        preset asked for them. Raises SpecError."""
        data = copy.deepcopy(self.data)
        if not self._ticked_by_hand and self._asked:
            data["devices"] = copy.deepcopy(self._asked)
        elif inventory is not None and not self.hosts:
            found = [(name, inventory.find(name)) for name in self.ids]
            data["devices"]["ids"] = [d.uuid if d and d.uuid else name for name, d in found]
        return from_dict(data)

    def saved(self, preset: Preset) -> None:
        """What is in the form is now what `preset` holds."""
        self.preset = preset
        self._asked = copy.deepcopy(preset.data.get("devices", {}))
        self._ticked_by_hand = False
        self._loaded = copy.deepcopy(self.data)


def freest(count: int, inventory: Inventory, looks: Sequence[Snapshot],
           leases: Mapping[str, Holder]) -> list[Device]:
    """The freest devices, at most `count`; fewer where fewer may be taken.

    What has not been looked at long enough to be called free is still offered here: nothing is
    started before the person has seen which ones are ticked. What is unknown for another reason
    is not.
    """
    from gpu_engine.devices import availability as free

    if not looks and inventory.is_cpu:
        return list(inventory.devices[:count])
    count = min(count, len(inventory.devices))
    try:
        return free.freest(count, looks, leases)
    except UserError:
        states = free.judge_all(looks, leases)
        so_far = free.judge_all(looks, leases, looks=max(1, min(len(looks), free.LOOKS)))
        newest = [s for s in looks[-1].samples if s.device.id in so_far] if looks else []
        able = free.unmixed([s for s in newest if so_far[s.device.id].free], count)
        able.sort(key=lambda s: not states[s.device.id].free)
        chosen = {s.device.id for s in able[:count]}
        return [d for d in inventory.devices if d.id in chosen]


def _typed(argument: str) -> str:
    """As a person would type it: quoted where a shell needs it, placeholders as they are."""
    plain = re.sub(r"\{[\w.]+\}", "x", argument)
    return argument if plain and shlex.quote(plain) == plain else shlex.quote(argument)


def _said(data: dict[str, Any]) -> Any:
    """What a draft means, so that "3e-4" retyped, or a default spelled out, is no change."""
    try:
        return to_dict(from_dict(data))
    except SpecError:
        return data
