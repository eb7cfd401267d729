"""A scheduler of a hybrid model over vLLM's stand-ins, and a session that records its calls."""

from __future__ import annotations

import unittest
from collections.abc import Mapping, Sequence
from types import SimpleNamespace as Bag
from typing import Any

from blockyard.groups import FULL, SLIDING, STATE, Group, Groups
from blockyard.settings import Settings
from tests import vllm_fakes as fakes
from tests.vllm_case import FakeSession
from tests.vllm_fakes import request, step

fakes.require_vllm()

from blockyard.vllm.hybrid import HybridScheduler  # noqa: E402

# Windows of nine tokens and full attention in blocks of four, states in blocks of eight.
GROUPS = Groups(
    [Group(SLIDING, 9, 4, 64, 1), Group(FULL, 0, 4, 64, 1), Group(STATE, 0, 8, 64, 1)]
)


class GroupFake(FakeSession):
    """A FakeSession with the calls of a GroupSession. Counts the blocks that are reserved."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = GROUPS
        self.reserved: list[int] = []
        self.may: bool | None = True

    def takes(self, rid: str, generation: int) -> bool | None:
        return self.may

    def reserve(self, ids: Sequence[int]) -> bool:
        if self.room:
            self.reserved += ids
        return self.room

    def drop(self, ids: Sequence[int]) -> None:
        self.calls.append(("drop", list(ids)))
        self._free(ids)

    def offer_group(self, rid: str, gen: int, group: int, first: int, ids: list[int]) -> bool:
        self.calls.append(("offer_group", rid, gen, group, first, ids))
        self._free(ids)
        return True

    def _free(self, ids: Sequence[int]) -> None:
        for block in ids:
            self.reserved.remove(block)


class Case(unittest.TestCase):
    groups = GROUPS

    def setUp(self) -> None:
        self.session = GroupFake()
        self.session.groups = self.groups
        self.side = HybridScheduler(Settings(), self.session)  # type: ignore[arg-type]
        self.pool = fakes.FakePool(200)
        self.side.bind(self.pool)
        self.tables: dict[str, list[list[int]]] = {}

    def tearDown(self) -> None:
        self.side.shutdown()
        self.assertEqual(self.session.reserved, [], "references are left")

    def open(self, tokens: int, **changes: Any) -> Any:
        made = request(tokens, **changes)
        self.side.on_new_request(made)
        return made

    def cache(self, group: int, *blocks: int) -> None:
        """Gives device blocks a hash of their group: vLLM keeps them."""
        for block in blocks:
            self.pool.blocks[block].block_hash = bytes(32) + group.to_bytes(4, "big")

    def step(
        self,
        req: Any,
        tokens: int,
        table: list[list[int]],
        states: Mapping[str, Any] = {},
        new: bool = False,
        more: Sequence[Sequence[int]] | None = None,
        **others: Any,
    ) -> None:
        """A step that computes `tokens` tokens. table: vLLM's blocks of the request."""
        self.tables[req.request_id] = table
        fields = {
            "num_scheduled_tokens": {req.request_id: tokens},
            "total_num_scheduled_tokens": tokens,
            "finished_req_ids": set(),
            "preempted_req_ids": None,
            "kv_connector_block_state": Bag(
                get_block_ids=self.tables.get, boundary_state_offloads=dict(states)
            ),
            **others,
        }
        output = step([(req, table)], **fields) if new else step(cached=[(req, more)], **fields)
        self.side.build_connector_meta(output)
        req.num_computed_tokens += tokens

    def ask(self, req: Any, local: int = 0) -> tuple[int | None, bool]:
        return self.side.get_num_new_matched_tokens(req, local)

    def alloc(self, req: Any, tokens: int, *table: Sequence[int]) -> None:
        self.side.update_state_after_alloc(req, Bag(get_block_ids=lambda: table), tokens)

    def offers(self) -> list[tuple]:
        return [call[1:] for call in self.session.take("offer_group")]
