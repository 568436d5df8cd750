"""The base of dialogs that do something before they close."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gpu_engine.common.errors import UserError
from gpu_panel.common.dialogs import harmless
from gpu_panel.common.errors import record, sentence


class SubmitDialog(ModalScreen[Any]):
    """A dialog of fields that closes once what it asks for is done. Errors are shown inside, so
    that nothing that was typed is lost; its `#trouble` is the place for those without a field."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]
    _busy = False

    async def submit(self) -> None:
        """Do it, and dismiss the dialog. Raises UserError."""
        raise NotImplementedError

    def blame(self, error: UserError) -> None:
        self.show(str(error))

    def show(self, text: str, tone: str = "-error") -> None:
        """Show this; no text: nothing."""
        place = self.query_one("#trouble", Static)
        place.set_classes(tone)
        place.display = bool(text)
        place.update(harmless(text))

    def on_input_changed(self, event: Input.Changed) -> None:
        self.show("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_submit()

    def action_cancel(self) -> None:
        if not self._busy:
            self.dismiss(None)

    def action_submit(self) -> None:
        if not self._busy:
            self._busy = True
            self._submit()

    @work(exit_on_error=False)
    async def _submit(self) -> None:
        try:
            await self.submit()
        except UserError as err:
            self.blame(err)
        except Exception as err:  # noqa: BLE001  shown with a pointer to the whole traceback
            self.show(sentence(err, record(err)))
        finally:
            self._busy = False
