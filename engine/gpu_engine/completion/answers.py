"""What a shell is answered when somebody presses tab. The shells' scripts are in `scripts`.

Click finds out which option or argument is being typed; `SOURCES` says what belongs there.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from functools import partial

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class

from gpu_engine.common.clean import clean
from gpu_engine.completion import scripts, sources
from gpu_engine.completion.sources import FILES, Answer, Source

SOURCES: dict[str, Source] = {
    "preset": sources.presets, "presets.name": sources.presets,
    "run": sources.last_run, "runs": sources.last_run, "after": sources.runs,
    "stop.run": sources.live_runs, "stacks.run": sources.live_runs,
    "move.run": sources.waiting_runs, "before.run": sources.waiting_runs,
    "before.other": sources.waiting_runs, "cancel.runs": sources.waiting_runs,
    "priority.run": sources.waiting_runs,
    "export.words": sources.of(sources.last_run, FILES),
    "sweep": sources.sweeps, "sets": sources.assignments,
    "grid": partial(sources.assignments, several=True),
    "mode": sources.modes, "devices": sources.device_ids, "wanted": sources.filters,
    "runs.names": sources.columns, "runs.order": partial(sources.columns, sorting=True),
    "tags": sources.tags, "added": sources.tags, "removed": sources.tags,
    **dict.fromkeys(("start", "which"), sources.of(
        Answer("best", "the checkpoint with the best evaluation"))),
    "move.to": sources.of(*map(Answer, ("first", "last", "up", "down"))),
    "check.name": sources.hosts, "remove.name": sources.hosts, "setup.name": sources.hosts,
    "task": sources.of(sources.tasks, FILES),
    **dict.fromkeys(("out", "output", "python", "folder"), sources.of(FILES)),
}
"""What belongs to a parameter, by its name in the code; by "command.name" where that differs from
command to command."""
_END = "\0"
"""Marks the end of what is typed."""
_EXTRA: dict[str, Source] = {"sweep": sources.sweeps}
"""Groups whose first word may be something else than a command."""


def register() -> None:
    """Have click use these scripts and answers for the three shells."""
    for cls in (Bash, Zsh, Fish):
        add_completion_class(cls)


class _Shell(ShellComplete):
    """Answers a line for each thing that can be typed: kind, value and help, with tabs between."""

    def source(self) -> str:
        return scripts.text(self.name)

    def get_completion_args(self) -> tuple[list[str], str]:
        return words(os.environ.get("COMP_LINE", ""))

    def complete(self) -> str:
        args, typed = self.get_completion_args()
        return "\n".join(self.format_completion(item) for item in
                         self.get_completions(args, typed) if item.value.isprintable())

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        if "--" in args:  # a person's own command
            return [_item(sources.COMMAND if args[-1] == "--" else FILES)]
        ctx, command, found = self._what(args, incomplete)
        if found is not None:
            before, value = _divided(incomplete)
            source = source_of(ctx, found)
            items = found.shell_complete(ctx, value) if source is None else \
                _matching(source(value), value)
            for item in items:
                if item.type in ("plain", "more"):
                    item.value = before + item.value
            return items
        if isinstance(command, click.Group) and not incomplete.startswith("-"):
            more = _EXTRA.get(ctx.info_name or "")
            return _matching([*_commands(ctx, command), *(more(incomplete) if more else ())],
                             incomplete)
        return command.shell_complete(ctx, incomplete)

    def _what(self, args: list[str], incomplete: str
              ) -> tuple[click.Context, click.Command, click.Parameter | None]:
        """The command that is typed, and its parameter. click finds both for its own completion
        and has no public way to ask; without these two, tab would complete nothing here."""
        from click.shell_completion import _resolve_context, _resolve_incomplete

        ctx = _resolve_context(self.cli, self.ctx_args, self.prog_name, args)
        found, _ = _resolve_incomplete(ctx, args, incomplete)
        return ctx, ctx.command, found if isinstance(found, click.Parameter) else None

    def format_completion(self, item: CompletionItem) -> str:
        told = clean(item.help or "", 100)
        return f"{item.type}\t{item.value}\t{told}"


class Bash(_Shell):
    name = "bash"

    def format_completion(self, item: CompletionItem) -> str:
        _, typed = self.get_completion_args()
        current = os.environ.get("COMP_CURRENT", "")
        return f"{item.type}\t{quoted(trimmed(item.value, typed, current), current[:1])}"


class Zsh(_Shell):
    name = "zsh"


class Fish(_Shell):
    name = "fish"


def source_of(ctx: click.Context, parameter: click.Parameter) -> Source | None:
    """What belongs to a parameter of the command of `ctx`; None: click itself knows (choices)."""
    name = parameter.name or ""
    return SOURCES.get(f"{ctx.info_name}.{name}") or SOURCES.get(name)


def words(line: str) -> tuple[list[str], str]:
    """The whole words of `line` without the command's own, and the word at its end as far as it is
    typed, "" behind a blank. Quotes that are still open are closed."""
    for closing in ("", "'", '"'):
        try:
            found = shlex.split(line + _END + closing, posix=True)
        except ValueError:
            continue
        return found[1:-1], found[-1].removesuffix(_END) if len(found) > 1 else ""
    return [], ""


def trimmed(value: str, typed: str, current: str) -> str:
    """What bash must be told in place of `value`: it splits words at "=" and ":" and replaces only
    `current`, the part behind, where `typed` is the whole word. Inside quotes it does not split."""
    part = current.lstrip("'\"")
    if part and not part.strip("=:"):
        part = ""
    if not typed.endswith(part) or not value.startswith(typed[:len(typed) - len(part)]):
        return value
    return value[len(typed) - len(part):]


def quoted(value: str, quote: str) -> str:
    """`value` as bash must have it behind an open `quote`. Without one its script quotes it."""
    if quote == "'":
        return value.replace("'", "'\\''")
    if quote == '"':  # nothing there keeps ! from meaning an earlier command
        return re.sub(r'[\\"$`]', r"\\\g<0>", value).replace("!", "\"'!'\"")
    return value


def _divided(typed: str) -> tuple[str, str]:
    """`--set=batch.size=8` → `--set=` and `batch.size=8`."""
    if not typed.startswith("--") or "=" not in typed:
        return "", typed
    option, equals, value = typed.partition("=")
    return option + equals, value


def _matching(found: Iterable[Answer], typed: str) -> list[CompletionItem]:
    return [_item(one) for one in found
            if one.kind != "plain" or one.value.startswith(typed)]


def _item(one: Answer) -> CompletionItem:
    return CompletionItem(one.value, "more" if one.more else one.kind, one.help)


def _commands(ctx: click.Context, group: click.Group) -> list[Answer]:
    found = ((name, group.get_command(ctx, name)) for name in group.list_commands(ctx))
    return [Answer(name, one.get_short_help_str(100)) for name, one in found
            if one is not None and not one.hidden]
