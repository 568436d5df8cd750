"""A dialog made from a command of gpu-engine: a field for each option that is asked for, by the
option's own name, type and help. What is typed is parsed as on the command line, so that it is
refused there and here by the same sentences.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import click
from click.core import ParameterSource
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from gpu_engine.cli import errors, output
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded
from gpu_engine.spec.catalog import key_docs
from gpu_panel.common.choice import Choice
from gpu_panel.common.dialogs import harmless
from gpu_panel.common.errors import record, sentence

MORE = "more options"
"""The field for options that have none of their own, as they are typed in a shell."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field: of an option, of a key of the spec (`--set KEY`), or of all options that have none
    of their own."""

    name: str
    """"--grid", "--set train.steps" or MORE."""
    options: Mapping[str, click.Option]
    """By their names as they are typed: one, or the others."""
    first: str
    """The text that it begins with."""

    @property
    def option(self) -> click.Option | None:
        return None if self.name == MORE else self.options[self.name.partition(" ")[0]]

    @property
    def key(self) -> str:
        return "" if self.name == MORE else self.name.partition(" ")[2]

    @property
    def usual(self) -> str:
        """What means the same as no text."""
        usual = self.first if self.key else self.option and self.option.to_info_dict()["default"]
        return str(usual or "")

    @property
    def help(self) -> str:
        if self.option is None:
            return "As in a shell: " + ", ".join(
                f"{name} {option.metavar or ''}".rstrip() for name, option in self.options.items())
        return key_docs()[self.key].replace("`", "") if self.key else self.option.help or ""

    def widget(self) -> Input | Choice:
        option = self.option
        choices = () if option is None else ("yes",) if option.is_flag else \
            option.type.choices if isinstance(option.type, click.Choice) else ()
        if choices:
            return Choice([("", self.usual or "no"), *((c, c) for c in choices if c != self.usual)])
        # One value is replaced by the first key, and more are typed behind several.
        return Input(self.first, compact=True, placeholder=self.usual or (
            option.metavar if option is not None else None) or "", select_on_focus=bool(
                option is not None and (self.key or not option.multiple)))

    def words(self, text: str) -> list[str]:
        """What would be typed in a shell for this text. Raises UserError."""
        option = self.option
        if text in ("", self.usual):
            return []
        if option is None:
            return _split(text)
        name = self.name.partition(" ")[0]
        if option.is_flag:
            return [name]
        if isinstance(option.type, click.Path):
            text = str(expanded(text))
        values = [f"{self.key}={text}"] if self.key else _split(text) if option.multiple else [text]
        return [word for value in values for word in (name, value)]

    def is_blamed(self, text: str, said: str, named: Collection[str]) -> bool:
        """Whether its text is to blame for what is said: the options, or keys of the spec, that are
        named stand in its name, its text, or its help, which says for which key it is short."""
        return bool(text) and (f"'{text}'" in said or any(
            name in (self.name, self.key) or name in text or name in self.help for name in named))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as err:  # an open quote
        raise UserError(f"{text}: {err}", text) from None


@dataclass(frozen=True, slots=True)
class Form:
    """A command as a dialog offers it."""

    command: click.Command
    given: Mapping[str, Any]
    """Parameters that are said already, by their names in the command's code."""
    without: Collection[str] = ()
    """Options that mean nothing here."""

    @property
    def options(self) -> dict[str, click.Option]:
        """Those that can be typed, by their names."""
        found = {max(p.opts, key=len): p for p in self.command.params
                 if isinstance(p, click.Option) and not p.hidden}
        return {name: option for name, option in found.items() if name not in self.without}

    def fields(self, texts: Mapping[str, str]) -> list[Field]:
        """Those of `texts`, by their names, and one for the other options where there are any."""
        options = self.options
        others = {name: option for name, option in options.items()
                  if name not in texts and option.name not in self.given}
        return [*(Field(name, options, text) for name, text in texts.items() if name != MORE),
                *[Field(MORE, others, texts.get(MORE, ""))] * bool(others)]

    def parse(self, words: Sequence[str]) -> click.Context:
        """What was typed, and what is given. Raises UserError, click.ClickException."""
        # Without --help, which would be printed across the screen. What is given is a default, so
        # that what was typed can be told from it.
        context = self.command.make_context(self.command.name, [*words], help_option_names=[],
                                            default_map={**self.given})
        if "command" in context.meta:
            raise UserError("--: only options stand here")
        for param, values in typed(context).items():
            if isinstance(param, click.Argument):
                raise UserError(f"{values[0]}: only options stand here", str(values[0]))
            if param not in self.options.values():
                raise UserError(f"{param.opts[0]} is for a run that is started in a shell")
        return context


def typed(context: click.Context) -> dict[click.Parameter, tuple[object, ...]]:
    """The parameters that were typed, each with its values."""
    values = {param: context.params[param.name or ""] for param in context.command.params
              if context.get_parameter_source(param.name or "") == ParameterSource.COMMANDLINE}
    return {param: value if isinstance(value, tuple) else (value,)
            for param, value in values.items()}


def carry_out(context: click.Context) -> tuple[Any, str]:
    """Have the command do what was parsed, with --json. Blocks. Returns its answer, and what it
    says besides. Raises UserError, click.ClickException."""
    with output.kept() as (answer, said), context:
        context.command.invoke(context)
    return json.loads("\n".join(answer)), "; ".join(line.removeprefix("warning: ") for line in said)


class CommandDialog(ModalScreen[Any]):
    """Closes with what `call` returns, or with None where the person leaves it. What is refused is
    said below the field that it is about, and nothing that was typed is lost."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel"),
        Binding("up", "app.focus_previous", "previous", show=False),
        Binding("down", "app.focus_next", "next", show=False)]
    _busy = False

    def __init__(self, form: Form, texts: Mapping[str, str],
                 call: Callable[[click.Context, list[str]], Awaitable[object]], *,
                 title: str, about: str, does: str) -> None:
        """`texts`: the fields, each with the text that it begins with. `call`: does it, with what
        was parsed and the words that were typed; may raise UserError and what click raises."""
        super().__init__()
        self._form, self._call = form, call
        self._title, self._about, self._does = title, about, does
        self.fields = [(field, field.widget()) for field in form.fields(texts)]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(self._title)
            box.border_subtitle = harmless(f"enter {self._does.lower()} · esc cancel")
            yield Static(harmless(self._about), classes="dialog-note")
            for field, widget in self.fields:
                with Horizontal(classes="ask"):
                    yield Static(field.key or field.name, classes="ask-label", markup=False)
                    yield widget
            yield Static("", id="option-help", markup=False)
            yield Static("", id="trouble")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="no", compact=True, action="screen.cancel")
                yield Button(self._does, id="yes", compact=True, variant="primary",
                             action="screen.submit")

    def on_mount(self) -> None:
        self.fields[0][1].focus()
        self._say("")

    def on_descendant_focus(self) -> None:
        for field, widget in self.fields:
            if widget is self.focused:
                self.query_one("#option-help", Static).update(harmless(field.help))

    def _say(self, text: str, tone: str = "-error", below: Widget | None = None) -> None:
        """Say this below the row of a field, or in the place of the note; no text: nothing."""
        place, note = self.query_one("#trouble", Static), self.query_one("#option-help", Static)
        after = next((row for row in self.query(".ask") if below in row.children), note)
        self.query_one(".dialog").move_child(place, after=after)
        place.set_classes(tone)
        place.display, note.display = bool(text), not text or below is not None
        place.update(harmless(text))

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

    @work(exit_on_error=False)
    async def _submit(self) -> None:
        try:
            words = [word for field, widget in self.fields
                     for word in field.words(widget.value.strip())]
            context = self._form.parse(words)
            self._say("One moment …", "-plain")
            self.dismiss(await self._call(context, words))
        except (UserError, click.ClickException) as err:
            text = err.format_message() if isinstance(err, click.ClickException) else str(err)
            named = [str(one["what"]) for one in errors(err)["errors"] if one["what"]]
            named += [word.rstrip(":") for word in text.split()[:1] if word.startswith("-")]
            widget = next((widget for field, widget in self.fields
                           if field.is_blamed(widget.value, text, named)), None)
            if widget is not None:
                widget.focus()
            self._say(text, below=widget)
        except Exception as err:  # noqa: BLE001  shown with a pointer to the whole traceback
            self._say(sentence(err, record(err)))
        finally:
            self._busy = False
