"""The extents that every worker has mapped. Only blocks in them count as hits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .packed import extents_of, pack_u32, unpack_u32
from .work import Mapped

if TYPE_CHECKING:
    from .connection import Connection


def pack_runs(numbers: Sequence[int]) -> bytes:
    """Packs ascending extent numbers as u32 pairs: the first number and the length of each run."""
    runs: list[int] = []
    for number in numbers:
        if runs and number == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += (number, 1)
    return pack_u32(runs)


class Readable:
    """The workers' reports of mapped extents. Only the engine's thread may use it.

    workers: number of workers. The report of one more worker replaces the oldest report. taken:
    number of reports so far.
    """

    def __init__(self) -> None:
        self.workers = 1
        self.taken = 0
        self._reports: dict[int, Mapped] = {}
        self._runs: dict[int, list[range]] = {}  # of each worker

    def take(self, report: Mapped) -> bool:
        """Replaces a worker's report. Returns whether all workers have pinned what they map."""
        self.taken += 1
        self._reports.pop(report.worker, None)
        self._reports[report.worker] = report
        ends = unpack_u32(report.extents)
        pairs = zip(ends[::2], ends[1::2])
        self._runs[report.worker] = [range(first, first + count) for first, count in pairs]
        while len(self._reports) > self.workers:
            oldest = next(iter(self._reports))
            del self._reports[oldest], self._runs[oldest]
        reports = self._reports.values()
        return len(reports) == self.workers and all(each.pinned for each in reports)

    def leading(self, connection: Connection, slots: bytes, first: int) -> int:
        """How many consecutive slots from slot `first` on all workers can read."""
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
