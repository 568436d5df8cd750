"""`@frozen`: `@dataclass(frozen=True)`, with `slots` on every Python that knows it: a rank, which
imports this, may run in 3.9."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

_T = TypeVar("_T")

if TYPE_CHECKING:
    from typing import dataclass_transform
else:
    def dataclass_transform(**_):
        return lambda function: function


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_T]) -> type[_T]: ...
@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, slots: bool) -> Callable[[type[_T]], type[_T]]: ...
def frozen(cls: type[Any] | None = None, *, slots: bool = False) -> Any:
    """Decorator: make a class a dataclass whose instances don't change. With `slots`, they have
    no attributes but its fields, and take less memory."""
    options = {"slots": True} if slots and sys.version_info >= (3, 10) else {}
    return dataclass(cls, frozen=True, **options)
