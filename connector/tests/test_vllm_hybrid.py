"""The scheduler role of a hybrid model: hits, loads by group, and stores of windows and states."""

from __future__ import annotations

import unittest
from types import SimpleNamespace as Bag
from typing import Any

from blockyard.groups import CHUNKED, FULL, SLIDING, Group, Groups
from blockyard.request import Hit
from tests.hybrid_case import Case
from tests.vllm_fakes import request, step

# Windows of nine tokens, whose blocks may come from two steps.
WINDOWS = Groups([Group(SLIDING, 9, 4, 64, 1), Group(FULL, 0, 4, 64, 1)])

# Chunks of eight tokens and full attention in blocks of four.
CHUNKS = Groups([Group(CHUNKED, 8, 4, 64, 1), Group(FULL, 0, 4, 64, 1)])


class Loading(Case):
    def test_a_hit_is_used_whole_or_not_at_all(self) -> None:
        req = self.open(20)
        self.session.answer = Hit(4, b"\1\1\2\2")  # pages of four tokens
        self.assertEqual(self.ask(req), (16, True))
        self.session.answer = Hit(5, b"\1" * 5)
        self.assertEqual(self.ask(req), (0, False), "the last token has to be computed")
        self.session.answer = Hit(2, b"\1\1")
        self.assertEqual(self.ask(req, 8), (8, True))
        self.assertEqual(self.ask(req, 4), (0, False), "no group of states ends there")
        self.assertEqual(self.ask(req, 6), (0, False))

    def test_null_blocks_are_skipped_and_every_other_block_is_loaded(self) -> None:
        req = self.open(30)
        self.session.answer = Hit(6, b"\1" * 6)
        self.assertEqual(self.ask(req), (24, True))
        self.assertEqual(self.side.loaded_group_ids(req), (0, 1, 2))
        self.alloc(req, 24, [0, 0, 0, 0, 5, 6], [11, 12, 13, 14, 15, 16], [0, 0, 7])
        ((rid, generation, targets),) = self.session.take("load_groups")
        self.assertEqual(
            targets, [(0, 4, [5, 6]), (1, 0, [11, 12, 13, 14, 15, 16]), (2, 2, [7])]
        )
        self.assertEqual(self.side.loaded_group_ids(req), ())

    def test_blocks_of_vllms_own_hit_are_never_written(self) -> None:
        req = self.open(30)
        self.session.answer = Hit(2, b"\1" * 2)
        self.assertEqual(self.ask(req, 16), (8, True))
        # Block 3 of the window is vLLM's own, and other requests may share it.
        self.alloc(req, 8, [0, 0, 0, 4, 5, 6], [11, 12, 13, 14, 15, 16], [0, 3, 7])
        ((_, _, targets),) = self.session.take("load_groups")
        self.assertEqual(targets, [(0, 4, [5, 6]), (1, 4, [15, 16]), (2, 2, [7])])

    def test_what_does_not_fit_fails_the_load(self) -> None:
        for table in (
            ([0, 0, 0, 0, 5, 0], [11, 12, 13, 14, 15, 16], [0, 0, 7]),
            ([0, 0, 0, 0, 5], [11, 12, 13, 14, 15, 16], [0, 0, 7]),
            ([0, 0, 0, 0, 5, 6], [11, 12, 13, 14, 15, 16]),
            ([0, 0, 0, 0, 5, 6], [11, 0, 13, 0, 15, 16], [0, 0, 7]),
        ):
            req = self.open(30)
            self.session.answer = Hit(6, b"\1" * 6)
            self.ask(req)
            with self.subTest(table), self.assertLogs("blockyard.vllm", "ERROR"):
                self.alloc(req, 24, *table)
                self.side.faults.counts.clear()
                self.side.faults.__init__()  # type: ignore[misc]
            self.assertEqual(self.session.take("load_groups"), [])
            self.assertEqual(len(self.session.take("fail_load")), 1)

    def test_loaded_blocks_are_not_offered_again(self) -> None:
        req = self.open(34)
        self.session.answer = Hit(6, b"\1" * 6)
        self.ask(req)
        table = [[0, 0, 0, 0, 5, 6], [11, 12, 13, 14, 15, 16], [0, 0, 7]]
        self.alloc(req, 24, *table)
        self.cache(0, 5, 6)
        self.cache(2, 7)
        req.num_computed_tokens = 24
        states = {req.request_id: [(2, 7, 24)]}
        more = [[*table[0], 8, 9, 10], [*table[1], 17, 18, 19], [0, 0, 7, 8]]
        self.step(req, 10, more, states, new=True)
        self.step(req, 1, more)
        self.assertEqual(self.offers(), [(0, 1, 6, [17, 18])])
        req.num_preemptions, req.num_computed_tokens = 1, 0
        self.step(req, 34, [[], list(range(31, 40)), [0] * 5], new=True)
        self.step(req, 1, [[], list(range(31, 40)), [0] * 5])
        self.assertEqual(self.offers(), [(1, 1, 0, list(range(31, 39)))], "another generation")


class Storing(Case):
    def test_what_vllm_keeps_of_a_window_is_held_at_once_and_offered_a_step_later(self) -> None:
        req = self.open(18)
        self.cache(0, 3, 4)
        self.step(req, 18, [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]], new=True)
        self.assertEqual(self.session.reserved, [3, 4])
        self.assertEqual(self.offers(), [], "this step computes them")
        self.step(req, 1, [[0, 0, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]])
        self.assertEqual(self.offers(), [(0, 1, 0, [11, 12, 13, 14]), (0, 0, 2, [3, 4])])

    def test_chunks_hold_each_block_in_the_step_that_completes_it(self) -> None:
        req = self.open(18)
        self.step(req, 6, [[1, 2], [11, 12], [0]], new=True)
        self.cache(0, 3, 4)
        self.step(req, 6, [[1, 2, 3], [11, 12, 13], [0, 0]], more=[[3], [13], [0]])
        full = [11, 12, 13, 14, 15]
        self.step(req, 6, [[0, 2, 3, 4, 5], full, [0] * 3], more=[[4, 5], [14, 15], [0]])
        self.step(req, 1, [[0, 0, 3, 4, 5], full, [0] * 3])
        windows = [offer for offer in self.offers() if offer[1] == 0]
        self.assertEqual(windows, [(0, 0, 2, [3, 4])])

    def test_a_block_that_the_request_has_lost_is_not_held(self) -> None:
        """Another request may have it, with a hash of the same group."""
        req = self.open(18)
        self.cache(0, 3, 4)
        self.tables[req.request_id] = []
        table = [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]]
        self.side._offers._adopt(req.request_id, table)  # type: ignore[attr-defined]
        self.step(req, 18, [[0, 0, 0, 0, 9], table[1], [0, 0, 0]])
        self.assertEqual(self.session.reserved, [])

    def test_a_hash_of_another_group_is_not_taken(self) -> None:
        req = self.open(18)
        self.cache(2, 3, 4)
        self.step(req, 18, [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]], new=True)
        self.assertEqual(self.session.reserved, [])

    def test_states_come_from_vllms_offers_alone(self) -> None:
        req = self.open(20)
        rid = req.request_id
        self.cache(2, 21, 22)
        table = [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 22, 23]]
        states = {rid: [(2, 22, 16), (2, 21, 13)], "unknown": [(2, 21, 8)]}
        self.step(req, 20, table, states, new=True)
        self.assertEqual(self.session.reserved, [22], "13 tokens end within a block")
        self.step(req, 1, table)
        self.assertIn((0, 2, 1, [22]), self.offers())

    def test_states_of_requests_that_are_gone_are_counted(self) -> None:
        req = self.open(20)
        rid = req.request_id
        self.cache(2, 22)
        table = [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 22, 23]]
        self.step(req, 20, table, {rid: [(2, 22, 16)]}, new=True, preempted_req_ids={rid})
        self.step(req, 1, table, {rid: [(2, 24, 16)]})
        self.assertEqual(self.session.take("lost"), [(1,), (1,)])
        self.assertEqual(self.session.reserved, [])

    def test_without_room_a_window_is_lost_and_counted(self) -> None:
        req = self.open(18)
        self.cache(0, 3, 4)
        self.session.room = False
        self.step(req, 18, [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]], new=True)
        self.assertEqual(self.session.take("lost"), [(2,)])
        self.session.room, self.session.may = True, None
        other = self.open(18)
        self.step(other, 18, [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]], new=True)
        self.assertEqual((self.session.take("lost"), self.session.reserved), ([], []))

    def test_a_last_window_without_room_is_offered_when_its_request_ends(self) -> None:
        req = self.open(18)
        self.cache(0, 3, 4)
        self.session.room = False
        table = [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]]
        self.step(req, 18, table, new=True)
        self.assertEqual(self.session.take("lost"), [(2,)])
        self.session.room = True
        self.side.request_finished(req, [[0, 0, 3, 4, 5], *table[1:]])
        self.assertEqual(self.offers(), [(0, 1, 0, [11, 12, 13, 14]), (0, 0, 2, [3, 4])])

    def test_a_request_that_ends_offers_what_is_held_and_the_window_of_its_end(self) -> None:
        req = self.open(18)
        self.cache(0, 3, 4)
        table = [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]]
        self.step(req, 18, table, new=True)
        for number in range(8):
            req.all_token_ids.append(number)
            more = [[6], [16], []] if number == 2 else [[7], [17], []] if number == 6 else None
            self.step(req, 1, [[0, 0, 3, 4, 5, 6, 7], [*table[1], 16, 17], [0]], more=more)
        req.num_computed_tokens -= 1  # the last token is sampled, not computed
        table = [[0, 0, 0, 4, 5, 6, 7], [*table[1], 16, 17], [0, 0, 0, 9]]
        self.side.request_finished(req, table)
        self.assertEqual(
            self.offers(),
            [
                (0, 1, 0, [11, 12, 13, 14]),
                (0, 0, 2, [3, 4]),
                (0, 1, 4, [15, 16]),
                (0, 0, 4, [5, 6]),
            ],
        )

    def test_an_abort_in_the_step_that_computes_a_window_drops_it(self) -> None:
        req = self.open(18)
        self.cache(0, 3, 4)
        table = [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]]
        self.step(req, 18, table, new=True)
        req.num_in_flight_tokens = 18
        self.side.request_finished(req, table)
        self.assertEqual((self.offers(), self.session.take("drop")), ([], [([3, 4],)]))

    def test_a_preempted_request_drops_nothing_that_is_held(self) -> None:
        req = self.open(18)
        self.cache(0, 3, 4)
        table = [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]]
        self.step(req, 18, table, new=True)
        req.num_preemptions, req.num_computed_tokens = 1, 0
        self.step(req, 0, [[], [], []])
        self.assertEqual(self.offers(), [(0, 0, 2, [3, 4])], "the session decides by generation")

    def test_vllm_gets_held_blocks_back_when_it_empties_its_pool(self) -> None:
        req = self.open(18)
        self.cache(0, 3, 4)
        self.step(req, 18, [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]], new=True)
        self.side._yield_blocks()
        self.assertEqual(self.session.take("drop"), [([3, 4],)])

    def test_another_request_of_the_same_id_gets_nothing_that_was_held(self) -> None:
        req = self.open(18)
        self.cache(0, 3, 4)
        table = [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [0, 0, 0]]
        self.step(req, 18, table, new=True)
        self.side.give_up(req)
        other = request(18, request_id=req.request_id)
        self.side.on_new_request(other)
        self.step(other, 4, [[7], [8], [0]], new=True)
        self.assertEqual((self.offers(), self.session.take("drop")), ([], [([3, 4],)]))

    def test_a_step_of_many_running_requests_costs_little(self) -> None:
        from tests.effort import instructions

        running = [self.open(8) for _ in range(256)]
        for req in running:
            self.step(req, 8, [[1, 2, 3], [11, 12, 13], [0, 4]], new=True)
        output = step(
            cached=[(req, None) for req in running],
            num_scheduled_tokens={req.request_id: 1 for req in running},
            total_num_scheduled_tokens=256,
            finished_req_ids=set(),
            preempted_req_ids=None,
            kv_connector_block_state=Bag(get_block_ids=None, boundary_state_offloads={}),
        )
        for _ in range(300):
            self.side.build_connector_meta(output)
        self.assertLess(instructions(lambda: self.side.build_connector_meta(output)), 400)


class LastWindow(Case):
    """A last window of two blocks, each completed by a step of its own."""

    groups = WINDOWS

    def offered_at_the_end(self, *room: bool) -> list[Any]:
        """Offers of windows after two steps with and without room."""
        req, full = self.open(18), [11, 12, 13, 14, 15]
        self.cache(0, 3, 4)
        self.session.room = room[0]
        self.step(req, 12, [[1, 2, 3], full[:3]], new=True)
        self.session.room = room[1]
        self.step(req, 6, [[1, 2, 3, 4, 5], full], more=[[4, 5], full[3:]])
        self.session.room = True
        self.side.request_finished(req, [[0, 0, 3, 4, 5], full])
        return [offer[-2:] for offer in self.offers() if offer[1] == 0]

    def test_a_window_that_was_held_is_not_offered_again(self) -> None:
        self.assertEqual(self.offered_at_the_end(True, True), [(2, [3]), (3, [4])])

    def test_a_window_without_room_for_one_of_its_blocks_is_offered_as_a_whole(self) -> None:
        self.assertEqual(self.offered_at_the_end(False, True), [(3, [4]), (2, [3, 4])])
        self.assertEqual(self.offered_at_the_end(True, False), [(2, [3]), (2, [3, 4])])


class Chunks(Case):
    """Layers that read the tokens since the last multiple of eight."""

    groups = CHUNKS

    def test_a_hit_is_used_whole_or_not_at_all(self) -> None:
        req = self.open(20)
        self.session.answer = Hit(4, b"\1\1\2\2")
        self.assertEqual(self.ask(req), (16, True))

    def test_null_blocks_are_skipped_and_every_other_block_is_loaded(self) -> None:
        req = self.open(30)
        self.session.answer = Hit(7, b"\1" * 7)
        self.assertEqual(self.ask(req), (28, True))
        self.assertEqual(self.side.loaded_group_ids(req), (0, 1))
        self.alloc(req, 28, [0] * 6 + [5], [11, 12, 13, 14, 15, 16, 17])
        ((_, _, targets),) = self.session.take("load_groups")
        self.assertEqual(targets, [(0, 6, [5]), (1, 0, [11, 12, 13, 14, 15, 16, 17])])

    def test_a_prefix_that_ends_where_a_chunk_begins_needs_no_block_of_it(self) -> None:
        req = self.open(30)
        self.session.answer = Hit(6, b"\1" * 6)
        self.assertEqual(self.ask(req), (24, True))
        self.assertEqual(self.side.loaded_group_ids(req), (1,), "vLLM zeroes new blocks of chunks")
        self.alloc(req, 24, [0] * 6, [11, 12, 13, 14, 15, 16])
        ((_, _, targets),) = self.session.take("load_groups")
        self.assertEqual(targets, [(1, 0, [11, 12, 13, 14, 15, 16])])

    def test_every_block_of_a_chunk_is_offered(self) -> None:
        req = self.open(18)
        self.cache(0, 1, 2, 3, 4)
        self.step(req, 18, [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15]], new=True)
        self.step(req, 1, [[0, 0, 0, 0, 5], [11, 12, 13, 14, 15]])
        offered = [offer[-3:] for offer in self.offers()]
        self.assertIn((0, 0, [1, 2, 3, 4]), offered)
        self.assertIn((1, 0, [11, 12, 13, 14]), offered)


if __name__ == "__main__":
    unittest.main()
