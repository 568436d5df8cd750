"""A dialog made from a command of gpu-engine: a field for each option that is asked for, by the
option's own name, type and help. What is typed is parsed as on the command line, so that it is
refused there and here by the same sentences.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, ClassVar

import click
from click.core import ParameterSource
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from gpu_engine.common.errors import UserError
from gpu_engine.spec.catalog import key_docs
from gpu_panel.common.choice import Choice
from gpu_panel.common.dialogs import harmless
from gpu_panel.common.errors import guarded

MORE = "more"
"""The field for options that have none of their own, as they are typed in a shell."""


_NAMED = re.compile(r"--?[a-z][\w-]*|[a-z]+\.\w+|'[^'-][^']*'")
"""Options, keys of the spec and quoted texts in a sentence."""


class Field(Horizontal):
    def __init__(self, asked: str, option: click.Option, first: str) -> None:
        """`asked`: "--grid", "--set train.steps" for a key of the spec, or MORE. `first`: the text
        that it begins with."""
        self.asked, self.option, self.first = asked, option, first
        self.key = asked.partition(" ")[2]
        self.help = key_docs()[self.key].replace("`", "") if self.key else option.help or ""
        choices = ["yes"] if option.is_flag else getattr(option.type, "choices", ())
        # One value is replaced by the first key, and more are typed behind several.
        self.input = Choice([("", "no"), *((choice, choice) for choice in choices)]) if choices \
            else Input(first, compact=True, placeholder=option.metavar or "",
                       select_on_focus=bool(self.key) or not option.multiple)
        super().__init__(Static(self.key or asked, classes="ask-label"), self.input, classes="ask")

    @property
    def text(self) -> str:
        return self.input.value.strip()

    def words(self) -> list[str]:
        """What would be typed in a shell for its text. Raises UserError."""
        text, name = self.text, [self.asked.partition(" ")[0]] * (self.asked != MORE)
        if not text or (self.key and text == self.first):
            return []
        if self.option.is_flag:
            return name
        try:
            values = [f"{self.key}={text}"] if self.key else \
                shlex.split(text) if self.option.multiple else [text]
        except ValueError as err:  # an open quote
            raise UserError(f"{text}: {err}") from None
        return [word for value in values for word in (*name, value)]

    def is_blamed(self, said: str) -> bool:
        """Whether its text is to blame for what is said: an option, a key of the spec or a text
        that is named there stands in its name, its text, or its help, which says for which key it
        is short."""
        told = f"{self.asked} '{self.text}' {self.help}"
        return bool(self.text) and any(
            name in told for name in (said.partition(": ")[0], *_NAMED.findall(said)))

    def is_repeated(self, said: str) -> bool:
        """Whether its text is a word of what is said: "there is no checkpoint of step 25"."""
        return bool(self.text) and self.text in re.split(r"[\s;:,()']+", said)


@dataclass(frozen=True, slots=True)
class Form:
    """A command as a dialog offers it."""

    command: click.Command
    given: Mapping[str, Any]
    """Parameters that are said already, by their names in the command's code."""
    without: Collection[str] = ()
    """Those that mean nothing here."""

    def fields(self, texts: Mapping[str, str]) -> list[Field]:
        """Those of `texts`, by their names, and one for the other options where there are any."""
        options = {p.opts[-1]: p for p in self.command.params if isinstance(p, click.Option)}
        others = ", ".join(
            f"{name} {option.metavar or ''}".rstrip() for name, option in options.items()
            if name not in texts and option.name not in (*self.given, *self.without))
        options[MORE] = click.Option(["--more"], multiple=True, metavar="other options",
                                     help=f"As in a shell: {others}")
        names = [*(name for name in texts if name != MORE), *[MORE] * bool(others)]
        return [Field(name, options[name.partition(" ")[0]], texts.get(name, "")) for name in names]

    def parse(self, words: Sequence[str]) -> click.Context:
        """What was typed, and what is given. Raises UserError, click.ClickException."""
        # Without --help, which would be printed across the screen. What is given is a default, so
        # that what was typed can be told from it.
        context = self.command.make_context(self.command.name, [*words], help_option_names=[],
                                            default_map={**self.given})
        if "command" in context.meta:
            raise UserError("--: only options stand here")
        for param, value in typed(context):
            if isinstance(param, click.Argument):
                raise UserError(f"{value}: only options stand here")
            if param.name in self.without:
                raise UserError(f"{param.opts[0]} is for a run that is started in a shell")
        return context


def typed(context: click.Context) -> list[tuple[click.Parameter, Any]]:
    """The parameters that were typed, with their values."""
    return [(param, context.params[param.name or ""]) for param in context.command.params
            if context.get_parameter_source(param.name or "") == ParameterSource.COMMANDLINE]


def carry_out(context: click.Context) -> tuple[Any, str]:
    """Have the command do what was parsed, with --json. Blocks. Returns its answer, and what it
    says besides. Raises UserError, click.ClickException."""
    # While it lasts no other can be called, as the dialog stays in front.
    answer, said = io.StringIO(), io.StringIO()
    with redirect_stdout(answer), redirect_stderr(said), context:
        context.command.invoke(context)
    return json.loads(answer.getvalue()), said.getvalue().replace("warning: ", "").strip()


class CommandDialog(ModalScreen[Any]):
    """Closes with what `call` returns, or with None where the person leaves it. What is refused is
    said below the field that it is about, and nothing that was typed is lost."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel"),
        Binding("up", "app.focus_previous", "previous", show=False),
        Binding("down", "app.focus_next", "next", show=False)]
    _busy = False

    def __init__(self, form: Form, texts: Mapping[str, str], title: str, about: str, does: str,
                 call: Callable[[click.Context, list[str]], Awaitable[object]] | None = None
                 ) -> None:
        """`texts`: the fields, each with the text that it begins with. `call`: does it, with what
        was parsed and the words that were typed, which are returned without it; may raise UserError
        and what click raises."""
        super().__init__()
        self._form, self._title, self._about, self._does = form, title, about, does
        self._call, self.fields = call, form.fields(texts)
        self._help, self._trouble = Static("", id="option-help"), Static("", id="trouble")

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(self._title)
            box.border_subtitle = harmless(f"enter {self._does.lower()} · esc cancel")
            yield Static(harmless(self._about), classes="dialog-note")
            yield from (*self.fields, self._help, self._trouble)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", compact=True, action="screen.cancel")
                yield Button(self._does, compact=True, variant="primary", action="screen.submit")

    def on_descendant_focus(self) -> None:
        for field in self.fields:
            if field.input is self.focused:
                self._help.update(harmless(field.help))

    def _say(self, text: str, tone: str = "-error", below: Field | None = None) -> None:
        """Say this below a field, or below the help; no text: nothing."""
        self.query_one(".dialog").move_child(self._trouble, after=below or self._help)
        self._trouble.set_classes(tone)
        self._trouble.display = bool(text)
        self._trouble.update(harmless(text))

    @on(Input.Changed)
    @on(Choice.Changed)
    def _edited(self) -> None:
        self._say("")

    @on(Input.Submitted)
    def action_submit(self) -> None:
        if not self._busy:
            self._busy = True
            self._submit()

    def action_cancel(self) -> None:
        if not self._busy:  # what has begun is told of by this dialog
            self.dismiss(None)

    @guarded("submit")
    async def _submit(self) -> None:
        try:
            words = [word for field in self.fields for word in field.words()]
            context = self._form.parse(words)
            self._say("One moment …", "-plain")
            self.dismiss(words if self._call is None else await self._call(context, words))
        except (UserError, click.ClickException) as err:
            text = err.format_message() if isinstance(err, click.ClickException) else str(err)
            blamed = [field for field in self.fields if field.is_blamed(text)] or [
                field for field in self.fields if field.is_repeated(text)]
            field = blamed[0] if blamed else None
            if field is not None:
                field.input.focus()
            self._say(text, below=field)
        finally:
            self._busy = False
