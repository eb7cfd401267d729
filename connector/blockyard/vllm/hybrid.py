"""The scheduler role for a hybrid model: hits that all KV groups serve, and loads by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blockyard.loads import Target
from blockyard.settings import Settings
from blockyard.vllm.group_offers import GroupOffers, GroupTracked
from blockyard.vllm.guard import guarded
from blockyard.vllm.offers import NULL_BLOCK, Offers, Tracked
from blockyard.vllm.scheduler import STEP_TOKENS, VllmScheduler

if TYPE_CHECKING:
    from blockyard.groupsession import GroupSession


class HybridScheduler(VllmScheduler):
    """The scheduler role of a model with several kinds of KV groups. Its blocks are pages."""

    session: GroupSession | None

    def __init__(
        self,
        settings: Settings,
        session: GroupSession,
        step_tokens: int = STEP_TOKENS,
        ranks: int = 1,
    ) -> None:
        self.kv_groups = session.groups
        page, number = session.groups.page, len(session.groups)
        super().__init__(settings, session, page, number, step_tokens, ranks)

    def _make_offers(self) -> Offers:
        return GroupOffers(self._tracked, self.kv_groups, self.faults)

    def _listed_group(self) -> int:
        return self.kv_groups.primary

    def _track(self, request: Any, adapter: Any) -> Tracked:
        return GroupTracked(request, self.kv_groups, adapter)

    def _usable(self, request: Any, blocks: int, local: int) -> int:
        """All of a hit or nothing: the groups serve no other length. vLLM itself has to compute
        the last token, and its own hit must end between blocks of every group."""
        end = (local + blocks) * self.tokens
        whole = local * self.tokens % self.kv_groups.align == 0 and end < request.num_tokens
        return blocks if whole else 0

    @guarded(lambda: ())
    def loaded_group_ids(self, request: Any) -> tuple[int, ...]:
        """The KV groups that the load of this request's hit fills. None without a hit.

        vLLM zeroes new blocks of all other groups.
        """
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.hit <= 0:
            return ()
        local = tracked.first * self.tokens
        end = local + tracked.hit * self.tokens
        needs = [group.needs(end) for group in self.kv_groups]
        # A chunk that begins at the end of the prefix needs no block.
        return tuple(
            number
            for number, group in enumerate(self.kv_groups)
            if max(needs[number].start, local // group.block_size) < needs[number].stop
        )

    def _load_blocks(
        self, rid: str, generation: int, first: int, count: int, table: Sequence[Sequence[int]]
    ) -> None:
        """Loads into the blocks that vLLM has allocated behind its own hit.

        A null block stands for a block outside of a window, which is not loaded.
        """
        local, end = first * self.tokens, (first + count) * self.tokens
        targets: list[Target] = []
        for number, (group, ids) in enumerate(zip(self.kv_groups, table, strict=True)):
            begin, stop = local // group.block_size, end // group.block_size
            wanted = list(ids[begin:stop])
            if len(wanted) != stop - begin:
                raise ValueError(
                    f"request {rid}: vLLM allocated {len(ids)} blocks in group {number},"
                    f" want {stop}"
                )
            skipped = 0
            while skipped < len(wanted) and wanted[skipped] == NULL_BLOCK:
                skipped += 1
            wanted = wanted[skipped:]
            if NULL_BLOCK in wanted:
                raise ValueError(f"request {rid}: a null block in the window of group {number}")
            if wanted:
                targets.append((number, begin + skipped, wanted))
        self.session.load_groups(rid, generation, targets)  # type: ignore[union-attr]
        tracked = self._tracked[rid]
        assert isinstance(tracked, GroupTracked)
        tracked.loaded, tracked.loaded_in = end, generation
