"""What a case is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from live.place import Place


class Case(NamedTuple):
    """One behaviour, shown with real processes of both products."""

    name: str
    reason: str
    run: Callable[[Place], str]  # returns a remark for the result's line; raises when it fails


def case(name: str, reason: str) -> Callable[[Callable[[Place], str]], Case]:
    """Decorator: makes a case of a function."""
    return lambda run: Case(name, reason, run)
