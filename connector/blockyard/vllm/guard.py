"""Guards the engine against exceptions of the connector.

vLLM calls hooks from its main loop. An exception there ends the engine. A guarded hook returns a
cache miss instead.
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
    """Counts faults by kind, and logs the first fault of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, where: str, err: BaseException) -> None:
        """Records an exception that a hook raised."""
        kind = f"{where}: {type(err).__name__}"
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            log.error("%s (reported once for this kind)", kind, exc_info=err)

    def is_first(self, kind: str) -> bool:
        """Counts an event. True for the first event of its kind, which the caller logs."""
        self.counts[kind] += 1
        return self.counts[kind] == 1


def guarded(answer: Callable[[], Any]) -> Callable[[_F], _F]:
    """Decorates a hook. An exception is counted, the request given up, and answer() returned.

    The object has `faults` (Faults) and `give_up(argument)`. give_up gets the hook's first argument
    and removes the request in it.
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
