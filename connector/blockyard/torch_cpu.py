"""Loads into KV in plain memory by torch, which copies at memcpy's speed without Python's lock.

Used where the engine has brought torch along; CpuMover does what this one cannot.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from .mover import CpuMover, Page, Pages

_WORD = 8
_SHORTEST = 4  # blocks in a row for which a call of torch is cheaper than their memmoves


class TorchCpuMover(CpuMover):
    """Gathers the slots of neighbouring device blocks with one call for each page.

    A call writes a run of blocks that lie one behind the other, as they do in a layer of their own,
    from slots anywhere. Shorter runs, and pages that are no whole words, are copied by CpuMover.
    """

    def __init__(self, pages: Pages) -> None:
        super().__init__(pages)
        self._whole = all(_in_words(page, pages.share_offset) for page in pages.pages)

    def load(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None = None
    ) -> None:
        """See CopyEngine."""
        self._pages.check_blocks(blocks, len(slots))
        if not self._whole or len(blocks) > 1 or any(slot % _WORD for slot in slots):
            return super().load(slots, blocks, fence)
        short: list[tuple[int, int]] = []
        pairs = sorted(zip(blocks[0], slots))
        begin = 0
        for end in range(1, len(pairs) + 1):
            if end < len(pairs) and pairs[end][0] == pairs[end - 1][0] + 1:
                continue
            if end - begin >= _SHORTEST:
                self._gather(pairs[begin:end])
            else:
                short += pairs[begin:end]
            begin = end
        if short:
            super().load([slot for _, slot in short], [[block for block, _ in short]], fence)
        return None

    def _gather(self, pairs: list[tuple[int, int]]) -> None:
        """Copies slots into blocks of which each has the number behind the one before."""
        base = min(slot for _, slot in pairs)
        rows = torch.tensor([(slot - base) // _WORD for _, slot in pairs])
        span = max(slot for _, slot in pairs) - base
        first = pairs[0][0]
        for page in self._pages.pages:
            words = page.bytes // _WORD
            start = base + self._pages.share_offset + page.offset
            # Every word of the span begins a row: rows overlap, and only those named are read.
            source = _words(start, span // _WORD + words)
            source = source.as_strided((span // _WORD + 1, words), (1, 1))
            to = _words(page.address + first * page.stride, len(pairs) * words)
            torch.index_select(source, 0, rows, out=to.view(len(pairs), words))


def _in_words(page: Page, share_offset: int) -> bool:
    """Whether the page of each block, here and in the slot, is whole words, and blocks touch."""
    return page.stride == page.bytes and not any(
        n % _WORD for n in (page.address, page.bytes, page.offset + share_offset)
    )


def _words(address: int, count: int) -> torch.Tensor:
    """Memory as a tensor; it must outlive the tensor, and is not read by this."""
    memory = (ctypes.c_char * (count * _WORD)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.int64)
