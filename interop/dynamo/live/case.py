"""The type of a case."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from live.testbed import TestBed


class Case(NamedTuple):
    """A test of one behaviour with real processes of both products.

    reason: the behaviour, for people. run: returns a remark for the printed line, and raises on
    failure.
    """

    name: str
    reason: str
    run: Callable[[TestBed], str]


def case(name: str, reason: str) -> Callable[[Callable[[TestBed], str]], Case]:
    """A decorator that makes a Case of a function."""
    return lambda run: Case(name, reason, run)
