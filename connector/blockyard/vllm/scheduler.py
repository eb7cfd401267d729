"""The scheduler role in vLLM: maps hooks of the engine's main loop to SchedulerSession calls.

The hooks run in the engine's thread, between the steps of the model. A hook waits 1 ms at most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from blockyard.frames import HelloFields
from blockyard.handover import hand_over_of
from blockyard.pace import Pace, rest_seconds
from blockyard.settings import Settings
from blockyard.vllm.blocks import PoolBlocks, PoolView
from blockyard.vllm.guard import Faults, guarded
from blockyard.vllm.identity import PENDING, Adapters
from blockyard.vllm.offers import NULL_BLOCK, Offers, Tracked
from blockyard.vllm.records import EMPTY, StepMetadata, WorkerReport
from blockyard.vllm.short_loads import ShortLoads
from blockyard.vllm.sources import hit_sources
from blockyard.vllm.stats import BlockyardStats, SchedulerStats
from blockyard.work import EMPTY_WORK

if TYPE_CHECKING:
    from blockyard.scheduler import SchedulerSession

log = logging.getLogger("blockyard.vllm")

NO_HIT = (0, False)
STEP_TOKENS = 2048  # vLLM's default limit of tokens in a step

_now = time.perf_counter


class VllmScheduler:
    """The scheduler role. session is None when the connector stays off for this model."""

    def __init__(
        self,
        settings: Settings,
        session: SchedulerSession | None,
        tokens: int,
        groups: int,
        step_tokens: int = STEP_TOKENS,
        ranks: int = 1,
    ) -> None:
        """tokens: of a block. step_tokens: vLLM's limit for a step. ranks: of data parallelism."""
        self.settings = settings
        self.session = session
        self.off = session is None
        self.tokens = tokens
        self.groups = groups
        self._ranks = ranks
        self.faults = Faults()
        self.blocks: PoolBlocks | None = None
        self._adapters = Adapters(self.faults)
        self._tracked: dict[str, Tracked] = {}
        self._unread: set[str] = set()  # requests that wait for an adapter's fingerprint
        self._alive: set[str] = set()  # all unfinished requests of vLLM
        self._scheduled = 0  # requests in the last step
        self._offers = self._make_offers()
        self.pace = Pace(settings.min_load_blocks, tokens, step_tokens)
        self.short = ShortLoads(self.pace, tokens)
        self._stats = None if session is None else SchedulerStats(session, self.pace, self.short)

    def _make_offers(self) -> Offers:
        return Offers(self._tracked, self.tokens, self.faults)

    def give_up(self, subject: Any) -> None:
        """Removes the request of a failed hook. The request runs without a cache."""
        rid = getattr(subject, "request_id", None)
        self._unread.discard(rid)
        if self._tracked.pop(rid, None) is not None and self.session is not None:
            self._offers.forget(rid)
            self.session.finished(rid)

    def bind(self, pool: Any) -> None:
        """Takes vLLM's block pool."""
        if self.session is not None:
            self.blocks = PoolBlocks(pool)
            self.blocks.before_reset(self._yield_blocks)
            self.session.bind(self.blocks)
            self.session.observe_copies(self.pace.copies.add)
            self.short.on = self.short.on and self.blocks.can_uncache()
            self._offers.bind(pool)
            self._observe(pool)

    @guarded(lambda: None)
    def _observe(self, pool: Any) -> None:
        self.session.observe(PoolView(pool, self._listed_group()), self.queues)

    def _listed_group(self) -> int:
        """The KV group whose hashes LIST_CACHED has."""
        return 0

    def queues(self) -> tuple[int, int]:
        """The numbers of running and waiting requests. Any thread may call it.

        vLLM hides its queues. Requests in the last step count as running, all others as waiting.
        """
        running = min(self._scheduled, len(self._alive))
        return running, len(self._alive) - running

    @guarded(lambda: None)
    def _yield_blocks(self) -> None:
        if self.session is not None:
            self._offers.yield_blocks(self.session)

    def start(self, hello: HelloFields, workers: int) -> None:
        """Starts the session after the handshakes of all workers."""
        if self.session is not None:
            self.session.start(hello, workers)

    def turn_off(self, reason: str) -> None:
        """Turns the cache off for all requests. Copies in flight are still settled."""
        log.warning("Blockyard stays off, all requests run without it: %s", reason)
        self.off = True
        self._close(self.session)

    @guarded(lambda: None)
    def on_new_request(self, request: Any) -> None:
        """Opens a request and asks for its blocks, unless its blocks must not be shared."""
        self._alive.add(request.request_id)
        if not self.off and not self._begin(request):
            self._unread.add(request.request_id)

    def _begin(self, request: Any) -> bool:
        """Opens a request. False while the files of its adapter are read: call again."""
        identity = self._adapters.identity_of(request)
        if identity is PENDING:
            return False
        if identity is None:
            return True
        lora = request.lora_request
        adapter = None if lora is None else self._adapters.adapter_of(lora)
        tracked = self._tracked[request.request_id] = self._track(request, adapter)
        lookup = self.settings.load and not getattr(request, "skip_reading_prefix_cache", False)
        hand_over = hand_over_of(request, self.faults.note)
        tracked.handed = hand_over is not None
        self.session.open(
            request.request_id,
            request.num_preemptions,
            request.all_token_ids,
            identity,
            lookup=lookup,
            store=self.settings.store,
            hand_over=hand_over,
        )
        return True

    def _track(self, request: Any, adapter: Any) -> Tracked:
        return Tracked(request, request.num_prompt_tokens // self.tokens, adapter)

    @guarded(lambda: NO_HIT)
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Loadable tokens beyond the local hit, and whether the load needs steps of its own.

        None while the answer is pending. No hit when vLLM's own hit ends within a block. Other
        requests may reference that block, so a load must not overwrite it.
        """
        if self._unread and request.request_id in self._unread:
            if not self._begin(request):
                return None, False
            self._unread.discard(request.request_id)
        if self.short.begun and self.short.shares(request, num_computed_tokens):
            return None, False
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.failed == request.num_preemptions:
            return NO_HIT
        local, part = divmod(num_computed_tokens, self.tokens)
        if part:
            self.session.release_hit(request.request_id, request.num_preemptions)
            tracked.hit = 0
            return NO_HIT
        rest = rest_seconds(len(self._alive), request.num_tokens, self._ranks)
        hit = self.session.hit(request.request_id, request.num_preemptions, local, rest=rest)
        if hit is None:
            return None, False
        tracked.hit = self._usable(request, hit.blocks, local)
        if tracked.hit <= 0:
            return NO_HIT
        short = self.short.fits(request, num_computed_tokens, tracked.hit, len(self._alive) == 1)
        if not self._accepts(request, tracked, local, short > 0):
            self._pass_by(request, tracked)
            return NO_HIT
        tracked.first, tracked.sources = local, hit.sources
        if short > 0 and self.session.connected:
            return self.short.promise(request.request_id, local, short)
        self.short.forget(request.request_id)
        return tracked.hit * self.tokens, True

    def _usable(self, request: Any, blocks: int, local: int) -> int:
        """How many blocks of a hit vLLM can use."""
        return min(blocks, request.num_tokens // self.tokens - local)

    def _accepts(self, request: Any, tracked: Tracked, local: int, short: bool) -> bool:
        """Whether the hit is loaded. Once accepted, a hit of the same generation stays so."""
        generation = request.num_preemptions
        if tracked.accepted != generation and not tracked.handed:
            if not self.pace.accepts(tracked.hit, request.num_tokens - local * self.tokens, short):
                return False
            tracked.accepted = generation
        return True

    @guarded(lambda: ())
    def loaded_group_ids(self, request: Any) -> tuple[int, ...]:
        """The KV groups that the load of this request's hit fills. None without a hit.

        vLLM zeroes new blocks of all other groups. A served model has its hit in all groups.
        """
        tracked = self._tracked.get(request.request_id)
        return tuple(range(self.groups)) if tracked is not None and tracked.hit > 0 else ()

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Begins the load into the allocated blocks, or releases the pins."""
        # First of all: from now on vLLM counts the tokens of a short load as computed.
        short = self.short.begin(request, blocks, num_external_tokens)
        tracked = self._tracked.get(request.request_id)
        if num_external_tokens <= 0:
            self._pass_by(request, tracked)
        elif not (tracked and self._load(request, tracked, blocks, num_external_tokens, short)):
            # vLLM waits for this load, so the workers report it as failed. An untracked request
            # has lost its cache since the hit, because the connector was turned off.
            self._fail(request)

    @guarded(lambda: None)
    def _fail(self, request: Any) -> None:
        self.session.fail_load(request.request_id)

    @guarded(lambda: None)
    def _pass_by(self, request: Any, tracked: Tracked | None) -> None:
        if tracked is not None and tracked.hit:
            tracked.hit = 0
            self.session.release_hit(request.request_id, request.num_preemptions)

    @guarded(lambda: False)
    def _load(
        self, request: Any, tracked: Tracked, blocks: Any, tokens: int, short: bool
    ) -> bool:
        """True when the session has taken the load over, be it to say that it failed."""
        rid, count = request.request_id, self.short.blocks(tokens)
        tracked.hit = 0
        if not short:
            if tokens % self.tokens:
                raise ValueError(
                    f"request {rid}: vLLM wants {tokens} tokens, blocks have {self.tokens}"
                )
            self.pace.begin_load(rid, count, _now())
        table = blocks.get_block_ids()
        self._load_blocks(rid, request.num_preemptions, tracked.first, count, table)
        return True

    def _load_blocks(
        self, rid: str, generation: int, first: int, count: int, table: Sequence[Sequence[int]]
    ) -> None:
        targets = [list(ids[first : first + count]) for ids in table]
        if len(targets) != self.groups or any(
            len(ids) != count or NULL_BLOCK in ids for ids in targets
        ):
            raise ValueError(
                f"request {rid}: vLLM allocated {[len(ids) for ids in targets]} blocks for a load"
                f" of blocks {first}..{first + count - 1} in {self.groups} groups"
            )
        self.session.load(rid, generation, first, targets)

    @guarded(lambda: {})
    def get_external_cache_hit_sources(self, request: Any, tokens: int) -> Mapping[Any, int]:
        """Tokens of the planned load by the tier in which the agent found them."""
        tracked = self._tracked.get(request.request_id)
        return hit_sources(None if tracked is None else tracked.sources, tokens, self.tokens)

    def build_connector_meta(self, output: Any) -> StepMetadata:
        """The copies of this step: begun loads and granted stores."""
        session = self.session
        if session is None:
            return EMPTY
        planned, offered = 1, False
        try:
            planned = output.total_num_scheduled_tokens
            self._scheduled = len(output.num_scheduled_tokens)
            self.pace.begin_step(planned, self._scheduled, _now())
            if not self.off:
                offered = self._offers.follow(session, output)
        except Exception as err:
            self.faults.note("follow", err)
            self._offers.distrust()
        try:
            work = session.take_work(not offered)
        except Exception as err:
            self.faults.note("take_work", err)
            work = session.take_loads()
        idle = not planned and session.loading
        short = self.short.take() if self.short.begun else ()
        some = work is not EMPTY_WORK or idle or short
        return StepMetadata(work, idle, short) if some else EMPTY

    @guarded(lambda: None)
    def request_finished(self, request: Any, block_ids: Sequence[Sequence[int]]) -> None:
        """Ends a request: offers its remaining blocks without delaying vLLM."""
        rid = request.request_id
        self._alive.discard(rid)
        self.pace.forget(rid)
        self.short.forget(rid)
        tracked = self._tracked.get(rid)
        if tracked is None:
            self._unread.discard(rid)
            return
        self._offers.last(self.session, tracked, block_ids)
        self._offers.forget(rid)
        del self._tracked[rid]
        self.session.finished(rid)

    def update_connector_output(self, output: Any) -> None:
        """Takes the workers' report of a step. Most steps have none."""
        if self.short.flying:
            self._end_short_loads(getattr(output, "invalid_block_ids", None))
        report = getattr(output, "kv_connector_worker_meta", None)
        failed = getattr(output, "failed_recving", None)
        for rid in getattr(output, "finished_recving", None) or ():
            self.pace.end_load(rid, not failed or rid not in failed, _now())
        if report is not None or failed:
            self._settle(report, failed or ())

    @guarded(lambda: None)
    def _settle(self, report: Any, failed: Iterable[str]) -> None:
        for rid in failed:
            tracked = self._tracked.get(rid)
            if tracked is not None:
                tracked.failed = tracked.request.num_preemptions
                tracked.loaded = 0
        if self.session is None or not isinstance(report, WorkerReport):
            return
        for mapped in report.mapped:
            self.short.pinned = self.session.mapped(mapped)
        if report.done:
            self.session.settle(report.done)

    def _end_short_loads(self, invalid: Set[int] | None) -> None:
        """Takes the results of the step's short loads, which vLLM has taken just now."""
        for load in self.short.end(invalid):
            self.blocks.uncache(load.ids)
            self._yield_blocks()  # a request that has ended since the load has offered its blocks

    def stats(self) -> BlockyardStats | None:
        """Changed counters, or None. vLLM calls it when a step has ended."""
        try:
            now = _now()
            self.pace.end_step(now)
            if self.session is not None and self.session.changed:
                return self._stats.take(now)
        except Exception as err:
            self.faults.note("stats", err)
        return None

    @guarded(lambda: False)
    def busy(self) -> bool:
        """Whether the engine must keep stepping for copies in flight."""
        return self.session is not None and self.session.busy()

    @guarded(lambda: False)
    def frees_soon(self) -> bool:
        """Whether a store releases blocks soon, so that vLLM need not preempt a request."""
        return self.blocks is not None and self.blocks.frees_soon()

    def reset_cache(self) -> bool:
        """Invalidates all stored blocks. Returns True."""
        if self.session is None or self.off:
            return True
        try:
            return bool(self.session.reset())
        except Exception as err:
            self.faults.note("reset_cache", err)
            self.turn_off("a reset failed, so the stored blocks may have other weights")
            return True

    def shutdown(self) -> None:
        """Ends the session."""
        session, self.session = self.session, None
        self._close(session)

    def _close(self, session: SchedulerSession | None) -> None:
        """Ends the session for requests. The session can still settle copies in flight."""
        requests = list(self._tracked)
        self._tracked.clear()
        self._unread.clear()
        self._offers.clear()
        self._adapters.close()
        if session is not None:
            try:
                self._offers.abandon(session)
                for rid in requests:
                    session.finished(rid)
                session.close()
            except Exception as err:
                self.faults.note("close", err)
