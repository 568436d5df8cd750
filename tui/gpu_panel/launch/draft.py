"""The draft: the nested dict of a preset while it is edited in the form.

No widgets. Text typed into a field is read by `gpu_engine.spec.read.apply_set`, like the command
line's `--set`. A value that can't be parsed is kept as it was typed and becomes a Problem when the
spec is made from the draft.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_engine.common import values
from gpu_engine.common.errors import SpecError
from gpu_engine.devices.leases import Holder
from gpu_engine.devices.records import Device, Inventory, Snapshot
from gpu_engine.plan import own_command
from gpu_engine.spec import modes
from gpu_engine.spec.catalog import TaskField
from gpu_engine.spec.presets import Preset
from gpu_engine.spec.read import apply_set, apply_sets, from_dict
from gpu_engine.spec.schema import SECTIONS, RunSpec
from gpu_engine.spec.write import Difference, compare, to_dict
from gpu_panel.launch.devices.ticking import freest


class Draft:
    """A preset that is being edited."""

    def __init__(self, preset: Preset | None = None) -> None:
        self.preset = preset
        self.absent: tuple[str, ...] = ()
        self._aside: dict[str, Any] = {}
        """Keys of `parallel` that the chosen mode does not use, kept for another mode."""
        self._carried: dict[str, object] = {}
        """What the sections had when the task became the person's own command. Of that, what does
        not reach the command is left out: it was the other task's. What was typed since is
        refused if it does not."""
        self.ids_by_hand = False
        """Whether the person has ticked devices; then the preset's are not ticked any more."""
        self._mode_chosen = False
        """Whether the person has chosen the mode: then no tick changes it."""
        self._mode_before: str | None = None
        """The mode that was too small for what is ticked; None if the mode is as it was."""
        self.run: tuple[str, RunSpec] | None = None
        """The id and the spec of the run whose settings these were; None for a preset's."""
        self.ticked_before = False
        self.ticked = False
        """Whether its devices are known: the preset's were looked up, or the person has ticked."""
        self._asked: dict[str, Any] | None = None
        """The content about which the person was asked last whether it may be left unsaved."""
        self._begin(preset.data if preset else {})

    def _begin(self, data: Mapping[str, Any]) -> None:
        self.data: dict[str, Any] = copy.deepcopy(dict(data))
        self._preset_devices = copy.deepcopy(self.data.get("devices", {}))
        """The section `devices` as the preset has it, before anything was ticked here."""
        self._loaded = self.copy()

    @classmethod
    def of_run(cls, run_id: str, data: dict[str, Any]) -> Draft:
        """A draft with the settings of a run, to change something in it. Raises SpecError."""
        spec = from_dict(data)
        draft = cls()
        draft.run = run_id, spec
        draft._begin(to_dict(spec, defaults=False))
        return draft

    @classmethod
    def of_command(cls, command: Sequence[str], preset: Preset | None = None) -> Draft:
        """A draft with the person's own command in place of the preset's task; without a preset,
        with the defaults. The run's name is chosen as on the command line. Raises UserError."""
        from gpu_engine.cli.spec_options import choose_spec

        chosen = choose_spec(preset.name if preset else None, [], list(command))
        draft = cls(preset)
        before = to_dict(preset.spec if preset else chosen.spec, defaults=False)
        devices = draft._preset_devices
        draft._begin(before | {"name": chosen.spec.name, "task": {"command": list(command)}})
        draft._carry(before)
        draft._preset_devices = devices
        return draft

    @classmethod
    def restored(cls, preset: Preset | None, run: tuple[str, RunSpec] | None,
                 data: dict[str, Any] | None, *, ticked: bool, asked: bool) -> Draft:
        """The draft of last time: `data` with its unsaved changes, None if it had none. `ticked`:
        the devices in it were ticked by the person. `asked`: the changes may be left unsaved."""
        draft = cls(preset) if run is None else cls.of_run(run[0], to_dict(run[1]))
        if data is not None:
            draft.preset, loaded = preset, draft._loaded
            draft._begin(data)
            if preset is not None or run is not None:
                draft._loaded = loaded
            draft._carry(data)  # which of it was typed is not kept
            draft.ticked_before = ticked
            if asked:
                draft._asked = draft.copy()
        return draft

    def to_keep(self, inventory: Inventory | None) -> dict[str, Any]:
        """The nested dict for the next time, with the devices as a preset has them. Values that
        can't be parsed are in it."""
        return self._lasting(self.copy(), inventory, as_before=True)

    def _lasting(self, data: dict[str, Any], inventory: Inventory | None, *, as_before: bool
                 ) -> dict[str, Any]:
        """`data` with ticked cards named by UUID. `as_before`: if nothing was ticked by hand, the
        devices are those that the preset had."""
        if as_before and not self.ids_by_hand:
            data["devices"] = copy.deepcopy(self._preset_devices)
        elif inventory is not None and not self.hosts:
            found = [(name, inventory.find(name)) for name in self.ids]
            data["devices"]["ids"] = [d.uuid if d and d.uuid else name for name, d in found]
        return data

    # --- values --------------------------------------------------------------------------------

    @property
    def base(self) -> tuple[str, RunSpec] | None:
        """The name and the spec of the preset that the shown command may build on."""
        return (self.preset.name, self.preset.spec) if self.preset else None

    @property
    def title(self) -> str:
        """"preset ddp (changed)"."""
        # Only the last part of a path: the whole path is in the shown command.
        name = f"run {self.run[0]}" if self.run else \
            "preset " + self.preset.name.rpartition("/")[2] if self.preset else \
            f"your own {self.value('name')}" if "name" in self._loaded else "no preset"
        return f"{name} (changed)" if self.changed else name

    @property
    def changed(self) -> bool:
        """Whether it means something else than when it was loaded or saved."""
        return _meaning(self.data) != _meaning(self._loaded)

    def differences(self) -> list[Difference]:
        """What is not as in the run whose settings these were. Raises SpecError."""
        return compare(self.run[1], self.spec()) if self.run else []

    def spec(self) -> RunSpec:
        """The spec of this draft. Raises SpecError with every value that can't be parsed."""
        return from_dict(self.effective())

    def effective(self) -> dict[str, Any]:
        """A copy of the data without what was another task's and does not reach the own command."""
        carried = {key for key in self._carried if self._is_carried(key)}
        return copy.deepcopy(own_command.left_out(self.data, only=carried))

    def _is_carried(self, key: str) -> bool:
        return self.says(key) and self.value(key) == self._carried[key]

    def insists(self, key: str) -> bool:
        """Whether it has another value for the key than the default or another task's."""
        section, _, name = key.partition(".")
        return self.says(key) and not (key in self._carried and self._is_carried(key)) \
            and self.value(key) != getattr(SECTIONS[section](), name)

    def spec_to_wait(self) -> RunSpec:
        """The spec for the queue. That the person has shared devices once, by a question of Launch,
        does not hold for a run that waits for free ones. Raises as `spec`."""
        data = self.effective()
        if self._preset_devices.get("share") is not True:
            data.get("devices", {}).pop("share", None)
        return from_dict(data)

    def value(self, key: str) -> object:
        """The present value of a dotted key, or its default."""
        section, _, name = key.partition(".")
        if key == "name":
            return self.data.get("name", RunSpec().name)
        if name.startswith("params."):
            return self.data.get("task", {}).get("params", {}).get(name[7:])
        part = self.data.get(section, {})
        return part[name] if name in part else getattr(SECTIONS[section](), name)

    def says(self, key: str) -> bool:
        """Whether the draft has a value for the key, so that its default does not apply."""
        section, _, name = key.partition(".")
        return key in self.data if not name else name in self.data.get(section, {})

    def text(self, key: str) -> str:
        """The value as a field shows it."""
        value = self.value(key)
        if value is None:
            return ""
        if key == "task.command":
            return " ".join(map(_typed, value)) if isinstance(value, list) else str(value)
        if key == "run.env":
            return " ".join(f"{name}={shlex.quote(str(text))}" for name, text in value.items()) \
                if isinstance(value, dict) else str(value)
        return values.show(value)

    def copy(self) -> dict[str, Any]:
        return copy.deepcopy(self.data)

    def assign(self, *assignments: str) -> None:
        """Apply the `key=value`s of a command line. Raises SpecError."""
        apply_sets(self.data, assignments)
        self._mode_chosen = any(a.startswith("parallel.mode=") for a in assignments)
        self._preset_devices = copy.deepcopy(self.data.get("devices", {}))

    def put(self, key: str, text: str) -> None:
        """Take the text of a field; empty text means the default."""
        if key == "task.command":
            self._command(text)
        elif not text.strip():
            self.drop(key)
        elif key == "parallel.mode":
            self._mode_chosen, self._mode_before = True, None
            self._mode(text)
        else:
            if key == "task.use":
                self.data.get("task", {}).pop("command", None)
            apply_set(self.data, f"{key}={text.strip()}")

    def put_param(self, field: TaskField, text: str) -> None:
        """Take the text of a task's parameter. A parameter of type str keeps "123" a string."""
        key = f"task.params.{field.name}"
        if not text.strip():
            self.drop(key)
        else:
            params = self.data.setdefault("task", {}).setdefault("params", {})
            params[field.name] = values.parse(text, field.kind)

    def drop(self, key: str) -> None:
        """Remove the value of `key`, so that its default applies."""
        *sections, name = key.split(".")
        part = self.data
        for section in sections:
            part = part.get(section, {})
        part.pop(name, None)

    def use_task(self, use: str) -> None:
        """Choose another task, and drop the parameters of the one before."""
        task = self.data.setdefault("task", {})
        if task.get("use") != use or "command" in task:
            task.clear()
            if use:
                task["use"] = use

    def _carry(self, data: Mapping[str, Any]) -> None:
        self._carried = {f"{section}.{name}": value for section, part in data.items()
                         if isinstance(part, dict) for name, value in part.items()}

    def _command(self, text: str) -> None:
        task = self.data.setdefault("task", {})
        if "command" not in task:
            self._carry(self.data)
        task.pop("use", None)
        task.pop("params", None)
        apply_set(self.data, f"task.command={text}")

    def _mode(self, name: str) -> None:
        """Choose a mode. Keys that it does not use are set aside for another mode."""
        parallel, mode = self.data.setdefault("parallel", {}), modes.find(name)
        parallel["mode"] = name
        if mode is None:  # an unknown mode: making the spec then reports the problem
            return
        for key in [k for k in self._aside if mode.applies(f"parallel.{k}")]:
            parallel.setdefault(key, self._aside.pop(key))
        for key in [k for k in parallel if not mode.applies(f"parallel.{k}")]:
            self._aside[key] = parallel.pop(key)
        if mode.several_nodes:
            parallel.setdefault("nodes", 2)

    # --- leaving -------------------------------------------------------------------------------

    @property
    def should_ask(self) -> bool:
        """Whether there are changes about which the person was not asked yet."""
        return self.changed and self._asked != self.data

    def asked(self) -> None:
        """Take note that the present changes may be left unsaved: the person was asked, or has
        launched them, so that the run has them."""
        self._asked = self.copy()

    # --- devices -------------------------------------------------------------------------------

    @property
    def ids(self) -> list[str]:
        """The ids of the ticked devices, in the order of the ranks."""
        ids = self.data.get("devices", {}).get("ids")
        return list(ids) if isinstance(ids, list) else []

    @property
    def hosts(self) -> list[str]:
        """The entries where other machines take part; `ids` is empty then, as ours are here."""
        hosts = self.data.get("devices", {}).get("hosts")
        return list(hosts) if isinstance(hosts, list) else []

    @property
    def mode(self) -> str:
        """The mode that it runs in: the chosen one, unless the number of hosts says another."""
        chosen = str(self.value("parallel.mode"))
        try:
            return modes.over_hosts(len(self.hosts), chosen)
        except SpecError:  # the review reports it
            return chosen

    @property
    def first_rank(self) -> int:
        """The rank of the first device that is ticked on this machine."""
        node, mode = self.value("parallel.node_rank"), modes.find(str(self.value("parallel.mode")))
        return mode.node_rank(node) * len(self.ids) if mode and isinstance(node, int) else 0

    def tick(self, ids: Sequence[str]) -> None:
        """Take the person's ticks, all on this machine, in the order of the ranks."""
        self._ticked(self._chosen(list(ids)), len(ids))

    def tick_hosts(self, entries: Sequence[str], devices: int) -> None:
        """Take the person's ticks on several machines or on another one, as entries of
        `devices.hosts`; `devices` in all."""
        chosen = self._chosen([])
        del chosen["ids"]
        self._ticked(chosen | {"hosts": list(entries)}, devices)

    def _ticked(self, chosen: dict[str, Any], count: int) -> None:
        """Take `count` ticks. The mode follows while it can't use so many."""
        self.ids_by_hand = self.ticked = True
        self.absent = ()
        self.data["devices"] = chosen
        mode = self._mode_before or str(self.value("parallel.mode"))
        if self._mode_chosen or modes.find(mode) is None:
            return
        fits = modes.over_devices(count, mode)
        self._mode_before = mode if fits != mode else None
        if fits != self.value("parallel.mode"):
            self._mode(fits)

    def forget_ticks(self) -> None:
        """Tick nothing until `resolve` has looked up what the preset asks for."""
        self.ticked = False
        self.data.setdefault("devices", {})["ids"] = []

    def share(self) -> None:
        """Allow sharing the devices that are ticked now. Other ticks undo it."""
        self.data.setdefault("devices", {})["share"] = True

    def _chosen(self, ids: list[str]) -> dict[str, Any]:
        """The section `devices` for these ids, sharing devices if the preset does."""
        return {"ids": ids} | ({"share": True} if self._preset_devices.get("share") is True else {})

    @property
    def picks(self) -> int | None:
        """How many of the freest devices the preset asks for; None if it names devices."""
        pick = 1 if self._names_none else self._preset_devices.get("pick")
        return pick if isinstance(pick, int) and not self._preset_devices.get("ids") else None

    @property
    def _names_none(self) -> bool:
        """Whether a preset or a command leaves the devices open, and so gets the freest one."""
        return self._preset_devices.keys().isdisjoint(("ids", "pick", "hosts")) and (
            self.preset is not None or self.value("task.command") is not None)

    @property
    def picks_with(self) -> float | None:
        """How many GiB must be free on each of the devices that the preset asks for."""
        free = self._preset_devices.get("free_gib")
        return float(free) if isinstance(free, int | float) else None

    @property
    def missing(self) -> int:
        """How many of the freest devices that the preset asks for could not be ticked."""
        if self.ids_by_hand or self.picks is None:
            return 0
        return max(0, self.picks - len(self.ids))

    def resolve(self, inventory: Inventory, snapshots: Sequence[Snapshot],
                leases: Mapping[str, Holder]) -> None:
        """Tick the devices that the preset names, or the freest; absent ones go to `absent`."""
        self.ticked = True
        names = self._preset_devices.get("ids")
        chosen: list[Device] = []
        if isinstance(names, list) and names:
            found = [(str(name), inventory.find(str(name))) for name in names]
            chosen = [device for _, device in found if device is not None]
            self.absent = tuple(name for name, device in found if device is None)
        elif self.hosts:
            return  # theirs are ticked as soon as those machines have been seen
        elif self.picks:
            chosen = freest(self.picks, inventory, snapshots, leases)
        self.data["devices"] = self._chosen([d.id for d in chosen])
        if not self.ticked_before:
            self._loaded["devices"] = copy.deepcopy(self.data["devices"])
        if self._asked is not None:  # nothing was changed by this
            self._asked["devices"] = copy.deepcopy(self.data["devices"])

    def to_save(self, inventory: Inventory | None) -> RunSpec:
        """The spec to save as a preset. Ticked cards are named by UUID; if nothing was ticked by
        hand, the devices stay as the preset had them. Raises SpecError."""
        return from_dict(self._lasting(self.effective(), inventory, as_before=bool(
            self._preset_devices or self._names_none)))

    def saved(self, preset: Preset) -> None:
        self.preset, self.run = preset, None
        self._preset_devices = copy.deepcopy(preset.data.get("devices", {}))
        self.ids_by_hand = False
        self._loaded = self.copy()


def _typed(argument: str) -> str:
    """An argument as one would type it: quoted for a shell, but with placeholders unquoted."""
    plain = re.sub(r"\{[\w.]+\}", "x", argument)
    return argument if plain and shlex.quote(plain) == plain else shlex.quote(argument)


def _meaning(data: dict[str, Any]) -> Any:
    """What a draft means. "3e-4" typed again, or a default written out, is no change."""
    try:
        return to_dict(from_dict(data))
    except SpecError:
        return data
