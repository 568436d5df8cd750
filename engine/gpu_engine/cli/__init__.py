"""`gpu-engine`: everything that the panel does, without a screen. The file of a command is imported
when the command is used.

Exit codes: 0 completed, 1 failed, 2 a mistake in the spec or command line, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import click

from gpu_engine import __version__
from gpu_engine.cli import output
from gpu_engine.common.errors import UserError, meant

_COMMANDS = {
    "run": "run:run", "plan": "run:plan", "devices": "machine:devices", "check": "check:command",
    "runs": "runs:command", "show": "show:show", "note": "note:command", "compare": "show:compare",
    "logs": "ranks:logs", "stacks": "ranks:stacks", "trace": "ranks:trace", "stop": "ranks:stop",
    "queue": "queue:command", "sweep": "sweep:command", "resume": "run:resume",
    "export": "export:command", "report": "report:command", "page": "page:command",
    "presets": "choices:presets", "describe": "choices:describe", "hosts": "hosts:command",
    "slurm": "slurm:command", "notify": "notify:command", "doctor": "machine:doctor",
    "settings": "choices:settings", "completion": "machine:completion", "agent": "agent:command"}
"""Each command's file here, and its function in it."""

_PDB = "for pdb, start the ranks in your own terminal: python train.py with breakpoint(), " \
    "torchrun with torch.distributed.breakpoint(rank=0)"
_GONE = {"attach": _PDB, "--debug-rank": _PDB,
         "compare-modes": "gpu-engine run PRESET --grid parallel.mode=single,dp,ddp trains in each "
                          "mode; gpu-engine sweep last compares them",
         "examples": "the steps that are left out are named by train.skip_steps",
         "restore": "runs rm and runs prune say what goes, and ask, as nothing brings it back",
         "empty": "removed runs are deleted at once",
         "--removed": "removed runs are deleted at once, and nothing lists them",
         "--for-good": "it is always for good; --yes removes without asking",
         "--hosts": "gpu-engine hosts check asks whether each can be used",
         "--rename": "gpu-engine presets lists the files of presets: mv renames one",
         "--duplicate": "gpu-engine presets lists the files of presets: cp copies one",
         "--delete": "gpu-engine presets lists the files of presets: rm deletes one",
         "--describe": "a preset's file says what it is for at its top: description = \"…\"",
         "torch": "uv pip install torch --torch-backend=auto, in your project's environment"}
"""Commands and options that there were → what serves instead."""


class _Lazy(output.Commands):
    """Imports only the command that is used, so that `gpu-engine stop` starts quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        file, _, function = _COMMANDS.get(cmd_name, "").partition(":")
        return getattr(import_module(f"gpu_engine.cli.{file}"), function) if file else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if args[0] in _GONE:
                raise
            ctx.fail(f"no such command {args[0]!r}; {meant(args[0], _COMMANDS)}")


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpu-engine")
def cli() -> None:
    """Plan, launch and watch PyTorch training runs, with the same engine as gpu-panel."""


def main() -> None:
    """The console entry point. A person's mistake is shown as text, with exit code 2 and without a
    traceback."""
    with mistakes_shown():
        cli.main(prog_name="gpu-engine", standalone_mode=False)


@contextmanager
def mistakes_shown() -> Iterator[None]:
    """Show a mistake of the person as text, and a fault of ours with its traceback; then end with
    the exit code of it."""
    # Else what is being imported, or read of a long run, is searched for garbage fifty times.
    gc.set_threshold(50_000, 20, 20)
    try:
        yield
    except UserError as err:
        output.echo(f"{err.title}:\n{textwrap.indent(str(err), '  ')}", err=True)
        sys.exit(2)
    except click.exceptions.Exit as err:
        sys.exit(err.exit_code)
    except click.ClickException as err:
        word = re.match(r"No such (?:command|option)[ :']*([\w-]+)", err.message)
        if isinstance(err, click.UsageError) and word is not None and word[1] in _GONE:
            err = click.UsageError(f"there is no {word[1]} any more; {_GONE[word[1]]}", err.ctx)
        output.mistake(err)
        sys.exit(err.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # `gpu-engine logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as err:  # noqa: BLE001  its message may hold anything
        output.fault(err)
        sys.exit(1)
