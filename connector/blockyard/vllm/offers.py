"""Offers: which computed blocks are offered to the agent, and when.

Each step of vLLM names the requests with new blocks. When a request gets a new block, its earlier
blocks fill up. So a step checks only the requests with a new block. An offer has full blocks of
confirmed tokens that earlier steps have computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, islice
from typing import TYPE_CHECKING, Any

from blockyard.vllm.guard import Faults
from blockyard.vllm.identity import Adapter

if TYPE_CHECKING:
    from blockyard.scheduler import SchedulerSession

# Steps before a deferred offer is repeated. An offer is deferred at the limit on held blocks.
RETRY_STEPS = 16
# Size of an offer of decoded blocks. The end of the request offers the rest. Larger offers are
# cheaper, because every offer costs the engine's thread three frames.
DECODED_BLOCKS = 16
# Limits of offers in one step, in total and for decoded blocks. Without the limits, requests that
# began together would make one step in a hundred slow.
OFFERS_PER_STEP = 2
DECODED_OFFERS_PER_STEP = 1
# Limit of due requests that one step checks, in turn.
VISITS_PER_STEP = 32
NULL_BLOCK = 0  # vLLM's placeholder in a block table: has no KV, and must never be copied
NEVER = -1  # a generation that no request has


class Tracked:
    """A request that loads and stores blocks.

    groups: device blocks by KV group, complete for `generation` (vLLM's num_preemptions). prompt:
    full blocks of the prompt. offered: blocks that the session has been offered. main: the KV
    group whose blocks decide when an offer is due. due_at: the number of its blocks from which an
    offer is due, once all of them but the last are full. first: the local hit in blocks at the
    last lookup. hit, sources: the result of that lookup. failed: the generation with a failed
    load. accepted: the generation whose hit is loaded, after a decision. handed: the load may not
    be declined. loaded: tokens that a load has brought, in a hybrid model. adapter: the LoRA
    adapter, if any.
    """

    __slots__ = (
        "accepted",
        "adapter",
        "due_at",
        "failed",
        "first",
        "generation",
        "groups",
        "handed",
        "hit",
        "loaded",
        "main",
        "offered",
        "prompt",
        "request",
        "sources",
    )

    def __init__(self, request: Any, prompt: int, adapter: Adapter | None = None) -> None:
        self.request = request
        self.adapter = adapter
        self.prompt = prompt
        self.generation = NEVER
        self.groups: list[list[int]] = []
        self.main = 0
        self.offered = self.due_at = 0
        self.first = 0
        self.hit = 0
        self.sources = b""
        self.failed = NEVER
        self.accepted = NEVER
        self.handed = False
        self.loaded = 0

    def adopt(self, block_ids: Sequence[Sequence[int]]) -> None:
        """Takes a complete list of blocks, at the first step or after a preemption."""
        self.groups = [list(ids) for ids in block_ids]
        self.generation = self.request.num_preemptions
        self.count_offered(0)

    def count_offered(self, blocks: int) -> None:
        """Records how many leading blocks the session has been offered."""
        self.offered = blocks
        self.due_at = 0 if blocks < self.prompt else self._next_due()

    def _next_due(self) -> int:
        """The value of due_at behind the prompt."""
        return self.offered + 1 + DECODED_BLOCKS

    def owes(self) -> bool:
        """Whether an offer is due once all blocks but the last are full."""
        return bool(self.groups) and len(self.groups[self.main]) >= self.due_at


class Offers:
    """The block tables of all tracked requests, and their pending offers."""

    def __init__(self, tracked: Mapping[str, Tracked], tokens: int, faults: Faults) -> None:
        """tracked: the scheduler's requests by id. tokens: tokens in a block."""
        self._faults = faults
        self._tracked = tracked
        self._tokens = tokens
        self._due: dict[str, None] = {}  # in the order of their turns
        self._begun: list[str] = []  # requests of this step, without computed blocks yet
        self._later: dict[str, None] = {}  # requests with a deferred offer
        self._steps = 0
        self._put_off = False  # the last step left its due offers to the next one
        self._decoded = DECODED_BLOCKS

    def bind(self, pool: Any) -> None:
        """Takes vLLM's block pool."""

    def yield_blocks(self, session: SchedulerSession) -> None:
        """Releases all device blocks, because vLLM empties its pool."""
        session.yield_blocks()

    def abandon(self, session: SchedulerSession) -> None:
        """Drops the references of blocks that are not offered yet."""

    def forget(self, rid: str) -> None:
        """Removes a request that has ended."""
        self._due.pop(rid, None)
        self._later.pop(rid, None)

    def clear(self) -> None:
        """Removes all requests."""
        self._due.clear()
        self._later.clear()
        self._begun.clear()

    def distrust(self) -> None:
        """Drops all block tables after an error in follow().

        vLLM names a new block only once, so any table may be incomplete. A request offers no block
        before its next complete list.
        """
        for tracked in self._tracked.values():
            tracked.generation = NEVER
            tracked.groups = []
        self.clear()

    def follow(self, session: SchedulerSession, output: Any) -> bool:
        """Updates the block tables from a step (SchedulerOutput) and makes due offers.

        Returns whether the step has made an offer.
        """
        offered = False
        for new in output.scheduled_new_reqs:
            self._adopt(new.req_id, new.block_ids)
        cached = output.scheduled_cached_reqs
        lists = cached.new_block_ids  # None for a request without a new block: nearly all
        if lists.count(None) != len(lists):
            self._extend(cached, compress(zip(cached.req_ids, lists), lists))
        replaced = getattr(output, "block_table_updates", None)
        if replaced:  # vLLM 0.31 replaces whole rows for some hybrid models
            for rid, block_ids in replaced.items():
                self._adopt(rid, block_ids)
        if self._later:
            self._steps += 1
            if self._steps % RETRY_STEPS == 0:
                self._due.update(self._later)
                self._later.clear()
        if self._due:
            # A step that takes the answer to an offer makes none. An offer that waits gets larger.
            self._put_off = session.granted > 0 and not self._put_off
            offered = not self._put_off and self._offer_due(session)
        else:
            self._put_off = False
        if self._begun:
            self._due.update(dict.fromkeys(self._begun))
            self._begun.clear()
        return offered

    def _adopt(self, rid: str, block_ids: Sequence[Sequence[int]]) -> None:
        tracked = self._tracked.get(rid)
        if tracked is not None:
            tracked.adopt(block_ids)
            if tracked.owes():
                self._begun.append(rid)

    def _extend(self, cached: Any, new_blocks: Iterable[tuple[str, Any]]) -> None:
        """Takes the new blocks of running requests: id and blocks by KV group of each."""
        resumed, tracked_of, due = cached.resumed_req_ids, self._tracked.get, self._due
        for rid, more in new_blocks:
            if resumed and rid in resumed:
                self._adopt(rid, more)
                continue
            tracked = tracked_of(rid)
            if tracked is None or not (groups := tracked.groups):
                continue
            if len(groups) == 1:  # many requests may get a block in one step
                table = groups[0]
                table.extend(more[0])
            else:
                for ids, new in zip(groups, more):
                    ids.extend(new)
                table = groups[tracked.main]
            if len(table) >= tracked.due_at:  # owes(), without the call
                due[rid] = None

    def _offer_due(self, session: SchedulerSession) -> bool:
        offers = decoded = 0
        for rid in list(islice(self._due, VISITS_PER_STEP)):
            del self._due[rid]
            tracked = self._tracked.get(rid)
            if tracked is None or tracked.generation != tracked.request.num_preemptions:
                continue
            # Asynchronous scheduling counts tokens that are not sampled yet.
            unsure = getattr(tracked.request, "num_output_placeholders", 0)
            full = self._full(tracked, unsure, tracked.groups)
            is_prompt = tracked.offered < tracked.prompt
            if full > tracked.offered and (is_prompt or full - tracked.offered >= self._decoded):
                offers += 1
                decoded += not is_prompt
                if not self._offer(session, tracked, full, tracked.groups):
                    self._later[rid] = None
                    continue
            if tracked.owes():
                self._due[rid] = None  # the request goes to the end of the turns
            if offers == OFFERS_PER_STEP or decoded == DECODED_OFFERS_PER_STEP:
                break
        return offers > 0

    def last(
        self, session: SchedulerSession, tracked: Tracked, groups: Sequence[Sequence[int]]
    ) -> None:
        """Offers all full blocks of a request that ends.

        Offers none if no step has scheduled the request since its preemption or its load. Then the
        contents of its blocks are unknown.
        """
        request = tracked.request
        if tracked.generation != request.num_preemptions:
            return
        full = self._full(tracked, self._unsure(tracked), groups)
        if full > 0:
            self._offer(session, tracked, full, groups)

    def _unsure(self, tracked: Tracked) -> int:
        """Computed tokens of a request that ends whose KV may not be written, or not be its own."""
        request = tracked.request
        return max(
            getattr(request, "num_output_placeholders", 0),
            getattr(request, "num_in_flight_tokens", 0),
        )

    def _full(self, tracked: Tracked, unsure: int, groups: Sequence[Sequence[int]]) -> int:
        """Full blocks of confirmed tokens that earlier steps have computed."""
        request = tracked.request
        # The computed tokens may include rejected drafts beyond the request's tokens.
        tokens = min(request.num_computed_tokens - unsure, request.num_tokens)
        return min(tokens // self._tokens, *map(len, groups)) if groups else 0

    def _offer(
        self,
        session: SchedulerSession,
        tracked: Tracked,
        full: int,
        groups: Sequence[Sequence[int]],
    ) -> bool:
        """Offers the first `full` blocks. False at the limit on held blocks: try again later."""
        try:
            if tracked.adapter is not None and not tracked.adapter.intact():
                tracked.generation = NEVER  # the blocks have KV of unknown weights
                return True
            room = self._store(session, tracked, full, groups)
        except Exception as err:
            # Only this request stops its offers. The others continue.
            self._faults.note("computed", err)
            tracked.generation = NEVER
            room = True
        if room is not False:
            tracked.count_offered(full)
        return room is not False

    def _store(
        self,
        session: SchedulerSession,
        tracked: Tracked,
        full: int,
        groups: Sequence[Sequence[int]],
    ) -> bool:
        """Gives the session the first `full` blocks. False: try again later."""
        rid = tracked.request.request_id
        for ids in groups:  # any() with a generator takes three times as long
            if NULL_BLOCK in ids[tracked.offered : full]:
                raise ValueError(f"request {rid}: a null block before block {full}")
        return session.computed(rid, tracked.generation, full, groups)
