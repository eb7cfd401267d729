"""Loads: copies of pinned slots into device blocks, from the engine's call to the last report."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from . import frames
from .connection import Connection, close_if_done
from .groups import ALL_GROUPS
from .jobs import LOAD, Job, Jobs
from .lookups import Lookups
from .packed import pack_u32
from .request import KNOWN, LOADED, LOADING, MISSED, Request
from .transport import Frame
from .trust import Trust
from .work import Load

_BLOCKS = frames.MAX_BLOCKS_PER_FRAME
_SLOT = 16

#: Device blocks of one group to load into: the group, the first block's number, and the ids.
Target = tuple[int, int, Sequence[int]]


class Loads:
    """The loads of all requests. Only the engine's thread may use it."""

    def __init__(
        self, count: dict[str, int], jobs: Jobs, lookups: Lookups, trust: Trust
    ) -> None:
        self.queued: list[Load] = []  # for the next step
        self.flying = 0  # jobs of loads in flight
        self.workers = 1  # workers that report each job
        # Gets the blocks and the seconds of copying of each job that all workers have copied.
        self.copied: Callable[[int, float], None] = lambda blocks, seconds: None
        self._count = count
        self._jobs = jobs
        self._lookups = lookups
        self._trust = trust

    def begin(self, r: Request, first: int, block_ids: Sequence[Sequence[int]]) -> bool:
        """Begins a load of known blocks from `first` on. block_ids: one list for each KV group.

        False, without a load, when a block is not known. With one KV group, CLAIM notifies the
        workers at once. A CLAIM may fail or stay unanswered: the next step's Work has the same job,
        and the slots are pinned.
        """
        n = len(block_ids[0]) if block_ids else 0
        connection = r.connection
        if r.state != KNOWN or connection is None or not 0 < first + n <= r.known or not n:
            return False
        if any(len(ids) != n for ids in block_ids):
            raise ValueError(f"load of {r.rid}: {[len(ids) for ids in block_ids]} device blocks")
        packed = [pack_u32(ids) for ids in block_ids]
        self._start(r)
        r.offered = max(r.offered, r.known)  # a request may end before its load is reported
        self._claim(r, connection, ALL_GROUPS, first, r.slots[_SLOT * first :], packed)
        return True

    def begin_groups(self, r: Request, targets: Sequence[Target]) -> bool:
        """Begins a load of blocks of several groups. False, without a load, as in begin()."""
        connection, fit = r.connection, r.fit
        if r.state != KNOWN or connection is None or fit is None or not targets:
            return False
        for group, first, ids in targets:
            needs = fit.needs[group]
            if not ids or first not in needs or first + len(ids) > needs.stop:
                raise ValueError(
                    f"load of {r.rid}: blocks {first}..{first + len(ids) - 1} of group {group},"
                    f" pinned are {needs}"
                )
        self._start(r)
        for group, first, ids in targets:
            slots = fit.slots[group][_SLOT * (first - fit.needs[group].start) :]
            self._claim(r, connection, group, first, slots, [pack_u32(ids)])
        return True

    def _start(self, r: Request) -> None:
        r.state = LOADING
        r.load_failed = False
        self._count["loads"] += 1
        self._trust.try_load()

    def _claim(
        self,
        r: Request,
        connection: Connection,
        group: int,
        first: int,
        slots: bytes,
        packed: list[bytes],
    ) -> None:
        """Begins the jobs for blocks from `first` on, which are in `slots`.

        packed: the device blocks of every group that a slot has.
        """
        total = len(packed[0]) // 4
        for at in range(0, total, _BLOCKS):
            n = min(_BLOCKS, total - at)
            piece = slots[_SLOT * at : _SLOT * (at + n)]
            blocks = [ids[4 * at : 4 * (at + n)] for ids in packed]
            job = self._jobs.add(LOAD, r, piece, connection, generation=r.generation)
            job.taken = True  # a CLAIM may reach the workers before the next step does
            self.flying += 1
            r.loads += 1
            if len(blocks) == 1 and connection.usable:
                body = frames.encode_claim(
                    r.number, r.generation, first + at, n, job.number, blocks[0], max(0, group)
                )
                connection.overtake(frames.CLAIM, body, self._claimed, job)
            self.queued.append(Load(job.number, r.rid, piece, b"".join(blocks), group))

    def _claimed(self, job: Job, frame: Frame | None) -> None:
        if frame is None:
            return
        refused = frame.type != frames.CLAIMED
        self._count["errors"] += refused  # a lost worker finds the job in its Work
        if (refused or frame.body["workers"] < self.workers) and job.number in self._jobs.flying:
            self._trust.judge(False, sure=True)

    def take(self) -> list[Load]:
        """The queued loads for the workers."""
        if not self.queued:
            return self.queued
        loads, self.queued = self.queued, []
        return loads

    def fail(self, rid: str, r: Request | None, block_ids: Sequence[Sequence[int]]) -> None:
        """Reports a load that cannot begin as failed, through the workers."""
        try:
            blocks = b"".join([pack_u32(ids) for ids in block_ids])
        except (OverflowError, TypeError, struct.error):
            blocks = b""
        job = self._jobs.add(LOAD, r, b"", None)
        job.taken = True
        self.flying += 1
        if r is not None:
            r.loads += 1
            job.generation = r.generation
            if r.state == KNOWN:
                self._lookups.release_all(r)
            if r.state != LOADING:
                r.state = MISSED
            r.load_failed = True
        self.queued.append(Load(job.number, rid, b"", blocks or bytes(4)))

    def ended(self, job: Job) -> None:
        """Ends a load that all workers have reported."""
        self.flying -= 1
        r = job.request
        if job.slots:  # a load without slots could not begin
            self._trust.judge(not job.failed)
        if job.failed:
            self._count["failed_loads"] += 1
        else:
            self._count["loaded_blocks"] += job.blocks
            if job.micros:
                self.copied(job.blocks, job.micros / 1e6)
        if r is None:
            return
        r.loads -= 1
        r.load_failed = r.load_failed or bool(job.failed)
        if r.loads:
            return
        self._lookups.release_all(r)
        if r.load_failed:
            r.state = MISSED
            r.offered = 0  # the stored blocks have wrong bytes, or are evicted
        else:
            r.state = LOADED
            r.offered = max(r.offered, r.known)
        close_if_done(r)
