"""Asking whether a run is to be stopped: its ranks asked, ended at once, or what is left ended."""

from __future__ import annotations

from gpu_panel.common.dialogs import Confirm


def ask_to_stop(run_id: str) -> Confirm:
    """Before the ranks are asked."""
    return Confirm(f"Stop run {run_id}?",
                   "The ranks finish their step and save a checkpoint; the run can be resumed.",
                   yes="Stop", no="Go on")


def end_now(run_id: str) -> Confirm:
    """Before ranks that have been asked are ended."""
    return Confirm(f"End run {run_id} now?",
                   "It has been asked to stop. Ended now, the ranks don't finish their step: what "
                   "came after the last checkpoint is lost.", yes="End now", no="Keep waiting")


def end_left(run_id: str, pids: list[int]) -> Confirm:
    """Before the processes that a lost run has left are ended."""
    return Confirm(f"End what is left of run {run_id}?",
                   f"Its supervisor is gone; pid {', '.join(map(str, pids[:8]))} still run"
                   f"{'s' * (len(pids) == 1)}.", yes="End it", no="Leave it")
