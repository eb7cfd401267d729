"""The scheduler side of a connector, for any engine.

The engine's scheduler thread calls a SchedulerSession. No call waits for the agent. Without an
agent every call returns at once. The calls, in the order of a request's life:

open() opens a request at the agent. hit() returns its loadable blocks. load() begins their load.
computed() offers computed blocks for storing. take_work() returns the workers' copies of a step.
settle() takes the workers' reports. finished() ends the request.

Only the engine's thread changes the state. The keeper and the packer deliver results in queues.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from . import frames
from .attachment import Attachment
from .cached import CachePool
from .connection import close_if_done
from .counters import COUNTERS, REPORTED
from .frames import HelloFields
from .handover import HandOver, Wait
from .jobs import Jobs
from .keeper import Keeper
from .loads import Loads
from .lookups import Lookups
from .namespace import BASE, Identity
from .orphans import OrphanedSlots
from .packer import Packer
from .readable import Readable
from .request import ASKED, KNOWN, MISS, PACKING, Hit, Request
from .settings import Settings
from .settling import Settling
from .stores import DeviceBlocks, Stores
from .trust import Trust
from .work import EMPTY_WORK, Done, Mapped, Work

__all__ = ["DeviceBlocks", "Hit", "SchedulerSession"]

_SPIN = 25e-6  # wait for an answer, with what a hook does first, within its limit of 50 us
_PAUSE = 20e-6
_MANY = 2  # answers that only the keeper receives, unless a hook may rest: decoding takes too long
_MIN_LIMIT = 64
_now = time.perf_counter


class SchedulerSession:
    """One engine's session with the agent. The session survives the agent's restarts.

    blocks: the engine's device blocks; without them, bind() must give them before any store.
    block_tokens: tokens in a block. A request has the engine's id. Its generation counts the
    request's preemptions. changed: stats() may have changed since the flag was cleared.
    """

    def __init__(
        self, settings: Settings, blocks: DeviceBlocks | None, block_tokens: int
    ) -> None:
        if block_tokens < 1:
            raise ValueError(f"block_tokens: {block_tokens}, want 1 or more")
        self._settings = settings
        self._count = dict.fromkeys(COUNTERS, 0)
        self._requests: dict[str, Request] = {}
        self.changed = True
        self._hello: HelloFields | None = None
        self._jobs = Jobs()
        self._packer = Packer()
        self._orphans = OrphanedSlots(self._count, self._jobs)
        self._readable = Readable()
        self._trust = Trust()
        self._lookups = self._make_lookups(block_tokens)
        self._loads = Loads(self._count, self._jobs, self._lookups, self._trust)
        self._stores = Stores(self._count, self._jobs, self._orphans, block_tokens)
        self._settling = Settling(
            self._jobs, self._loads, self._stores, self._orphans, self._trust
        )
        self._queues: Callable[[], tuple[int, int]] | None = None
        reported = self._reported if settings.stats else None
        self._keeper = Keeper(settings.socket, reported, self._gauges)
        self._attachment = Attachment(
            self._count,
            self._jobs,
            self._lookups,
            self._stores,
            self._orphans,
            self._keeper,
            self._packer,
        )
        self._pump = self._attachment.pump
        if blocks is not None:
            self.bind(blocks)

    def _make_lookups(self, block_tokens: int) -> Lookups:
        wait_ms = self._settings.lookup_wait_ms
        return Lookups(
            self._count, block_tokens, wait_ms, self._packer, self._readable, self._trust
        )

    def start(self, hello: HelloFields, workers: int | None = None) -> None:
        """Starts the keeper, which connects and stays connected.

        workers: how many workers report each job. The default is tp times pp of the namespace.
        """
        if hello.namespace is None:
            raise ValueError("hello.namespace: None, want the engine's namespace")
        if not hello.incarnation:
            hello = replace(hello, incarnation=secrets.randbits(64))
        if workers is None:
            workers = int(hello.namespace["tp"]) * int(hello.namespace["pp"])
        if workers < 1:
            raise ValueError(f"workers: {workers}, want 1 or more")
        self._settling.workers = self._loads.workers = self._readable.workers = workers
        self._hello = hello
        self._attachment.weights = hello.namespace["weights"]
        if self._settings.enabled:
            self._keeper.start(hello)

    def bind(self, blocks: DeviceBlocks) -> None:
        """Sets the engine's device blocks. Stores may hold a part of the blocks free now."""
        self._stores.blocks = blocks
        free = blocks.free_count()
        automatic = max(_MIN_LIMIT, free // 10, min(256, free // 2))
        self._stores.limit = self._settings.max_inflight_blocks or automatic

    def observe(self, pool: CachePool, queues: Callable[[], tuple[int, int]]) -> None:
        """Sets the sources of STATS and LIST_CACHED, which other threads call.

        queues returns the numbers of running and waiting requests. HELLO must announce that the
        scheduler lists hashes.
        """
        self._queues = queues
        self._keeper.lister.pool = pool

    def observe_copies(self, take: Callable[[int, float], None]) -> None:
        """take gets the blocks and the seconds of copying of each load job that succeeds."""
        self._loads.copied = take

    # Requests.

    def open(
        self,
        rid: str,
        generation: int,
        tokens: Sequence[int],
        identity: Identity = BASE,
        lookup: bool = True,
        store: bool = True,
        hand_over: HandOver | None = None,
    ) -> None:
        """Opens a request at the agent. An open request begins its next, higher generation.

        tokens: the engine's own list; the session reads the tokens that the engine appends later.
        hand_over: the blocks that hit() waits for, in the first generation.
        The engine must call finished() for every opened request.
        """
        self.changed = True
        self._pump(True)
        r = self._requests.get(rid)
        if r is not None:
            if generation > r.generation:
                self._reopen(r, generation)
            return
        lookup = lookup and self._settings.load
        store = store and self._settings.store
        r = Request(rid, generation, tokens, identity, lookup, store)
        self._requests[rid] = r
        if hand_over is not None and lookup:
            r.hand_over = Wait(hand_over)
        if lookup or store:
            self._lookups.begin(r, self._attachment.connection)

    def _reopen(self, r: Request, generation: int) -> Request:
        """Begins the next generation of a preempted request.

        OPEN with a higher generation drops the pins of the earlier one, so the earlier one must
        have no load in flight. Usually it has none: an engine preempts running requests, and a
        request runs after its load. With a load in flight or a prompt in the packer, the earlier
        generation keeps its number until both end, and the new generation gets a new number.
        """
        connection = self._attachment.connection
        entangled = r.packing is not None or r.loads
        if entangled or connection is None or r.connection is not connection:
            fresh = Request(r.rid, generation, r.tokens, r.identity, r.lookup, r.store)
            self._requests[r.rid] = fresh
            self._retire(r)
            r = fresh
        else:
            r.begin(generation)
        if r.lookup or r.store:
            self._lookups.begin(r, connection)
        return r

    def hit(
        self, rid: str, generation: int, local_blocks: int, spin: float = _SPIN, rest: float = 0.0
    ) -> Hit | None:
        """The loadable blocks beyond the engine's own local_blocks. None: not known yet, ask again.

        The call may be repeated, and the answer may grow. The first call waits at most `spin`
        seconds for the agent's answer, or `rest` seconds without Python's lock. A generation with a
        load is a miss afterwards, even if the load has failed.
        """
        self.changed = True
        r = self._requests.get(rid)
        if r is None or generation < r.generation:
            return MISS
        if generation > r.generation:
            self._pump(True)
            r = self._reopen(r, generation)
        if r.delayed and r.state == PACKING:
            self._pump(False, True)
            self._lookups.begin_delayed(r, self._attachment.connection)
        if r.state in (PACKING, ASKED) or r.unanswered:
            until = _now() + (rest or spin)
            self._pump(False, r.state != PACKING and (rest > 0 or r.unanswered < _MANY))
            waited = (PACKING, ASKED) if rest else (ASKED,)
            if r.state in waited and not r.waits and not r.polled:
                r.polled = True
                while r.state in waited and not r.waits and _now() < until:
                    if rest:
                        time.sleep(_PAUSE)
                    self._pump(False, rest > 0 or r.unanswered < _MANY)
        return self._lookups.hit(r, local_blocks, self._settings.min_load_blocks or 1)

    def load(
        self, rid: str, generation: int, first: int, block_ids: Sequence[Sequence[int]]
    ) -> bool:
        """Loads blocks from `first` on into device blocks, one list of ids for each KV group.

        hit() must have returned these blocks. False when they cannot be loaded any more. Then the
        workers report the load as failed, so that the engine stops waiting.
        """
        self.changed = True
        r = self._requests.get(rid)
        if r is not None and r.generation == generation and self._loads.begin(r, first, block_ids):
            return True
        self._loads.fail(rid, r, block_ids)
        return False

    def fail_load(self, rid: str) -> None:
        """Has the workers report a request's load as failed, without any copy."""
        self._loads.fail(rid, self._requests.get(rid), ())

    def release_hit(self, rid: str, generation: int) -> None:
        """Releases the pins of a hit that the engine does not load."""
        r = self._requests.get(rid)
        if r is not None and r.generation == generation:
            self._lookups.pass_by(r)

    def computed(
        self, rid: str, generation: int, blocks: int, block_ids: Sequence[Sequence[int]]
    ) -> bool:
        """Offers the new ones of a request's first `blocks` blocks to the agent.

        Earlier steps must have computed the blocks. block_ids: all device blocks of the request,
        one list for each KV group. False when some blocks were not offered: call again in a later
        step.
        """
        r = self._requests.get(rid)
        if r is None or r.generation != generation:
            return True
        if r.state in (PACKING, ASKED, KNOWN):
            self._lookups.pass_by(r)  # a running request does not wait for a load
        return self._stores.offer(r, blocks, block_ids)

    def finished(self, rid: str) -> None:
        """Ends a request. Its copies in flight continue and are settled."""
        r = self._requests.pop(rid, None)
        if r is not None:
            self._retire(r)

    def _retire(self, r: Request) -> None:
        """Begins no more work for r, and closes r when no work is in flight."""
        r.finished = True
        if r.packing is not None:
            r.packing.cancelled = True
        close_if_done(r)

    # Steps.

    def take_work(self, free: bool = True) -> Work:
        """The copies for the workers in the next step. free: the step has made no offer."""
        stores, settling = self._stores, self._settling
        waits = stores.queued or stores.offers or self._loads.queued or settling.reports
        if not waits and self._attachment.idle:
            return EMPTY_WORK
        self.changed = True
        self._pump(True)
        if not self._attachment.take_grants(free):
            stores.expire()
            settling.settle_some()
        taken = stores.take() if stores.queued else []
        return Work(self._loads.take(), taken) or EMPTY_WORK

    def take_loads(self) -> Work:
        """The loads of a step whose take_work() has raised: the engine waits for the loads."""
        return Work(self._loads.take(), [])

    def settle(self, done: Done | None) -> None:
        """Takes the workers' reports of jobs."""
        if not done:
            return
        self.changed = True
        self._settling.take(done)
        self._attachment.leave_if_done()

    def mapped(self, report: Mapped) -> bool:
        """Takes a worker's report. Returns whether all workers have pinned all that they map.

        A hit has only memory that all workers have mapped. A request waits at most one second for
        workers to map memory.
        """
        return self._readable.take(report)

    @property
    def granted(self) -> int:
        """How many answers to offers wait for take_work()."""
        return self._attachment.grants

    @property
    def loading(self) -> bool:
        """Whether a load is in flight."""
        return self._loads.flying > 0

    def busy(self) -> bool:
        """Whether a copy, an offer or BYE needs a later step."""
        return bool(self._jobs.flying or self._stores.offers or self._attachment.busy)

    def yield_blocks(self) -> None:
        """Releases all device blocks now and discards their stores.

        Workers may still copy the blocks while the engine writes them. No such copy is committed.
        """
        self.changed = True
        self._settling.settle_all()
        self._stores.yield_blocks()

    def stats(self) -> dict[str, int]:
        """Cumulative counters, and the current requests, jobs, held_blocks and connected."""
        connection = self._attachment.connection
        return {
            **self._count,
            "connects": self._keeper.connects,
            "hello_refused": self._keeper.refusals,
            "keeper_errors": self._keeper.errors,
            "lists_failed": self._keeper.lister.errors,
            "evicted_blocks": self._keeper.evicted + (connection.evicted if connection else 0),
            "requests": len(self._requests),
            "jobs": len(self._jobs.flying),
            "held_blocks": self._stores.held,
            "connected": int(self.connected),
        }

    def counted(self, names: Sequence[str]) -> tuple[int, ...]:
        """Some of the counters in stats()."""
        return tuple(map(self._count.__getitem__, names))

    @property
    def connected(self) -> bool:
        """Whether requests can be opened at the agent now."""
        connection = self._attachment.connection
        return connection is not None and connection.usable

    def reset(self) -> bool:
        """Invalidates all stored blocks: from now on none of them is hit. Returns True.

        The engine's weights have changed, or its user wants an empty cache. The session moves to a
        new, unique namespace. Open requests load and store only from their next generation on.
        Stores in flight are discarded.
        """
        hello = self._hello
        if hello is not None and hello.namespace is not None:
            weights = f"{hello.namespace['weights']}+{secrets.token_hex(8)}"
            self.changed = True
            self._settling.settle_all()
            self._attachment.reset(weights)
        return True

    def close(self) -> None:
        """Ends the session, with BYE if no copy is in flight. May wait two seconds."""
        self._settling.settle_all()
        self._attachment.close()

    def _gauges(self) -> Mapping[str, int]:
        pool, queues = self._keeper.lister.pool, self._queues
        if pool is None or queues is None:
            return {}
        running, waiting = queues()
        total = pool.total()
        return {
            "device_blocks_total": total,
            "device_blocks_used": min(total, pool.used()),
            "running_requests": running,
            "waiting_requests": waiting,
        }

    def _reported(self) -> Mapping[str, int]:
        return {name: self._count[name] for name in REPORTED}
