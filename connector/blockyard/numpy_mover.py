"""Loads into KV in plain memory by numpy: many pages in one call, without Python's lock.

Used where the engine has brought numpy along; CpuMover does what this one cannot.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np

from .mover import CpuMover, Page, Pages

_SHORTEST = 4  # blocks in a row for which a call is cheaper than their memmoves
_LEAST_ROW = 512  # bytes; gathering shorter rows is slower than memmove


class NumpyMover(CpuMover):
    """Gathers the slots of neighbouring device blocks with one call for each page.

    A call writes a run of blocks that lie one behind the other, as they do in a layer of their own,
    from slots anywhere: to numpy, slots are an array of rows as long as what divides all distances
    there. Shorter runs, and pages that leave gaps between blocks, are copied by CpuMover.
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
        """Copies slots into blocks of which each has the number behind the one before. False when
        they cannot be seen as rows."""
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
    """Into the blocks from `block` on, from shares that begin at the rows `firsts`."""
    each = page.bytes // row
    rows = (firsts[:, None] + (page.offset // row + np.arange(each))).ravel()
    to = _rows(page.address + block * page.stride, len(rows), row)
    # clip: a mode other than "raise" writes into `to` directly. No row is out of range.
    source.take(rows, axis=0, out=to, mode="clip")


def _rows(address: int, rows: int, row: int) -> np.ndarray:
    """Memory as an array of rows; it must outlive the array."""
    memory = (ctypes.c_char * (rows * row)).from_address(address)
    return np.frombuffer(memory, dtype=np.uint8).reshape(rows, row)
