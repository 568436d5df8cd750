"""`gpu-engine`: everything that the panel does, without a screen. The file of a command is imported
when the command is used.

Exit codes: 0 completed, 1 failed, 2 a mistake in the spec or command line, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import takewhile

import click

from gpu_engine import __version__
from gpu_engine.cli import output
from gpu_engine.common.errors import Problem, UserError, meant

_SECTIONS = {
    "Start": {
        "run": "run:run", "plan": "run:plan", "check": "check:command", "fit": "fit:command",
        "resume": "run:resume", "presets": "choices:presets", "describe": "choices:describe",
        "slurm": "slurm:command"},
    "Runs": {
        "runs": "runs:command", "show": "show:show", "logs": "ranks:logs", "stop": "ranks:stop",
        "follow": "watch:follow", "curve": "show:curve", "compare": "show:compare",
        "sweep": "sweep:command", "queue": "queue:command", "note": "runs:note",
        "code": "show:code", "stacks": "ranks:stacks", "trace": "ranks:trace",
        "export": "export:command", "report": "report:command"},
    "Devices": {
        "devices": "machine:devices", "hosts": "hosts:command", "hold": "hold:hold",
        "release": "hold:release", "usage": "report:usage", "page": "report:page"},
    "This installation": {
        "doctor": "machine:doctor", "settings": "choices:settings", "notify": "notify:command",
        "mcp": "mcp:command", "skill": "mcp:skill", "completion": "machine:completion"},
    "": {"port": "wire:port", "receive": "wire:receive"}}
"""Each command's file here, and its function in it, as the help lists them."""
_COMMANDS = {name: where for section in _SECTIONS.values() for name, where in section.items()}


class _Lazy(click.Group):
    """Imports only the command that is used, so that `gpu-engine stop` starts quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, _COMMANDS))
        for title, names in _SECTIONS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(f"{name:{wide}}", command.get_short_help_str(formatter.width - wide - 4))
                    for name, command in found if command is not None and not command.hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        file, _, function = _COMMANDS.get(cmd_name, "").partition(":")
        return getattr(import_module(f"gpu_engine.cli.{file}"), function) if file else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            ctx.fail(f"no such command {args[0]!r}; {meant(args[0], _COMMANDS)}")


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpu-engine")
@click.option("--wire", hidden=True, is_eager=True, expose_value=False,
              callback=output.answer_on_the_wire)
@click.option("--in", "folders", multiple=True, hidden=True)
def cli(folders: tuple[str, ...]) -> None:
    """Plan, launch and watch PyTorch training runs, with the same engine as gpu-panel."""
    if folders:
        from gpu_engine.remote.there import wire

        wire.enter(folders)


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
        _print_errors(err)
        sys.exit(2)
    except click.exceptions.Exit as err:
        sys.exit(err.exit_code)
    except click.ClickException as err:
        output.mistake(err)
        _print_errors(err)
        sys.exit(err.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # `gpu-engine logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as err:  # noqa: BLE001  its message may hold anything
        output.fault(err)
        _print_errors(err)
        sys.exit(1)


def _print_errors(err: Exception) -> None:
    """For a command with --json, on standard output."""
    if output.word or "--json" in takewhile(lambda word: word != "--", sys.argv[1:]):
        output.echo(output.in_json(errors(err)))


def errors(err: Exception) -> dict[str, list[dict[str, object]]]:
    """An error as a program gets it: {"errors": [{what, value, why, remedy}]}. What and value are
    None where no single thing is to blame."""
    if isinstance(err, UserError):
        found = err.problems
    elif isinstance(err, click.ClickException):
        param = getattr(err, "param", None)
        found = [Problem(param.opts[-1] if param is not None else
                         getattr(err, "option_name", ""), None, err.format_message())]
    else:
        found = [Problem("", None, f"a fault of gpu-engine: {type(err).__name__}: {err}")]
    return {"errors": [problem.to_dict() for problem in found]}
