"""Which computed blocks are offered to the agent, and when.

vLLM says in each step which requests got blocks; when a request gets one, the blocks before it
fill up. A step costs a glance at each running request that got a block, and nothing for the
others. Offered are blocks of confirmed tokens that earlier steps have computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from blockyard.vllm.guard import Faults
from blockyard.vllm.identity import Adapter

if TYPE_CHECKING:
    from blockyard.scheduler import SchedulerSession

# How many steps pass before blocks are offered again that there was no room to hold.
RETRY_STEPS = 16
# A request that decodes offers so many blocks at a time, and the rest when it ends: its blocks are
# in nobody's way meanwhile, and every offer costs the engine's thread three frames.
DECODED_BLOCKS = 16
# How many requests offer in one step, and how many of them what they have decoded, which nobody
# waits for. The others wait: requests that began together would otherwise make one step in a
# hundred slow.
OFFERS_PER_STEP = 2
DECODED_OFFERS_PER_STEP = 1
# How many requests that are due are looked at in one step, each in its turn.
VISITS_PER_STEP = 32
NEVER = -1  # a generation that no request has


class Tracked:
    """A request whose blocks are shared.

    groups: its device blocks by KV group, valid for `generation` (vLLM's num_preemptions) once it
    was scheduled in it. prompt: full blocks of its prompt. offered: blocks already given to the
    session. first: local hit, in blocks, when the session was last asked; hit, sources: what it
    said. failed: the generation whose load failed. adapter: what its KV depends on, if anything.
    """

    __slots__ = (
        "adapter",
        "failed",
        "first",
        "generation",
        "groups",
        "hit",
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
        self.offered = 0
        self.first = 0
        self.hit = 0
        self.sources = b""
        self.failed = NEVER

    def adopt(self, block_ids: Sequence[Sequence[int]]) -> None:
        """A complete new list of blocks: first scheduling, or the return after a preemption."""
        self.groups = [list(ids) for ids in block_ids]
        self.generation = self.request.num_preemptions
        self.offered = 0

    def owes(self) -> bool:
        """Whether it will soon have blocks worth an offer: all but the last fill up by then."""
        if not self.groups:
            return False
        return (
            self.offered < self.prompt or len(self.groups[0]) - 1 - self.offered >= DECODED_BLOCKS
        )


class Offers:
    """The block tables of all tracked requests, and what is still to be offered of them."""

    def __init__(self, tracked: Mapping[str, Tracked], tokens: int, faults: Faults) -> None:
        """tracked: the scheduler's requests by id. tokens: of one block."""
        self._faults = faults
        self._tracked = tracked
        self._tokens = tokens
        self._due: dict[str, None] = {}  # in the order of their turns
        self._begun: list[str] = []  # those of this step: nothing of them is computed yet
        self._later: dict[str, None] = {}
        self._steps = 0

    def forget(self, rid: str) -> None:
        """The request has ended."""
        self._due.pop(rid, None)
        self._later.pop(rid, None)

    def clear(self) -> None:
        """All requests have."""
        self._due.clear()
        self._later.clear()
        self._begun.clear()

    def distrust(self) -> None:
        """A step was not followed to its end: vLLM names new blocks once, so that no table is known
        to be complete. Requests offer nothing before their next complete list."""
        for tracked in self._tracked.values():
            tracked.generation = NEVER
            tracked.groups = []
        self.clear()

    def follow(self, session: SchedulerSession, output: Any) -> None:
        """Takes over the block tables of a step (SchedulerOutput) and offers what is due."""
        for new in output.scheduled_new_reqs:
            self._adopt(new.req_id, new.block_ids)
        cached = output.scheduled_cached_reqs
        for index, block_ids in enumerate(cached.new_block_ids):
            if block_ids is not None:
                self._extend(cached, index, block_ids)
        replaced = getattr(output, "block_table_updates", None)
        if replaced:  # vLLM 0.31 replaces whole rows for some hybrid models
            for rid, block_ids in replaced.items():
                self._adopt(rid, block_ids)
        self._steps += 1
        if self._later and self._steps % RETRY_STEPS == 0:
            self._due.update(self._later)
            self._later.clear()
        if self._due:
            self._offer_due(session)
        if self._begun:
            self._due.update(dict.fromkeys(self._begun))
            self._begun.clear()

    def _adopt(self, rid: str, block_ids: Sequence[Sequence[int]]) -> None:
        tracked = self._tracked.get(rid)
        if tracked is not None:
            tracked.adopt(block_ids)
            if tracked.owes():
                self._begun.append(rid)

    def _extend(self, cached: Any, index: int, block_ids: Sequence[Sequence[int]]) -> None:
        rid = cached.req_ids[index]
        if rid in cached.resumed_req_ids:
            self._adopt(rid, block_ids)
            return
        tracked = self._tracked.get(rid)
        if tracked is not None:
            for ids, more in zip(tracked.groups, block_ids):
                ids.extend(more)
            if tracked.owes():
                self._due[rid] = None

    def _offer_due(self, session: SchedulerSession) -> None:
        offers = decoded = 0
        for rid in list(islice(self._due, VISITS_PER_STEP)):
            del self._due[rid]
            tracked = self._tracked.get(rid)
            if tracked is None or tracked.generation != tracked.request.num_preemptions:
                continue
            # Asynchronous scheduling counts tokens that have not come back yet.
            unsure = getattr(tracked.request, "num_output_placeholders", 0)
            full = self._full(tracked, unsure, tracked.groups)
            if full > tracked.offered and (
                tracked.offered < tracked.prompt or full - tracked.offered >= DECODED_BLOCKS
            ):
                offers += 1
                decoded += tracked.offered >= tracked.prompt
                if not self._offer(session, tracked, full, tracked.groups):
                    self._later[rid] = None
                    continue
            if tracked.owes():
                self._due[rid] = None  # its next turn is behind the others'
            if offers == OFFERS_PER_STEP or decoded == DECODED_OFFERS_PER_STEP:
                return

    def last(
        self, session: SchedulerSession, tracked: Tracked, groups: Sequence[Sequence[int]]
    ) -> None:
        """The request ends: offers all that it has, whatever was offered before.

        Nothing when it was not scheduled since it was preempted, or since its load began: then
        its blocks hold nothing that is known to be right.
        """
        request = tracked.request
        if tracked.generation != request.num_preemptions:
            return
        unsure = max(
            getattr(request, "num_output_placeholders", 0),
            getattr(request, "num_in_flight_tokens", 0),
        )
        full = self._full(tracked, unsure, groups)
        if full > 0:
            self._offer(session, tracked, full, groups)

    def _full(self, tracked: Tracked, unsure: int, groups: Sequence[Sequence[int]]) -> int:
        """Full blocks of confirmed tokens that earlier steps have computed."""
        request = tracked.request
        # Rejected drafts may have been computed beyond the tokens that there really are.
        tokens = min(request.num_computed_tokens - unsure, request.num_tokens)
        return min(tokens // self._tokens, *map(len, groups)) if groups else 0

    def _offer(
        self,
        session: SchedulerSession,
        tracked: Tracked,
        full: int,
        groups: Sequence[Sequence[int]],
    ) -> bool:
        """False when stores hold as many blocks as they may: worth another try later."""
        rid, generation = tracked.request.request_id, tracked.generation
        try:
            if tracked.adapter is not None and not tracked.adapter.intact():
                tracked.generation = NEVER  # computed with one does not know which weights
                return True
            room = session.computed(rid, generation, full, groups)
        except Exception as err:
            # Not this request's turn to stop the others: it offers nothing more.
            self._faults.note("computed", err)
            tracked.generation = NEVER
            room = True
        if room is not False:
            tracked.offered = full
        return room is not False
