"""Offers of a hybrid model's blocks: full groups as ever, windows and states while vLLM has them.

vLLM keeps few blocks of a sparse group: those from which a later request can resume. It frees the
others within steps. So the step that computes such a block references the block, and the next step
offers it. vLLM's choice is the hash of a block: vLLM hashes only the blocks that it keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from blockyard.groups import CHUNKED, FULL, SLIDING, STATE, Groups
from blockyard.vllm.guard import Faults
from blockyard.vllm.identity import Adapter
from blockyard.vllm.offers import NEVER, NULL_BLOCK, Offers, Tracked

if TYPE_CHECKING:
    from blockyard.groupsession import GroupSession

# Size of an offer of decoded blocks, in tokens. The end of the request offers the rest.
DECODED_TOKENS = 512


class GroupTracked(Tracked):
    """A request of a hybrid model. Its blocks count in units of the groups' alignment.

    stored: of each group, the leading blocks that were offered or are not kept. kept: of each
    window, the consecutive blocks that were held or loaded last. loaded_in: the generation of
    `loaded`.
    """

    __slots__ = ("kept", "kv_groups", "loaded_in", "stored")

    def __init__(self, request: Any, kv_groups: Groups, adapter: Adapter | None = None) -> None:
        super().__init__(request, request.num_prompt_tokens // kv_groups.align, adapter)
        self.main = kv_groups.primary
        self.kv_groups = kv_groups
        self.stored = [0] * len(kv_groups)
        self.kept = [range(0)] * len(kv_groups)
        self.loaded_in = NEVER

    def adopt(self, block_ids: Sequence[Sequence[int]]) -> None:
        super().adopt(block_ids)
        if self.loaded_in != self.generation:
            self.loaded = 0
        self.count_offered(self.loaded // self.kv_groups.align)
        self.stored = [self.loaded // group.block_size for group in self.kv_groups]
        self.kept = [range(blocks) for blocks in self.stored]

    def _next_due(self) -> int:
        tokens = (self.offered + 1) * self.kv_groups.align + DECODED_TOKENS
        return -(-tokens // self.kv_groups[self.main].block_size)


class Held(NamedTuple):
    """Referenced blocks of a sparse group, which the next step offers."""

    rid: str
    generation: int
    group: int
    first: int
    ids: list[int]


class GroupOffers(Offers):
    """The block tables of all tracked requests of a hybrid model, and their pending offers."""

    def __init__(self, tracked: Mapping[str, Tracked], groups: Groups, faults: Faults) -> None:
        super().__init__(tracked, groups.align, faults)
        self._groups = groups
        # Windows, and chunks, of which vLLM keeps every block until the chunk ends.
        self._windows = [n for n, group in enumerate(groups) if group.kind in (SLIDING, CHUNKED)]
        self._full_groups = [n for n, group in enumerate(groups) if group.kind == FULL]
        self._decoded = max(1, DECODED_TOKENS // groups.align)
        self._pool: Any = None
        self._held: list[Held] = []
        self._touched: dict[str, None] = {}  # requests with new blocks in this step

    def bind(self, pool: Any) -> None:
        self._pool = pool

    def yield_blocks(self, session: Any) -> None:
        """Drops the references of held blocks too. They are counted and never stored."""
        self.abandon(session)
        session.yield_blocks()

    def abandon(self, session: Any) -> None:
        held, self._held = self._held, []
        for item in held:
            session.drop(item.ids)

    def forget(self, rid: str) -> None:
        super().forget(rid)
        # Another request may get the id. The next step drops the references.
        self._held = [item._replace(rid="") if item.rid == rid else item for item in self._held]

    def follow(self, session: Any, output: Any) -> bool:
        """Offers what the last step has computed, and references what this step computes."""
        held, self._held = self._held, []
        for item in held:
            self._offer_held(session, item)
        try:
            offered = super().follow(session, output)
            state = getattr(output, "kv_connector_block_state", None)
            if state is not None and self._pool is not None:
                scheduled = output.num_scheduled_tokens
                for rid in self._touched:
                    self._hold_windows(session, rid, scheduled.get(rid, 0), state)
                if state.boundary_state_offloads:
                    self._hold_states(session, output, state.boundary_state_offloads)
            return offered
        finally:
            self._touched.clear()

    def _offer_held(self, session: GroupSession, item: Held) -> None:
        tracked = self._tracked.get(item.rid)
        if tracked is None or tracked.generation == NEVER or not _intact(tracked):
            session.drop(item.ids)
            return
        # A full tier of the agent keeps no window or state without its prefix.
        unsure = getattr(tracked.request, "num_output_placeholders", 0)
        full = self._full(tracked, unsure, tracked.groups)
        if full > tracked.offered:
            self._offer(session, tracked, full, tracked.groups)
        session.offer_group(*item)

    def last(self, session: Any, tracked: Tracked, groups: Sequence[Sequence[int]]) -> None:
        """Offers all full blocks of a request that ends, and the windows that it still has.

        A window at the end of the answer serves the next turn of a conversation.
        """
        rid = tracked.request.request_id
        mine = [item for item in self._held if item.rid == rid]
        self._held = [item for item in self._held if item.rid != rid]
        computed = tracked.request.num_computed_tokens - self._unsure(tracked)
        for item in mine:
            end = (item.first + len(item.ids)) * self._groups[item.group].block_size
            if end > computed:
                session.drop(item.ids)  # aborted in the step that computes them
            else:
                self._offer_held(session, item)
        super().last(session, tracked, groups)
        if tracked.generation != tracked.request.num_preemptions:
            return
        end = self._full(tracked, self._unsure(tracked), groups) * self._groups.align
        end = self._groups.longest(end, end)
        for number in self._windows if end else ():
            needs = self._groups[number].matches(end)
            ids = list(groups[number][needs.start : needs.stop])
            whole = len(ids) == len(needs) and NULL_BLOCK not in ids
            kept = tracked.kept[number]  # type: ignore[attr-defined]
            known = kept.start <= needs.start and kept.stop == needs.stop
            if ids and whole and not known and session.reserve(ids):
                self._offer_held(session, Held(rid, tracked.generation, number, needs.start, ids))

    # Sparse groups.

    def _adopt(self, rid: str, block_ids: Sequence[Sequence[int]]) -> None:
        super()._adopt(rid, block_ids)
        self._touched[rid] = None

    def _extend(self, cached: Any, new_blocks: Iterable[tuple[str, Any]]) -> None:
        new_blocks = list(new_blocks)
        super()._extend(cached, new_blocks)
        self._touched.update(dict.fromkeys(rid for rid, _ in new_blocks))

    def _hold_windows(self, session: GroupSession, rid: str, scheduled: int, state: Any) -> None:
        """References the window blocks that vLLM keeps and that this step completes."""
        tracked = self._tracked.get(rid)
        if tracked is None or tracked.generation != tracked.request.num_preemptions:
            return
        assert isinstance(tracked, GroupTracked)
        request = tracked.request
        tokens = min(request.num_computed_tokens + scheduled, request.num_tokens)
        tokens -= tokens % self._groups.align
        table: Any = None
        for number in self._windows:
            size = self._groups[number].block_size
            first, end = tracked.stored[number], tokens // size
            kept = self._kept(number, tracked.groups[number][:end], first)
            tracked.stored[number] = max(first, end)
            if not kept:
                continue
            if table is None:
                table = state.get_block_ids(rid)  # what the request has now, unlike the table
            for at, ids in _runs(kept):
                if list(table[number][at : at + len(ids)]) == ids:
                    if self._hold(session, Held(rid, tracked.generation, number, at, ids)):
                        last = tracked.kept[number]
                        begin = last.start if last.stop == at else at
                        tracked.kept[number] = range(begin, at + len(ids))

    def _kept(self, number: int, ids: Sequence[int], first: int) -> list[tuple[int, int]]:
        """Index and id of the blocks from `first` on that vLLM keeps in its prefix cache."""
        suffix = number.to_bytes(4, "big")  # the group, in the pool's key of a block
        found = []
        for at in range(first, len(ids)):
            if ids[at] != NULL_BLOCK:
                key = self._pool.blocks[ids[at]].block_hash
                if key is not None and key[-4:] == suffix:
                    found.append((at, ids[at]))
        return found

    def _hold_states(
        self, session: GroupSession, output: Any, offloads: Mapping[str, Sequence[Any]]
    ) -> None:
        """References the states that vLLM offers in this step. No table names them."""
        gone = {*output.finished_req_ids, *(output.preempted_req_ids or ())}
        for rid, entries in offloads.items():
            tracked = self._tracked.get(rid)
            alive = tracked is not None and rid not in gone
            if tracked is None or tracked.generation == NEVER:
                continue
            for number, block, boundary in entries:
                group = self._groups[number]
                if group.kind != STATE or boundary % group.block_size:
                    continue  # a state within a block serves no prefix of ours
                if boundary <= tracked.loaded or boundary > tracked.request.num_tokens:
                    continue
                at = boundary // group.block_size - 1
                if not alive or not self._kept(number, [block], 0):
                    session.lost(1)
                else:
                    self._hold(session, Held(rid, tracked.generation, number, at, [block]))

    def _hold(self, session: GroupSession, item: Held) -> bool:
        """References blocks until the next step offers them. False: they are not referenced."""
        if not session.takes(item.rid, item.generation):
            return False
        if not session.reserve(item.ids):
            session.lost(len(item.ids))
            return False
        self._held.append(item)
        return True

    # Groups of full attention.

    def _full(self, tracked: Tracked, unsure: int, groups: Sequence[Sequence[int]]) -> int:
        """Full units of confirmed tokens that earlier steps have computed."""
        request = tracked.request
        tokens = min(request.num_computed_tokens - unsure, request.num_tokens)
        for number in self._full_groups if groups else ():
            tokens = min(tokens, len(groups[number]) * self._groups[number].block_size)
        return max(0, tokens) // self._groups.align if groups else 0

    def _store(
        self, session: Any, tracked: Tracked, full: int, groups: Sequence[Sequence[int]]
    ) -> bool:
        assert isinstance(tracked, GroupTracked)
        rid, generation = tracked.request.request_id, tracked.generation
        end = full * self._groups.align
        for number in self._full_groups:
            first, stop = tracked.stored[number], end // self._groups[number].block_size
            if first >= stop:
                continue
            takes = session.takes(rid, generation)
            if not takes:
                return takes is None
            ids = list(groups[number][first:stop])
            if NULL_BLOCK in ids:
                raise ValueError(f"request {rid}: a null block in group {number} of full attention")
            if not session.reserve(ids):
                return False
            if not session.offer_group(rid, generation, number, first, ids):
                return False
            tracked.stored[number] = stop
        return True


def _intact(tracked: Tracked) -> bool:
    return tracked.adapter is None or tracked.adapter.intact()


def _runs(blocks: Iterable[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    """First index and ids of each run of consecutive indexes."""
    runs: list[tuple[int, list[int]]] = []
    for at, block in blocks:
        if runs and at == runs[-1][0] + len(runs[-1][1]):
            runs[-1][1].append(block)
        else:
            runs.append((at, [block]))
    return runs
