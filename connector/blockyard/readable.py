"""Which extents every worker can read: hits are promised for these alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .packed import extents_of, pack_u32, unpack_u32
from .work import Mapped

if TYPE_CHECKING:
    from .connection import Connection


def pack_runs(numbers: Sequence[int]) -> bytes:
    """Ascending extent numbers as packed u32 pairs: the first of each run, and its length."""
    runs: list[int] = []
    for number in numbers:
        if runs and number == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += (number, 1)
    return pack_u32(runs)


class Readable:
    """What the workers have said. Used by the engine's thread alone.

    workers: how many there are. A report of one more takes the place of the oldest. taken: how
    many reports there were.
    """

    def __init__(self) -> None:
        self.workers = 1
        self.taken = 0
        self._reports: dict[int, Mapped] = {}
        self._runs: dict[int, list[range]] = {}  # of each worker

    def take(self, report: Mapped) -> None:
        """What one worker has mapped now, instead of what it said before."""
        self.taken += 1
        self._reports.pop(report.worker, None)
        self._reports[report.worker] = report
        ends = unpack_u32(report.extents)
        pairs = zip(ends[::2], ends[1::2])
        self._runs[report.worker] = [range(first, first + count) for first, count in pairs]
        while len(self._reports) > self.workers:
            oldest = next(iter(self._reports))
            del self._reports[oldest], self._runs[oldest]

    def leading(self, connection: Connection, slots: bytes, first: int) -> int:
        """How many of the slots can be read by all workers from slot `first` on, without a gap."""
        numbers = extents_of(slots, first)
        missing = {number for number in set(numbers) if not self._all_have(connection, number)}
        if not missing:
            return len(numbers)
        return next(at for at, number in enumerate(numbers) if number in missing)

    def _all_have(self, connection: Connection, number: int) -> bool:
        session = (connection.nonce, connection.session)
        return len(self._reports) == self.workers and all(
            (report.nonce, report.session) == session
            and any(number in run for run in self._runs[report.worker])
            for report in self._reports.values()
        )
