"""Loads into KV in plain memory with numpy: one call copies many pages without the interpreter
lock.

mover_for() chooses NumpyMover when the engine has imported numpy. CpuMover copies the rest.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np

from .mover import CpuMover, Page, Pages

_SHORTEST = 4  # adjacent blocks; fewer are cheaper with memmove
_LEAST_ROW = 512  # bytes; gathering shorter rows is slower than memmove


class NumpyMover(CpuMover):
    """Copies the slots of adjacent device blocks with one call for each page.

    A call writes a run of adjacent blocks from any slots. numpy sees the slots as rows of one
    array. The row length is the greatest common divisor of all offsets and page sizes. CpuMover
    copies shorter runs, and pages with gaps between blocks.
    """

    def load(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None = None
    ) -> None:
        """See CopyEngine."""
        self._pages.check_blocks(blocks, len(slots))
        if len(blocks) > 1:
            return super().load(slots, blocks, fence)
        rest: list[tuple[int, int]] = []
        pairs = sorted(zip(blocks[0], slots))
        begin = 0
        for end in range(1, len(pairs) + 1):
            if end < len(pairs) and pairs[end][0] == pairs[end - 1][0] + 1:
                continue
            if end - begin < _SHORTEST or not self._gather(pairs[begin:end]):
                rest += pairs[begin:end]
            begin = end
        if rest:
            super().load([slot for _, slot in rest], [[block for block, _ in rest]], fence)
        return None

    def _gather(self, pairs: list[tuple[int, int]]) -> bool:
        """Copies slots into blocks with consecutive numbers. False when the slots are no rows."""
        base = min(slot for _, slot in pairs)
        offsets = [slot - base for _, slot in pairs]
        pages = self._pages.pages
        row = math.gcd(*offsets, *(n for page in pages for n in (page.bytes, page.offset)))
        if row < _LEAST_ROW or any(page.stride != page.bytes for page in pages):
            return False
        rows = -(-(max(offsets) + self._pages.share_bytes) // row)
        source = _rows(base + self._pages.share_offset, rows, row)
        firsts = np.array(offsets, dtype=np.intp) // row
        for page in pages:
            _gather_page(source, firsts, row, page, pairs[0][0])
        return True


def _gather_page(source: np.ndarray, firsts: np.ndarray, row: int, page: Page, block: int) -> None:
    """Copies one page into the blocks from `block` on. firsts: the first row of each share."""
    each = page.bytes // row
    rows = (firsts[:, None] + (page.offset // row + np.arange(each))).ravel()
    to = _rows(page.address + block * page.stride, len(rows), row)
    # clip: a mode other than "raise" writes into `to` directly. No row is out of range.
    source.take(rows, axis=0, out=to, mode="clip")


def _rows(address: int, rows: int, row: int) -> np.ndarray:
    """An array of rows over memory. The memory must outlive the array."""
    memory = (ctypes.c_char * (rows * row)).from_address(address)
    return np.frombuffer(memory, dtype=np.uint8).reshape(rows, row)
