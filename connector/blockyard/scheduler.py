"""The scheduler side of a connector, for any engine.

The engine's scheduler thread calls a SchedulerSession; no call waits for the agent, and without
one every call returns at once. Requests are opened at the agent as the engine learns of them;
hit() says what can be loaded, load() begins it, computed() offers what the engine has computed.
take_work() gives what the workers have to copy, settle() takes what they report.

No other thread changes the state: the keeper and the packer hand over what they have done.
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
from .frames import HelloFields
from .jobs import LOAD, Job, Jobs
from .keeper import Keeper
from .loads import Loads
from .lookups import Lookups
from .namespace import BASE, Identity
from .orphans import OrphanedSlots
from .packer import Packer
from .readable import Readable
from .request import ASKED, KNOWN, MISS, PACKING, Hit, Request
from .settings import Settings
from .stores import DeviceBlocks, Stores
from .work import EMPTY_WORK, Done, Mapped, Work

__all__ = ["DeviceBlocks", "Hit", "SchedulerSession"]

# Counters of the session. Those of STATS keep their names there.
_COUNTERS = (
    "lookups",  # requests that were looked up
    "hit_blocks",
    "loads",  # requests for which a load began
    "loaded_blocks",
    "failed_loads",  # jobs
    "stores",  # offers
    "stored_blocks",
    "dropped_stores",  # blocks that were offered and not stored
    "errors",  # frames that the agent refused
    "present_blocks",  # offered, and there already
    "resumed_blocks",  # stored although the agent died while they were copied
    "deferred",  # offers put off: the limit on held blocks was reached
    "absent",  # requests for which there was no agent
    "too_many",  # requests beyond the agent's limit
    "skipped",  # requests that the protocol cannot carry
    "unsent",  # requests that the agent did not read
    "late",  # answers that were not waited for any longer
    "doubted",  # hits that were kept back, because not all workers could load
    "unmapped",  # hits that were cut short, because not all workers had mapped the memory
)
_REPORTED = _COUNTERS[:9]

_SPIN = 40e-6  # leaves a hook of 50 us room for the rest
_MIN_LIMIT = 64
_now = time.perf_counter


class SchedulerSession:
    """One engine's session with the agent, through restarts of the agent.

    blocks may come later, by bind(); nothing is stored before. block_tokens is the number of tokens
    in a block. Requests are named by the engine's ids; a generation counts how often the engine
    has begun a request anew.
    """

    def __init__(
        self, settings: Settings, blocks: DeviceBlocks | None, block_tokens: int
    ) -> None:
        if block_tokens < 1:
            raise ValueError(f"block_tokens: {block_tokens}, want 1 or more")
        self._settings = settings
        self._count = dict.fromkeys(_COUNTERS, 0)
        self._requests: dict[str, Request] = {}
        self._workers = 1
        self._hello: HelloFields | None = None
        self._jobs = Jobs()
        self._packer = Packer()
        self._orphans = OrphanedSlots(self._count, self._jobs)
        self._readable = Readable()
        self._lookups = Lookups(
            self._count, block_tokens, settings.lookup_wait_ms, self._packer, self._readable
        )
        self._loads = Loads(self._count, self._jobs, self._lookups)
        self._stores = Stores(self._count, self._jobs, self._orphans, block_tokens)
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

    def start(self, hello: HelloFields, workers: int | None = None) -> None:
        """Connects, and stays connected, from a thread of its own.

        workers is how many report each job; by default tp times pp of the namespace.
        """
        if hello.namespace is None:
            raise ValueError("hello.namespace: None, want the engine's namespace")
        if not hello.incarnation:
            hello = replace(hello, incarnation=secrets.randbits(64))
        if workers is None:
            workers = int(hello.namespace["tp"]) * int(hello.namespace["pp"])
        if workers < 1:
            raise ValueError(f"workers: {workers}, want 1 or more")
        self._workers = self._loads.workers = self._readable.workers = workers
        self._hello = hello
        self._attachment.weights = hello.namespace["weights"]
        if self._settings.enabled:
            self._keeper.start(hello)

    def bind(self, blocks: DeviceBlocks) -> None:
        """The engine's device blocks. Stores may hold a part of those that are free now."""
        self._stores.blocks = blocks
        free = blocks.free_count()
        automatic = max(_MIN_LIMIT, free // 10, min(256, free // 2))
        self._stores.limit = self._settings.max_inflight_blocks or automatic

    def observe(self, pool: CachePool, queues: Callable[[], tuple[int, int]]) -> None:
        """What other threads may look at, for STATS and LIST_CACHED: the engine's device blocks,
        and how many requests run and wait. HELLO must say that hashes are listed."""
        self._queues = queues
        self._keeper.lister.pool = pool

    # Requests.

    def open(
        self,
        rid: str,
        generation: int,
        tokens: Sequence[int],
        identity: Identity = BASE,
        lookup: bool = True,
        store: bool = True,
    ) -> None:
        """The engine has a request. tokens is read later too: give the list that grows.

        A request that is open already begins its next generation, if that is a higher one.
        Every request that was opened must be finished().
        """
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
        if lookup or store:
            self._lookups.begin(r, self._attachment.connection)

    def _reopen(self, r: Request, generation: int) -> Request:
        """The next generation of a request. The engine has preempted it.

        OPEN with a higher generation drops the pins of the earlier one, so no load of that may be
        in flight. None is: an engine preempts what runs, and a request runs after its load has
        ended. Should one be reported late all the same, or the packer be at work on it, the earlier
        generation stays open under its number until that is over, and the new one gets another.
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
        self, rid: str, generation: int, local_blocks: int, spin: float = _SPIN
    ) -> Hit | None:
        """What can be loaded beyond the engine's own local_blocks. None: ask again.

        Asking changes nothing, and may be repeated; the answer may grow. Waits at most `spin`
        seconds, and only for a request that was asked about a moment ago. A generation of which a
        load has begun is a miss from then on, whatever became of the load.
        """
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
            until = _now() + spin
            self._pump(False, r.state != PACKING)
            if r.state == ASKED and not r.waits and not r.polled:
                r.polled = True
                while r.state == ASKED and _now() < until:
                    self._pump(False, True)
        return self._lookups.hit(r, local_blocks, self._settings.min_load_blocks)

    def load(
        self, rid: str, generation: int, first: int, block_ids: Sequence[Sequence[int]]
    ) -> bool:
        """Loads blocks from `first` on into device blocks, one list of ids for each KV group.

        hit() must have told of them. False when they cannot be loaded any more: then the workers
        report the request's load as failed, so that an engine that waits for it goes on.
        """
        r = self._requests.get(rid)
        if r is not None and r.generation == generation and self._loads.begin(r, first, block_ids):
            return True
        self._loads.fail(rid, r, block_ids)
        return False

    def fail_load(self, rid: str) -> None:
        """A load that the engine waits for cannot begin: the workers report it as failed."""
        self._loads.fail(rid, self._requests.get(rid), ())

    def release_hit(self, rid: str, generation: int) -> None:
        """What hit() told of is not going to be loaded: its pins drop."""
        r = self._requests.get(rid)
        if r is not None and r.generation == generation:
            self._lookups.pass_by(r)

    def computed(
        self, rid: str, generation: int, blocks: int, block_ids: Sequence[Sequence[int]]
    ) -> bool:
        """The first `blocks` blocks hold the KV of known tokens: offers those that are new.

        They must have been computed in earlier steps; block_ids are all of the request's device
        blocks, one list for each KV group. False when some could not be offered yet, so that
        calling again in a later step makes sense.
        """
        r = self._requests.get(rid)
        if r is None or r.generation != generation:
            return True
        if r.state in (PACKING, ASKED, KNOWN):
            self._lookups.pass_by(r)  # it runs, so it does not wait for a load
        return self._stores.offer(r, blocks, block_ids)

    def finished(self, rid: str) -> None:
        """The engine's last word on a request. What is in flight goes on and is settled."""
        r = self._requests.pop(rid, None)
        if r is not None:
            self._retire(r)

    def _retire(self, r: Request) -> None:
        """Nothing more begins for r; it is closed when nothing of it is in flight."""
        r.finished = True
        if r.packing is not None:
            r.packing.cancelled = True
        close_if_done(r)

    # Steps.

    def take_work(self) -> Work:
        """The copies that workers are to make with the next step."""
        stores = self._stores
        if self._attachment.idle and not (self._loads.queued or stores.waits or stores.offers):
            return EMPTY_WORK
        self._pump(True)
        if stores.offers:
            stores.expire()
        loads = self._loads.queued
        if loads:
            self._loads.queued = []
        taken = stores.take() if stores.waits else []
        return Work(loads, taken) if loads or taken else EMPTY_WORK

    def settle(self, done: Done | None) -> None:
        """What workers report of jobs."""
        if not done:
            return
        for number, (ok, failed) in done.jobs.items():
            job = self._jobs.tally(number, ok, failed, self._workers)
            if job is not None:
                self._settle(job)
        self._attachment.leave_if_done()

    def _settle(self, job: Job) -> None:
        """All workers have ended a job."""
        connection = job.connection
        if job.kind == LOAD:
            self._loads.ended(job)
            if connection is not None and connection.ended:
                self._orphans.loaded(job)
        else:
            assert connection is not None
            self._lookups.judge(not job.failed)
            self._stores.ended(job)

    def mapped(self, report: Mapped) -> None:
        """What one worker can read now. Hits are promised for memory that all workers can read; a
        request waits a second at most for those that are about to map it."""
        self._readable.take(report)

    def busy(self) -> bool:
        """Whether a copy, a reference on a device block or a BYE waits for a later step."""
        return bool(self._jobs.flying or self._stores.offers or self._attachment.busy)

    def yield_blocks(self) -> None:
        """Lets go of all device blocks now. What is being stored of them is thrown away: workers
        may still copy, and the engine write, what nobody is going to read."""
        self._stores.yield_blocks()

    def stats(self) -> dict[str, int]:
        """Counters, cumulative; and what is there now: requests, jobs, held_blocks, connected."""
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
            "connected": int(connection is not None and connection.usable),
        }

    def reset(self) -> bool:
        """The engine no longer stands behind what is stored: from now on none of it is hit.

        Its weights have changed, or its user wants an empty cache. The session moves to a namespace
        of its own. Requests that the engine has now are neither loaded nor stored before their
        next generation; what workers copy now is not stored. True: always possible.
        """
        hello = self._hello
        if hello is not None and hello.namespace is not None:
            weights = f"{hello.namespace['weights']}+{secrets.token_hex(8)}"
            self._attachment.reset(weights)
        return True

    def close(self) -> None:
        """Ends the session, with BYE if no copy is in flight. May wait for two seconds."""
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
        return {name: self._count[name] for name in _REPORTED}
