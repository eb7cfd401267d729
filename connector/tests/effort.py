"""Measures of work that do not depend on the machine's speed: instructions, items and bytes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions(call: Callable[[], object]) -> int:
    """How many Python instructions call() executes in this thread.

    An instruction takes about 10 ns on an idle machine. C code counts as one instruction: measure
    its input, for example with Items.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


class Items(list[int]):
    """A list that counts the items that the thread of its creation has read, in read."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.read = 0
        self._thread = threading.get_ident()

    def _note(self, items: int) -> None:
        if threading.get_ident() == self._thread:
            self.read += items

    def __getitem__(self, at: Any) -> Any:
        got = super().__getitem__(at)
        self._note(len(got) if isinstance(at, slice) else 1)
        return got

    def __iter__(self) -> Any:
        self._note(len(self))
        return super().__iter__()
