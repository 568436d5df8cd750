"""The launch screen's ticks: the preset's, the person's, the freest; what is said about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import work

from gpu_engine.devices.records import Inventory
from gpu_panel.common.errors import guard
from gpu_panel.launch.devices.pane import DeviceTable
from gpu_panel.launch.devices.source import LOOKS
from gpu_panel.launch.draft import freest

if TYPE_CHECKING:
    from gpu_panel.launch.screen import LaunchScreen

PICK_PATIENCE = 6
"""Ticks of the painter after which the freest are chosen from what is known by then."""


class TickActions:
    """Mixed into the launch screen. Handlers by name, as @on is only found in a class that
    handles messages itself."""

    def device_words(self: LaunchScreen) -> tuple[tuple[str, str], ...]:
        """What does not fit about the devices, said with them."""
        words = [(f"The preset asks for {name}, which is not here", "warn")
                 for name in self.draft.absent]
        inventory, aside = self.devices.inventory, self.devices.gpus_aside
        if aside:
            many = f"{aside} GPUs" if aside > 1 else "GPU"
            words.append((f"c brings this machine's {many} back", "dim"))
        if not self._unresolved and self.draft.missing and inventory is not None:
            there = min(self.draft.picks or 0, len(inventory.devices))
            if len(self.draft.ids) < there:
                words.append((f"The preset asks for the {self.draft.picks} freest; what is not "
                              "free is left to you to tick", "warn"))
        if self.review is not None:
            words += [(f"✗ {p.message}", "bad") for p in self.review.problems
                      if p.key.startswith("devices.")]
        return tuple(words)

    # --- what the preset asks for ----------------------------------------------------------------

    def may_resolve(self: LaunchScreen, inventory: Inventory) -> bool:
        """Choosing the freest takes some looks; everything else can be resolved at once."""
        if not hasattr(self, "form"):
            return False
        enough = len(self.devices.looks) >= LOOKS or self._ticks > PICK_PATIENCE
        return self.draft.picks is None or inventory.is_cpu or enough

    @work(exit_on_error=False, group="resolve", exclusive=True)
    async def resolve_devices(self: LaunchScreen) -> None:
        with guard(self.app):
            self._unresolved = False
            draft, inventory = self.draft, self.devices.inventory
            slots = [i.startswith("cpu:") for i in draft.ids]
            if slots and inventory is not None and not draft.ids_by_hand:
                if all(slots) and not inventory.is_cpu:
                    inventory = await self.devices.offer("cpu")
                elif not any(slots) and self.devices.gpus_aside:
                    inventory = await self.devices.offer("gpu")
            leases = await self.devices.leases()
            if draft is self.draft and inventory is not None and not draft.ids_by_hand:
                draft.resolve(inventory, self.devices.looks, leases)
                self.form.adapt(draft)
                self.paint_devices()
                self.review_now()

    # --- what the person wants -------------------------------------------------------------------

    def on_device_table_ticked(self: LaunchScreen, event: DeviceTable.Ticked) -> None:
        self.take_ticks(event.ids)

    def take_ticks(self: LaunchScreen, ids: list[str]) -> None:
        self._unresolved = False
        self.draft.tick(ids)
        self.query_one(DeviceTable).tick(ids)
        self.edited()

    @work(exit_on_error=False, group="free", exclusive=True)
    async def on_device_table_want_other(self: LaunchScreen, event: DeviceTable.WantOther) -> None:
        """CPU slots in place of the GPUs, for a try without them, or the GPUs again."""
        with guard(self.app):
            before = self.devices.inventory
            if before is None:
                return
            ticked = [d for d in map(before.find, self.draft.ids) if d is not None]
            # By UUID: GPUs that are looked for anew may be numbered anew.
            self._ticks_of[before.source] = [d.uuid or d.id for d in ticked]
            found = await self.devices.offer("gpu" if before.is_cpu else "cpu")
            if found.source == before.source:
                self.notify(found.problem or "No NVIDIA GPU answers on this machine",
                            title="CPU slots", markup=False)
                return
            self.freedom = None
            if self.draft.picks and not self.draft.ids_by_hand:
                self._unresolved, self._ticks = True, 0  # as many of the freest, of the other kind
                self.draft.data["devices"]["ids"] = []
                self.paint_devices()
                return
            known = [d for d in map(found.find, self._ticks_of.get(found.source, ()))
                     if d is not None]
            if not known and found.is_cpu:
                known = list(found.devices[:max(1, len(self.draft.ids))])
            self.take_ticks([d.id for d in known])

    @work(exit_on_error=False, group="free", exclusive=True)
    async def on_device_table_want_free(self: LaunchScreen, event: DeviceTable.WantFree) -> None:
        with guard(self.app):
            inventory = self.devices.inventory
            if inventory is None:
                return
            count = event.count
            if count is None:
                from gpu_panel.common.dialogs import AskCount

                count = await self.app.push_screen_wait(AskCount(
                    "Tick the freest", max(1, len(self.draft.ids)), len(inventory.devices),
                    "How many? f repeats it."))
                if count is None:
                    return
            leases = await self.devices.leases()
            chosen = freest(count, inventory, self.devices.looks, leases)
            if len(chosen) < count:
                self.notify(f"{len(chosen)} of {count} can be had", title="Freest devices",
                            severity="warning", markup=False)
            self.query_one(DeviceTable).wanted = count
            self.take_ticks([d.id for d in chosen])
