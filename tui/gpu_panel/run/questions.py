"""The questions before a run is stopped or cancelled, its ranks are killed, or its leftovers are
ended; and that for a person's note at a moment of it."""

from __future__ import annotations

from gpu_engine.plan.own_command import on_stop
from gpu_engine.plan.records import LaunchPlan
from gpu_panel.common.dialogs import Confirm


def ask_to_stop(run_id: str, plan: LaunchPlan | None) -> Confirm:
    words = on_stop(plan and plan.spec)
    return Confirm(f"Stop run {run_id}?", f"{words[0].upper()}{words[1:]}.",
                   yes="Stop", no="Keep running")


def ask_to_cancel(run_id: str) -> Confirm:
    return Confirm(f"Cancel run {run_id}?", "It waits in Slurm's queue. Its job is cancelled.",
                   yes="Cancel it", no="Keep waiting")


def ask_to_leave(run_id: str) -> Confirm:
    return Confirm(f"Remove run {run_id} from the queue?",
                   "It has not started. It ends as stopped; e loads its settings into the form.",
                   yes="Remove it", no="Keep waiting")


def end_now(run_id: str) -> Confirm:
    return Confirm(f"End run {run_id} now?",
                   "It has been asked to stop. If you end it now, it can save nothing more: "
                   "everything after the last checkpoint is lost.", yes="End now",
                   no="Keep waiting")


def end_left(run_id: str, pids: list[int]) -> Confirm:
    return Confirm(f"End the remaining processes of run {run_id}?",
                   f"Its supervisor is gone; pid {', '.join(map(str, pids[:8]))} still run"
                   f"{'s' * (len(pids) == 1)}.", yes="End it", no="Leave it")
