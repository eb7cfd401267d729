"""Times the hooks of any connector object."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any


def hooks(base: type) -> list[str]:
    """The names of the base class's public methods, which an engine may call."""
    return [
        name
        for name, member in inspect.getmembers(base, inspect.isfunction)
        if not name.startswith("_")
    ]


class Stopwatch:
    """Replaces the hooks of one object by timed hooks.

    calls: nanoseconds of every call, by hook. results: the last result of each hook. A hook that
    another hook calls counts as part of the other one. Not thread-safe: an engine calls the hooks
    of one role from one thread.
    """

    def __init__(self, target: Any, names: list[str]) -> None:
        self.calls: dict[str, list[int]] = {name: [] for name in names}
        self.results: dict[str, Any] = {}
        self._total = 0
        self._inside = False
        for name in names:
            setattr(target, name, self._timed(name, getattr(target, name)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        calls, results = self.calls[name], self.results

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            began = perf_counter_ns()
            try:
                results[name] = result = function(*args, **kwargs)
            finally:
                took = perf_counter_ns() - began
                self._inside = False
                calls.append(took)
                self._total += took
            return result

        return timed

    def take(self) -> int:
        """Nanoseconds in all hooks since the last take()."""
        total, self._total = self._total, 0
        return total

    def clear(self) -> None:
        """Discards the measurements."""
        self.take()
        for calls in self.calls.values():
            calls.clear()
