"""Judging the folders that gpu-panel writes into. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_engine.common import units
from gpu_engine.doctor.records import Finding, note, ok, problem

OVER_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs",
                          "ceph", "fuse.sshfs", "glusterfs", "fuse.glusterfs", "9p", "afs",
                          "panfs"})
"""Kinds of file systems that are on another machine."""
_CLOCKS = 2.0
"""Seconds that the file system's clock may differ from this machine's."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, as it was found."""

    path: str
    there: bool
    """False: it will be made, and the rest is about its nearest parent that is there."""
    unwritable: str | None = None
    """Why no file can be made in it; None: one can."""
    owner_is_other: bool = False
    others_can_write: bool = False
    free: int | None = None
    """Bytes."""
    least: int = 0
    """Bytes below which no run starts."""
    scarce: int = 0
    """Bytes below which it is worth a note."""
    kind: str | None = None
    """Of its file system: "ext4"."""
    locks: bool | None = None
    """Whether a lock that one holds keeps another out; None: it could not be tried."""
    clock: float | None = None
    """Seconds that the file system's clock is ahead of this machine's."""


def judge(found: Folder) -> list[Finding]:
    """The folder of runs and state, or of settings."""
    if found.unwritable is not None:
        return [problem(f"{found.path}: can't be written: {found.unwritable}",
                        f"ls -ld {found.path}; or export GPU_PANEL_HOME=/a/folder/of/your/own")]
    out: list[Finding] = []
    room = f", {units.size(found.free)} free" if found.free is not None else ""
    disk = f" on {found.kind}" if found.kind else ""
    ends = "" if found.there else "; it will be made"
    if found.owner_is_other:
        out.append(problem(f"{found.path} belongs to another user",
                           "export GPU_PANEL_HOME=/a/folder/of/your/own"))
    if found.others_can_write:
        out.append(problem(f"{found.path} can be written by others, who could change what "
                           "your runs execute", f"chmod go-w {found.path}"))
    if found.free is not None and found.free < found.least:
        out.append(problem(f"{found.path}{disk}{room}: no run starts with less than "
                           f"{units.size(found.least)}", "gpu-engine runs prune --keep 20"))
    elif found.free is not None and found.free < found.scarce:
        out.append(note(f"{found.path}{disk}{room}: checkpoints may fill it",
                        "gpu-engine runs prune --keep 20"))
    else:
        out.append(ok(f"{found.path}{disk}{room}{ends}"))
    if found.locks is False:
        out.append(problem(f"{found.path}: locks don't work{disk}, so that gpu-panel can't tell "
                           "which runs live, and two runs may take one GPU",
                           "export GPU_PANEL_HOME=/a/folder/on/a/local/disk"))
    if found.kind in OVER_NETWORK:
        out.append(note(f"{found.path} is on another machine ({found.kind}): if that one hangs, "
                        "so do runs that write there"))
    if found.clock is not None and abs(found.clock) > _CLOCKS:
        way = "ahead of" if found.clock > 0 else "behind"
        out.append(problem(f"{found.path}: its file system's clock is {abs(found.clock):.0f} s "
                           f"{way} this machine's, so ages of runs are wrong",
                           "timedatectl set-ntp true, on both machines"))
    return out


def judge_shared(path: str | None, there: bool, why_not: str | None) -> list[Finding]:
    """The folder that the users of one machine share."""
    if why_not is not None:
        return [problem(why_not, "sudo gpu-engine queue --set-up-shared")]
    if path is None:
        return [note("GPU_PANEL_SHARED is empty: runs of other users of this machine are not seen")]
    if not there:
        return [note(f"no {path}: runs of other users of this machine are not seen. If several "
                     "people use it, root sets it up once",
                     "sudo gpu-engine queue --set-up-shared")]
    return [ok(f"{path}, by which users of this machine see each other's runs")]
