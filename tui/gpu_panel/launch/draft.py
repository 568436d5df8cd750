"""The draft: what the form says and which devices are ticked, before it is launched. No widgets.

It is a text for each key, as it was typed. `gpu_engine.spec.read` reads these texts as it reads the
`--set`s of a command line, and says what does not fit.
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
from gpu_engine.devices.records import Inventory, Snapshot
from gpu_engine.plan import own_command
from gpu_engine.spec import modes
from gpu_engine.spec.catalog import TaskField
from gpu_engine.spec.presets import Preset
from gpu_engine.spec.read import apply_set, apply_sets, from_dict, spelled_out
from gpu_engine.spec.schema import ONE_OF, RunSpec, keys
from gpu_engine.spec.write import Difference, compare, to_dict
from gpu_panel.launch.device_source import freest


class Draft:
    """What is edited in the form."""

    def __init__(self, preset: Preset | None = None) -> None:
        self.preset = preset
        self.run: tuple[str, RunSpec] | None = None
        """The id and the spec of the run whose settings these were; None for a preset's."""
        self.absent: tuple[str, ...] = ()
        """Devices that the preset names and that are not here."""
        self.ids_by_hand = False
        """Whether the person has ticked devices; then the preset's are not ticked any more."""
        self.ticked = self.ticked_before = False
        """Whether its devices are known: the preset's were looked up, or the person has ticked;
        `ticked_before`: the person did so the last time the panel was open."""
        self._carried: dict[str, str] = {}
        """The texts when the task became the person's own command. Of these, what does not reach
        the command is left out: it was the other task's."""
        self._mode_chosen = False
        """Whether the person has chosen the mode: then no tick changes it."""
        self._mode_before: str | None = None
        """The mode that was too small for what is ticked; None if the mode is as it was."""
        self._asked: object = None
        """The content about which the person was asked last whether it may be left unsaved."""
        self._begin(texts_of(preset.spec) if preset else {},
                    preset.data.get("devices", {}) if preset else {})

    def _begin(self, texts: dict[str, str], devices: dict[str, Any]) -> None:
        self.texts = texts
        self.devices = copy.deepcopy(devices)
        """The section `devices`, with what is ticked now."""
        self._preset_devices = copy.deepcopy(devices)
        self._loaded = self.data

    @classmethod
    def of_run(cls, run_id: str, data: dict[str, Any]) -> Draft:
        """A draft with the settings of a run, to change something in it. Raises SpecError."""
        spec = from_dict(data)
        draft = cls()
        draft.run = run_id, spec
        draft._begin(texts_of(spec), to_dict(spec, defaults=False).get("devices", {}))
        return draft

    @classmethod
    def of_command(cls, command: Sequence[str], preset: Preset | None = None) -> Draft:
        """A draft with the person's own command in place of the preset's task; without a preset,
        with the defaults. The run's name is chosen as on the command line. Raises UserError."""
        from gpu_engine.cli.spec_options import choose_spec

        chosen = choose_spec(preset.name if preset else None, [], list(command)).spec
        draft = cls(preset)
        draft._carried = {k: t for k, t in draft.texts.items() if not k.startswith("task.")}
        draft._begin(draft._carried | {"name": chosen.name, "task.command": _line(command)},
                     draft.devices)
        return draft

    @classmethod
    def restored(cls, preset: Preset | None, run: tuple[str, RunSpec] | None,
                 kept: tuple[dict[str, str], dict[str, Any]] | None, *, ticked: bool, asked: bool
                 ) -> Draft:
        """The draft of last time: `kept` are its texts and devices, None if nothing was changed.
        `ticked`: the devices were ticked by the person. `asked`: changes may be left unsaved."""
        draft = cls(preset) if run is None else cls.of_run(run[0], to_dict(run[1]))
        if kept is not None:
            draft.preset, loaded = preset, draft._loaded
            draft._begin(*kept)
            if preset is not None or run is not None:
                draft._loaded = loaded
            draft._carried = dict(draft.texts)  # which of it was typed is not kept
            draft.ticked_before = ticked
            if asked:
                draft.asked()
        return draft

    # --- texts and what they mean --------------------------------------------------------------

    @property
    def data(self) -> dict[str, Any]:
        """The nested dict of a preset, in which a text that can't be parsed stays a text. What the
        mode has no use for is left out, and there again in another mode."""
        data: dict[str, Any] = {}
        mode = modes.find(self.texts.get("parallel.mode", RunSpec().parallel.mode))
        for key, text in self.texts.items():
            if mode is None or mode.applies(key):
                apply_set(data, f"{key}={text}")
        return data | ({"devices": copy.deepcopy(self.devices)} if self.devices else {})

    def effective(self) -> dict[str, Any]:
        """The data without what was another task's and does not reach the own command."""
        return own_command.left_out(
            self.data, only=[k for k, t in self._carried.items() if self.texts.get(k) == t])

    def spec(self) -> RunSpec:
        """The spec of this draft. Raises SpecError with every value that can't be parsed."""
        return from_dict(self.effective())

    def spec_to_wait(self) -> RunSpec:
        """The spec for the queue. That the person has shared devices once, by a question of Launch,
        does not hold for a run that waits for free ones. Raises as `spec`."""
        data = self.effective()
        if self._preset_devices.get("share") is not True:
            data.get("devices", {}).pop("share", None)
        return from_dict(data)

    def value(self, key: str) -> Any:
        """The present value of a dotted key, or its default."""
        section, _, name = key.rpartition(".")
        part = self.data
        for step in section.split(".") if section else ():
            part = part.get(step, {})
        return part[name] if name in part else keys()[key].default if key in keys() else None

    def says(self, key: str) -> bool:
        """Whether the draft has a value for the key, so that its default does not apply."""
        return key in self.texts

    def insists(self, key: str) -> bool:
        """Whether it has a value for the key that is not another task's."""
        return key in self.texts and self._carried.get(key) != self.texts[key]

    def text(self, key: str) -> str:
        """The text of a key, or that of its default."""
        text = self.texts.get(key)
        if text is not None and key.startswith("task.params."):
            return values.show(values.parse(text, values.ANY))  # a text without its quotes
        return text if text is not None else values.show(keys()[key].default) \
            if key in keys() else ""

    def put(self, key: str, text: str) -> None:
        """Take the text of a field; empty text means the default."""
        text = text.strip()
        if key == "task.command":
            if key not in self.texts:
                self._carried = dict(self.texts)
            self.use_task("")
            self.texts[key] = text  # an empty one is refused by the review
        elif not text:
            self.texts.pop(key, None)
        else:
            for pair in ONE_OF:
                if key in pair:
                    self.texts.pop(pair[key == pair[0]], None)
            if key == "parallel.mode":
                self._mode_chosen, self._mode_before = True, None
                self._mode(text)
            self.texts[key] = text

    def put_param(self, field: TaskField, text: str) -> None:
        """Take the text of a task's parameter. A parameter of type str keeps "123" a string."""
        key = f"task.params.{field.name}"
        self.put(key, values.in_toml(values.parse(text, field.kind)) if text.strip() else "")

    def use_task(self, use: str) -> None:
        """Choose another task, and drop the parameters of the one before."""
        if not use or self.texts.get("task.use") != use:
            self.texts = {k: t for k, t in self.texts.items() if not k.startswith("task.")}
            self.put("task.use", use)

    def assign(self, *assignments: str) -> None:
        """Apply the `key=value`s of a command line. Raises SpecError."""
        data = self.data
        apply_sets(data, assignments)
        for key, _, text in (spelled_out(a).partition("=") for a in assignments):
            key = key.strip()
            if key.startswith("run.env."):
                key, text = "run.env", _variables(data["run"]["env"])
            if key == "task.use":
                self.use_task(text)
            elif not key.startswith("devices."):
                self.put(key, text)
        self.devices = data.get("devices", {})
        self._preset_devices = copy.deepcopy(self.devices)

    def _mode(self, name: str) -> None:
        self.texts["parallel.mode"] = name
        mode = modes.find(name)
        if mode is not None and mode.several_nodes:
            self.texts.setdefault("parallel.nodes", "2")

    # --- where it is from, and whether it was changed ------------------------------------------

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
            f"your own {self.text('name')}" if "name" in self._loaded else "no preset"
        return f"{name} (changed)" if self.changed else name

    @property
    def changed(self) -> bool:
        """Whether it means something else than when it was loaded or saved."""
        return _meaning(self.data) != _meaning(self._loaded)

    def differences(self) -> list[Difference]:
        """What is not as in the run whose settings these were. Raises SpecError."""
        return compare(self.run[1], self.spec()) if self.run else []

    @property
    def should_ask(self) -> bool:
        """Whether there are changes about which the person was not asked yet."""
        return self.changed and self._asked != self.data

    def asked(self) -> None:
        """Take note that the present changes may be left unsaved: the person was asked, or has
        launched them, so that the run has them."""
        self._asked = self.data

    def to_save(self, inventory: Inventory | None) -> RunSpec:
        """The spec to save as a preset. Ticked cards are named by UUID; if nothing was ticked by
        hand, the devices stay as the preset had them. Raises SpecError."""
        data = self.effective()
        if self._preset_devices or self._names_none or self.ids_by_hand:
            data["devices"] = self.lasting_devices(inventory)
        return from_dict(data)

    def lasting_devices(self, inventory: Inventory | None) -> dict[str, Any]:
        """The section `devices` for another day: cards that the person has ticked are named by
        UUID, and else it is as the preset has it."""
        if not self.ids_by_hand:
            return copy.deepcopy(self._preset_devices)
        devices = copy.deepcopy(self.devices)
        if inventory is not None and not self.hosts:
            known = [(name, inventory.find(name)) for name in self.ids]
            devices["ids"] = [d.uuid if d and d.uuid else name for name, d in known]
        return devices

    def saved(self, preset: Preset) -> None:
        self.preset, self.run = preset, None
        self._preset_devices = copy.deepcopy(preset.data.get("devices", {}))
        self.ids_by_hand = False
        self._loaded = self.data

    # --- devices -------------------------------------------------------------------------------

    @property
    def ids(self) -> list[str]:
        """The ids of the ticked devices, in the order of the ranks."""
        ids = self.devices.get("ids")
        return list(ids) if isinstance(ids, list) else []

    @property
    def hosts(self) -> list[str]:
        """The entries where other machines take part; `ids` is empty then, as ours are here."""
        hosts = self.devices.get("hosts")
        return list(hosts) if isinstance(hosts, list) else []

    @property
    def mode(self) -> str:
        """The mode that it runs in: the chosen one, unless the number of hosts says another."""
        chosen = self.text("parallel.mode")
        try:
            return modes.over_hosts(len(self.hosts), chosen)
        except SpecError:  # the review reports it
            return chosen

    @property
    def first_rank(self) -> int:
        """The rank of the first device that is ticked on this machine."""
        node, mode = self.value("parallel.node_rank"), modes.find(self.text("parallel.mode"))
        return mode.node_rank(node) * len(self.ids) if mode and isinstance(node, int) else 0

    def tick(self, ids: Sequence[str]) -> None:
        """Take the person's ticks, all on this machine, in the order of the ranks."""
        self._ticked({"ids": list(ids)}, len(ids))

    def tick_hosts(self, entries: Sequence[str], devices: int) -> None:
        """Take the person's ticks on several machines or on another one, as entries of
        `devices.hosts`; `devices` in all."""
        self._ticked({"hosts": list(entries)}, devices)

    def _ticked(self, chosen: dict[str, Any], count: int) -> None:
        """Take `count` ticks. The mode follows while it can't use so many."""
        self.ids_by_hand = self.ticked = True
        self.absent = ()
        self.devices = chosen | self._shared
        mode = self._mode_before or self.text("parallel.mode")
        if self._mode_chosen or modes.find(mode) is None:
            return
        fits = modes.over_devices(count, mode)
        self._mode_before = mode if fits != mode else None
        if fits != self.text("parallel.mode"):
            self._mode(fits)

    @property
    def _shared(self) -> dict[str, Any]:
        return {"share": True} if self._preset_devices.get("share") is True else {}

    def forget_ticks(self) -> None:
        """Tick nothing until `resolve` has looked up what the preset asks for."""
        self.ticked = False
        self.devices["ids"] = []

    def share(self) -> None:
        """Allow sharing the devices that are ticked now. Other ticks undo it."""
        self.devices["share"] = True

    @property
    def picks(self) -> int | None:
        """How many of the freest devices the preset asks for; None if it names devices."""
        pick = 1 if self._names_none else self._preset_devices.get("pick")
        return pick if isinstance(pick, int) and not self._preset_devices.get("ids") else None

    @property
    def _names_none(self) -> bool:
        """Whether a preset or a command leaves the devices open, and so gets the freest one."""
        return self._preset_devices.keys().isdisjoint(("ids", "pick", "hosts")) and (
            self.preset is not None or self.says("task.command"))

    @property
    def picks_with(self) -> float | None:
        """How many GiB must be free on each of the devices that the preset asks for."""
        free = self._preset_devices.get("free_gib")
        return float(free) if isinstance(free, int | float) else None

    @property
    def missing(self) -> int:
        """How many of the freest devices that the preset asks for could not be ticked."""
        return 0 if self.ids_by_hand or self.picks is None else max(0, self.picks - len(self.ids))

    def resolve(self, inventory: Inventory, snapshots: Sequence[Snapshot],
                leases: Mapping[str, Holder]) -> None:
        """Tick the devices that the preset names, or the freest; absent ones go to `absent`."""
        self.ticked = True
        names = self._preset_devices.get("ids")
        chosen = []
        if isinstance(names, list) and names:
            found = [(str(name), inventory.find(str(name))) for name in names]
            chosen = [device for _, device in found if device is not None]
            self.absent = tuple(name for name, device in found if device is None)
        elif self.hosts:
            return  # theirs are ticked as soon as those machines have been seen
        elif self.picks:
            chosen = freest(self.picks, inventory, snapshots, leases)
        self.devices = {"ids": [d.id for d in chosen]} | self._shared
        for before in (self._asked, None if self.ticked_before else self._loaded):
            if isinstance(before, dict):  # nothing was changed by this
                before["devices"] = copy.deepcopy(self.devices)


def texts_of(spec: RunSpec) -> dict[str, str]:
    """What differs from the defaults, as it would be typed, without the devices."""
    found = {d.key: d.after for d in compare(RunSpec(), spec) if d.after is not None
             and not d.key.startswith(("devices.", "run.env."))}
    if spec.task.command is not None:
        found["task.command"] = _line(spec.task.command)
    return found | ({"run.env": _variables(spec.run.env)} if spec.run.env else {})


def _variables(env: Mapping[str, object]) -> str:
    return " ".join(f"{name}={shlex.quote(str(text))}" for name, text in env.items())


def _line(command: Sequence[str]) -> str:
    """A command as one would type it: quoted for a shell, but with placeholders unquoted."""
    plain = [re.sub(r"\{[\w.]+\}", "x", word) for word in command]
    return " ".join(word if text and shlex.quote(text) == text else shlex.quote(word)
                    for word, text in zip(command, plain, strict=True))


def _meaning(data: dict[str, Any]) -> Any:
    """What a draft means. "3e-4" typed again, or a default written out, is no change."""
    try:
        return to_dict(from_dict(data))
    except SpecError:
        return data
