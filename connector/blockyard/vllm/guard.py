"""Keeps faults of the connector away from the engine.

vLLM calls hooks from its main loop and does not expect them to raise: an exception there ends the
engine. A cache that fails must cost a cache miss instead.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

log = logging.getLogger("blockyard.vllm")


class Faults:
    """Counts what went wrong, and says it once for each kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, where: str, err: BaseException) -> None:
        """Records an exception that a hook raised."""
        kind = f"{where}: {type(err).__name__}"
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            log.error("%s (reported once for this kind)", kind, exc_info=err)

    def said(self, kind: str) -> bool:
        """Counts an event; True when it is the first of its kind, which is worth a line."""
        self.counts[kind] += 1
        return self.counts[kind] == 1


def guarded(answer: Callable[[], Any]) -> Callable[[_F], _F]:
    """Decorates a hook: an exception is noted, the request is given up, answer() is returned.

    The object has `faults` (Faults) and `give_up(argument)`, which is called with the hook's
    first argument and forgets the request that it names.
    """

    def wrap(hook: _F) -> _F:
        @functools.wraps(hook)
        def call(self: Any, *args: Any) -> Any:
            try:
                return hook(self, *args)
            except Exception as err:
                self.faults.note(hook.__name__, err)
                try:
                    self.give_up(args[0] if args else None)
                except Exception as second:
                    self.faults.note("give_up", second)
                return answer()

        return call  # type: ignore[return-value]

    return wrap
