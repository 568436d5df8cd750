"""How a machine is reached. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_engine.spec.host_names import LOCAL, BadName, HostDevices, check_name, parse_all

__all__ = ["LOCAL", "BadName", "Host", "HostDevices", "check_name", "is_name", "parse_all"]


def is_name(text: str) -> bool:
    """Whether it may be the name of a host."""
    try:
        return bool(check_name(text))
    except BadName:
        return False


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that can be asked."""

    name: str
    """What the person calls it: in `devices.hosts`, in tables, in messages."""
    ssh: str | None = None
    """What `ssh` is given: a host name, an address or a name in ~/.ssh/config, with or without
    user@. None: `name`."""
    folder: str | None = None
    """The folder there in which runs start; None: the one that has the path of the folder here,
    else the home there."""
    python: str | None = None
    """The interpreter there that has gpu-panel; None: the agent's usual places are tried."""
    label: str | None = None
    """More words for the table."""
    via: tuple[str, ...] = ()
    """The argument list of a program that runs a command there, in place of ssh:
    ("docker", "exec", "-i", "box"), ("srun", "--jobid=7", "--overlap", "-w", "n1")."""

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, as itself."""
        return self.name == LOCAL and not self.via and self.ssh is None

    def folders(self, here: str) -> tuple[str, ...]:
        """Where a run starts there: in the folder that hosts.toml names, else in the one that has
        the path of ours, `here`, as on a shared file system, else at home."""
        return (self.folder,) if self.folder else (here, "~")

    @property
    def destination(self) -> str:
        """What `ssh` is given."""
        return self.ssh or self.name
