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
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.devices.leases import Holder
from gpu_engine.devices.records import Inventory, Snapshot
from gpu_engine.plan import own_command
from gpu_engine.spec import modes, presets
from gpu_engine.spec.catalog import TaskField
from gpu_engine.spec.host_names import LOCAL, SLURM, HostDevices
from gpu_engine.spec.presets import Preset
from gpu_engine.spec.read import apply_set, from_dict, spelled_out
from gpu_engine.spec.schema import ONE_OF, RunSpec, keys
from gpu_engine.spec.write import Difference, compare, to_dict
from gpu_panel.launch.device_source import freest

OF_SLURM = ("devices.pick", "run.sbatch")
"""Keys that are asked for Slurm alone: elsewhere devices are ticked."""


class Draft:
    """What is edited in the form."""

    def __init__(self, spec: RunSpec | None = None, preset: Preset | None = None,
                 run: str = "") -> None:
        """`spec`: what it says at first; None: that of the preset, or the defaults. `preset`,
        `run` (an id): where that is from."""
        origin = preset.spec if preset is not None else RunSpec()
        self.preset, self.run, self._origin = preset, run, spec or origin
        self.texts = texts_of(self._origin)
        self.devices: dict[str, Any] = to_dict(self._origin, defaults=False).get("devices", {})
        """The section `devices`, with what is ticked now."""
        self._preset_devices = copy.deepcopy(self.devices)
        self._preset_on_slurm = self.on_slurm = _is_for_slurm(self._origin)
        """Whether it is for nodes that Slurm chooses. Their number of devices is a text then."""
        self._slurm: list[str] = self._preset_devices["hosts"] if self.on_slurm else [SLURM]
        """The entries of `devices.hosts` for a run on Slurm."""
        if self.on_slurm:
            slots = self._preset_devices["hosts"][0].count("cpu:")
            if (count := self.devices.pop("pick", None) or slots):
                self.texts["devices.pick"] = str(count)
        self._loaded = self.data
        if spec is not None and preset is not None and spec.task.command is None:
            self._loaded = Draft(None, preset).data
        self.absent: tuple[str, ...] = ()
        """Devices that the preset names and that are not here."""
        self.ids_by_hand = False
        """Whether the person has ticked devices; then the preset's are not ticked any more."""
        self._mode_chosen = False
        """Whether the person has chosen the mode: then no tick changes it."""
        self._mode_before: str | None = None
        """The mode that was too small for what is ticked; None if the mode is as it was."""
        self._asked: object = None
        """The content about which the person was asked last whether it may be left unsaved."""

    # --- texts and what they mean --------------------------------------------------------------

    @property
    def data(self) -> dict[str, Any]:
        """The nested dict of a preset, in which a text that can't be parsed stays a text. What the
        mode has no use for is left out, and there again in another mode."""
        data: dict[str, Any] = {}
        mode = modes.find(self.text("parallel.mode"))
        for key, text in self.texts.items():
            if self._applies(key, mode):
                apply_set(data, f"{key}={text}")
        if not self.on_slurm:
            return data | ({"devices": copy.deepcopy(self.devices)} if self.devices else {})
        count = data.get("devices", {}).get("pick", 1)
        if self.on_slots and type(count) is int and 0 < count < 10_000:
            return data | {"devices": {
                "hosts": [f"{SLURM}:" + ",".join(f"cpu:{i}" for i in range(count))]}}
        return data | {"devices": copy.deepcopy(self.devices) | data.get("devices", {})}

    def _applies(self, key: str, mode: modes.Mode | None) -> bool:
        """Whether a key has an effect where the run is to be. What is for Slurm alone is no
        problem once the person has ticked devices instead."""
        if key in OF_SLURM:
            return self.on_slurm or (key == "run.sbatch" and not self.ids_by_hand)
        return mode is None or mode.applies(key) or (self.on_slurm and key == "parallel.nodes")

    @property
    def typed(self) -> tuple[dict[str, str], dict[str, Any]]:
        """What the person has typed and ticked, to be compared with later: in `data` a number may
        be NaN, which is unlike itself."""
        return dict(self.texts), copy.deepcopy(self.devices)

    def spec(self) -> RunSpec:
        """The spec of this draft. Raises SpecError with every value that can't be parsed."""
        return from_dict(self.data)

    def spec_to_wait(self) -> RunSpec:
        """The spec for the queue. That the person has shared devices once, by a question of Launch,
        does not hold for a run that waits for free ones. Raises as `spec`."""
        data = self.data
        if not self._shared:
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

    def text(self, key: str) -> str:
        """The text of a key, or that of its default."""
        text = self.texts.get(key)
        if text is None:
            return values.show(keys()[key].default) if key in keys() else ""
        if key.startswith("task.params."):
            return values.show(values.parse(text, values.ANY))  # a text without its quotes
        return text

    def put(self, key: str, text: str) -> None:
        """Take the text of a field; empty text means the default."""
        text = text.strip()
        if key == "task.command":
            if key not in self.texts:  # what the task before was told and a command is not
                self.texts = {k: t for k, t in self.texts.items() if own_command.is_told((), k)}
            self.use_task("")
            self.texts[key] = text  # an empty one is refused by the review
        elif not text:
            self.texts.pop(key, None)
        else:
            for pair in ONE_OF:
                if key in pair:
                    self.texts.pop(pair[key == pair[0]], None)
            self.texts[key] = text
            if key == "parallel.mode":
                self._mode_chosen, self._mode_before = True, None
                self._mode(text)
        if key == "devices.pick":
            self._fit_mode(int(text) if text.isdecimal() and len(text) < 5 else 1)

    def put_param(self, field: TaskField, text: str) -> None:
        """Take the text of a task's parameter. A parameter of type str keeps "123" a string."""
        self.put(f"task.params.{field.name}",
                 values.in_toml(values.parse(text, field.kind)) if text.strip() else "")

    def use_task(self, use: str) -> None:
        """Choose another task, and drop the parameters of the one before, or what was for a
        command."""
        if not use or self.texts.get("task.use") != use:
            self.texts = {k: t for k, t in self.texts.items() if not k.startswith("task.")
                          and (not use or own_command.is_told(None, k))}
            self.put("task.use", use)

    def _mode(self, name: str) -> None:
        self.texts["parallel.mode"] = name
        mode = modes.find(name)
        if mode is not None and mode.several_nodes:
            self.texts.setdefault("parallel.nodes", "2")
        elif self.on_slurm:  # where several nodes would mean another mode
            self.texts.pop("parallel.nodes", None)

    # --- where it is from, and whether it was changed ------------------------------------------

    @property
    def base(self) -> tuple[str, RunSpec] | None:
        """The name and the spec of the preset that the shown command may build on."""
        return (self.preset.name, self.preset.spec) if self.preset else None

    @property
    def title(self) -> str:
        """"preset ddp (changed)"."""
        # Only the last part of a path: the whole path is in the shown command.
        name = f"run {self.run}" if self.run else \
            "preset " + self.preset.name.rpartition("/")[2] if self.preset else \
            f"your own {self.text('name')}" if "name" in self._loaded else "no preset"
        return f"{name} (changed)" if self.changed else name

    @property
    def changed(self) -> bool:
        """Whether it means something else than when it was loaded or saved."""
        return _meaning(self.data) != _meaning(self._loaded)

    def differences(self) -> list[Difference]:
        """What is not as in the run whose settings these were. Raises SpecError."""
        return compare(self._origin, self.spec()) if self.run else []

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
        data = self.data
        if not self.ids_by_hand and not self.on_slurm:
            if self._preset_devices or self._names_none:
                data["devices"] = self._preset_devices
        elif inventory is not None and self.ids:
            known = [(name, inventory.find(name)) for name in self.ids]
            data["devices"]["ids"] = [d.uuid if d and d.uuid else name for name, d in known]
        return from_dict(data)

    def saved(self, preset: Preset) -> None:
        self.preset, self.run = preset, ""
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
    def any_of(self) -> list[str]:
        """The entries of `devices.hosts` that stand for machines of which one is chosen."""
        hosts = self._preset_devices.get("hosts")
        several = isinstance(hosts, list) and not self._preset_on_slurm and (
            "pick" in self._preset_devices or any(HostDevices(str(h)).several for h in hosts))
        return list(hosts) if isinstance(hosts, list) and several else []

    @property
    def hosts(self) -> list[str]:
        """The entries where other machines take part; `ids` is empty then, as ours are here. None
        for Slurm."""
        hosts = None if self.on_slurm else self.devices.get("hosts")
        return list(hosts) if isinstance(hosts, list) and hosts != self.any_of else []

    @property
    def mode(self) -> str:
        """The mode that it runs in: the chosen one, unless the number of hosts, or of Slurm's
        nodes, says another."""
        chosen, nodes = self.text("parallel.mode"), self.value("parallel.nodes")
        many = len(self.hosts) if not self.on_slurm else nodes if isinstance(nodes, int) else 1
        try:
            return modes.over_hosts(many, chosen)
        except SpecError:  # the review reports it
            return chosen

    @property
    def first_rank(self) -> int:
        """The rank of the first device that is ticked on this machine."""
        node, mode = self.value("parallel.node_rank"), modes.find(self.text("parallel.mode"))
        return mode.node_rank(node) * len(self.ids) if mode and isinstance(node, int) else 0

    def tick(self, ids: Sequence[str], hosts: Sequence[str] | None = None) -> None:
        """Take the person's ticks, in the order of the ranks. `hosts`: the entries of
        `devices.hosts` for them, where they are on several machines or on another one. The mode
        follows while it can't use so many."""
        self.ids_by_hand = True
        self.absent, self.on_slurm = (), False
        self.devices = {"ids": list(ids)} if hosts is None else {"hosts": list(hosts)}
        self.devices |= self._shared
        self._fit_mode(len(ids))

    def tick_slurm(self) -> None:
        """Leave the devices to Slurm, as the preset does if it is for Slurm; at first as many as
        are ticked now."""
        if len(self.ids) > 1:
            self.texts.setdefault("devices.pick", str(len(self.ids)))
        self.ids_by_hand, self.on_slurm = True, True
        self.absent, self.devices = (), {"hosts": list(self._slurm)}

    @property
    def on_slots(self) -> bool:
        """Whether Slurm is asked for CPU slots, of which `devices.hosts` then says how many."""
        return len(self._slurm) == 1 and self._slurm[0].startswith(f"{SLURM}:cpu:")

    def other_kind_on_slurm(self) -> None:
        """Have Slurm give CPU slots in place of GPUs, or GPUs again."""
        self._slurm = [SLURM] if self.on_slots else [f"{SLURM}:cpu:0"]
        self.tick_slurm()

    def _fit_mode(self, devices: int) -> None:
        """Have the mode follow while it can't use so many devices of a node."""
        mode = self._mode_before or self.text("parallel.mode")
        if self._mode_chosen or modes.find(mode) is None:
            return
        fits = modes.over_devices(devices, mode)
        self._mode_before = mode if fits != mode else None
        if fits != self.text("parallel.mode"):
            self._mode(fits)

    @property
    def _shared(self) -> dict[str, Any]:
        return {"share": True} if self._preset_devices.get("share") is True else {}

    def share(self) -> None:
        """Allow sharing the devices that are ticked now. Other ticks undo it."""
        self.devices["share"] = True

    @property
    def picks(self) -> int | None:
        """How many of the freest devices the preset asks for; None if it names devices, or leaves
        them to Slurm."""
        if self._preset_on_slurm:
            return None
        pick = 1 if self._names_none else self._preset_devices.get(
            "pick", 1 if self.any_of else None)
        return pick if isinstance(pick, int) and not self._preset_devices.get("ids") else None

    @property
    def _names_none(self) -> bool:
        """Whether a preset or a command leaves the devices open, and so gets the freest one."""
        return self._preset_devices.keys().isdisjoint(("ids", "pick", "hosts")) and (
            self.preset is not None or self.says("task.command"))

    @property
    def wanted(self) -> RunSpec:
        """The spec with the devices that the preset asks for. Raises SpecError."""
        return from_dict(self.data | {"devices": self._preset_devices | {"pick": self.picks}})

    @property
    def missing(self) -> int:
        """How many of the freest devices that the preset asks for could not be ticked."""
        return 0 if self.ids_by_hand or self.picks is None or self.hosts \
            else max(0, self.picks - len(self.ids))

    def resolve(self, inventory: Inventory, snapshots: Sequence[Snapshot],
                leases: Mapping[str, Holder]) -> None:
        """Tick the devices that the preset names, or the freest; absent ones go to `absent`."""
        names = self._preset_devices.get("ids")
        chosen = []
        if isinstance(names, list) and names:
            found = [(str(name), inventory.find(str(name))) for name in names]
            chosen = [device for _, device in found if device is not None]
            self.absent = tuple(name for name, device in found if device is None)
        elif self.hosts or self.on_slurm:
            return  # theirs are ticked as soon as those machines have been seen
        elif self.picks:
            chosen = freest(self.picks, inventory, snapshots, leases)
        self._take({"ids": [d.id for d in chosen]})

    def choose(self, chosen: HostDevices | None) -> None:
        """Tick these devices of the machine that was chosen of `any_of`; None: none has enough."""
        ids = list(chosen.ids) if chosen is not None else []
        self._take({"ids": ids} if chosen is None or chosen.host == LOCAL
                   else {"hosts": [str(chosen)]})

    def _take(self, devices: dict[str, Any]) -> None:
        """Tick what the preset means now."""
        self.devices = devices | self._shared
        for before in (self._asked, self._loaded):
            if isinstance(before, dict):  # nothing was changed by this
                before["devices"] = copy.deepcopy(self.devices)


def first_draft(name: str | None, assignments: Sequence[str], command: Sequence[str] | None,
                usual: str = presets.DEFAULT) -> tuple[Draft, UserError | None]:
    """What the panel opens with: the preset `name`, with `command` in place of its task and the
    `key=value` assignments applied, as on the command line; or the preset `usual`.

    The error says what can't be read. The draft is then that of the preset without the
    assignments, or, if the preset can't be read, one with all defaults.
    """
    from gpu_engine.cli.spec_options import choose_spec

    preset: Preset | None = None
    try:
        if name is not None or command is None:
            preset = presets.load(name or usual)
        chosen = choose_spec(preset.name if preset is not None else None,
                             [*map(spelled_out, assignments)],
                             list(command) if command is not None else None)
    except UserError as err:
        plain = choose_spec(None, [], list(command)).spec \
            if preset is None and command is not None else None
        return Draft(plain, preset), err
    return Draft(chosen.spec, preset), None


def texts_of(spec: RunSpec) -> dict[str, str]:
    """What differs from the defaults, as it would be typed, without the devices."""
    found = {d.key: d.after for d in compare(RunSpec(), spec) if d.after is not None
             and not d.key.startswith(("devices.", "run.env.", "run.sbatch."))}
    if spec.task.command is not None:
        # As one would type it: quoted for a shell, but with placeholders unquoted.
        plain = [re.sub(r"\{[\w.]+\}", "x", word) for word in spec.task.command]
        found["task.command"] = " ".join(
            word if text and shlex.quote(text) == text else shlex.quote(word)
            for word, text in zip(spec.task.command, plain, strict=True))
    for table, named in (("run.env", spec.run.env), ("run.sbatch", spec.run.sbatch)):
        if named:  # an option of sbatch may have no value
            found[table] = " ".join(name if not text and table == "run.sbatch" else
                                    f"{name}={shlex.quote(str(text))}"
                                    for name, text in named.items())
    return found


def _is_for_slurm(spec: RunSpec) -> bool:
    """Whether Slurm chooses its nodes. Blocks where devices.hosts names it."""
    if SLURM not in str(spec.devices.hosts):
        return False
    from gpu_engine.slurm import submit

    try:
        return submit.is_meant(spec)
    except UserError:  # hosts.toml can't be read, as the review says; no host is asked
        return True


def _meaning(data: dict[str, Any]) -> Any:
    """What a draft means. "3e-4" typed again, or a default written out, is no change."""
    try:
        return to_dict(from_dict(data))
    except SpecError:
        return data
