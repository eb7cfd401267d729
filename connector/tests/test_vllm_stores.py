"""The scheduler role: offers of blocks, and references on device blocks."""

from __future__ import annotations

import time
import unittest
from typing import Any
from unittest import mock

from blockyard.request import Hit
from tests import vllm_fakes as fakes
from tests.effort import instructions
from tests.vllm_case import TOKENS, Case
from tests.vllm_fakes import step

from blockyard.vllm import blocks as blocks_module  # isort: skip
from blockyard.vllm.blocks import PoolBlocks, PoolView  # isort: skip
from blockyard.vllm.offers import DECODED_BLOCKS, VISITS_PER_STEP  # isort: skip


class Storing(Case):
    def computed(self) -> list[tuple]:
        return [call[2:] for call in self.session.take("computed")]

    def test_chunked_prefill_is_offered_one_step_behind(self) -> None:
        req = self.open(10)
        self.side.build_connector_meta(step([(req, [[1, 2]])]))
        self.assertEqual(self.computed(), [], "nothing of this step is computed yet")
        self.advance(req, 8)
        self.side.build_connector_meta(step(cached=[(req, [[3]])]))
        self.assertEqual(self.computed(), [(2, [[1, 2]])])
        self.advance(req, 2)

    def decode(self, req: Any, steps: int, first_block: int) -> list[int]:
        """Runs one request. Returns the number of leading blocks of each offer."""
        offers = []
        for number in range(steps):
            req.all_token_ids.append(number)
            new = [[first_block + number]] if req.num_computed_tokens % TOKENS == 0 else None
            self.side.build_connector_meta(step(cached=[(req, new)]))
            offers += [blocks for blocks, _ in self.computed()]
            self.advance(req, 1)
        return offers

    def test_the_prompt_is_offered_at_once_and_decoded_blocks_several_at_a_time(self) -> None:
        req = self.open(7)
        self.side.build_connector_meta(step([(req, [[1, 2]])]))
        self.advance(req, 7)
        offers = self.decode(req, (2 * DECODED_BLOCKS + 4) * TOKENS, 3)
        self.assertEqual(offers, [1, 1 + DECODED_BLOCKS, 1 + 2 * DECODED_BLOCKS])

    def test_requests_in_step_with_one_another_do_not_all_offer_in_one_step(self) -> None:
        running = [self.open(8) for _ in range(5)]
        self.side.build_connector_meta(step([(r, [[1, 2, 3]]) for r in running]))
        for req in running:
            self.advance(req, 8)
        offers = []
        for _ in range(4):
            self.side.build_connector_meta(step(cached=[(r, None) for r in running]))
            offers.append(len(self.computed()))
        self.assertEqual(offers, [2, 2, 1, 0])

    def test_a_step_that_takes_an_answer_makes_no_offer_but_the_next_one_does(self) -> None:
        running = [self.open(8) for _ in range(5)]
        self.side.build_connector_meta(step([(r, [[1, 2, 3]]) for r in running]))
        for req in running:
            self.advance(req, 8)
        self.session.granted = 1
        offers = []
        for _ in range(6):
            self.side.build_connector_meta(step(cached=[(r, None) for r in running]))
            offers.append(len(self.computed()))
        self.assertEqual(offers, [0, 2, 0, 2, 0, 1])

    def test_answers_in_steps_without_a_due_offer_do_not_count(self) -> None:
        self.session.granted = 1
        for idle in range(1, 4):
            req = self.open(8)
            for _ in range(idle):
                self.side.build_connector_meta(step())
            self.side.build_connector_meta(step([(req, [[1, 2, 3]])]))
            self.advance(req, 8)
            offers = []
            for _ in range(2):
                self.side.build_connector_meta(step(cached=[(req, None)]))
                offers.append(len(self.computed()))
            self.assertEqual(offers, [0, 1])

    def test_a_step_looks_at_a_bounded_number_of_requests_and_at_all_in_turn(self) -> None:
        many = 3 * VISITS_PER_STEP
        running = [self.open(8) for _ in range(many)]
        self.side.build_connector_meta(step([(r, [[1, 2]]) for r in running]))
        looked: list[str] = []
        full = self.side._offers._full
        self.side._offers._full = lambda t, *a: looked.append(t.request.request_id) or full(t, *a)
        for n in range(1, 4):
            self.side.build_connector_meta(step())
            self.assertEqual(len(looked), n * VISITS_PER_STEP)
        self.assertEqual(len(set(looked)), many, "nothing is computed yet: each was looked at once")
        self.advance(running[-1], 8)
        for _ in range(3):
            self.side.build_connector_meta(step())
        self.assertEqual(self.computed(), [(2, [[1, 2]])])

    def test_a_fault_in_a_step_stops_offers_from_tables_that_missed_it(self) -> None:
        """vLLM names a new block only once. After the fault, tables would have wrong indexes, and a
        block's key would get another block's bytes."""
        req, broken = self.open(4 * TOKENS), self.open(8)
        self.side.build_connector_meta(step(new=[(req, [[1]])]))
        self.advance(req, TOKENS)
        output = step(new=[(broken, [[7]])], cached=[(req, [[2]])])
        output.scheduled_new_reqs[0].block_ids = None
        with self.assertLogs("blockyard.vllm", "ERROR"):
            self.side.build_connector_meta(output)
        for block in (3, 4):
            self.advance(req, TOKENS)
            self.side.build_connector_meta(step(cached=[(req, [[block]])]))
        self.side.request_finished(req, [[1, 2, 3, 4]])
        self.assertEqual(self.computed(), [])

    def test_after_a_fault_a_complete_list_is_trusted_again(self) -> None:
        req = self.open(8)
        self.side.build_connector_meta(step(new=[(req, [[1, 2]])]))
        with self.assertLogs("blockyard.vllm", "ERROR"):
            self.side.build_connector_meta(None)
        req.num_preemptions, req.num_computed_tokens = 1, 0
        self.side.build_connector_meta(step(cached=[(req, [[7, 8, 9]])], resumed=[req]))
        self.advance(req, 8)
        self.side.build_connector_meta(step(cached=[(req, None)]))
        self.assertEqual(self.computed(), [(2, [[7, 8]])])

    def test_tokens_that_are_not_confirmed_are_not_offered(self) -> None:
        req = self.open(8)
        self.side.build_connector_meta(step([(req, [[1, 2]])]))
        self.advance(req, 8)
        req.num_output_placeholders = 1  # asynchronous scheduling: the token is not sampled yet
        self.side.build_connector_meta(step(cached=[(req, [[3]])]))
        self.assertEqual(self.computed(), [(1, [[1]])])
        self.advance(req, 1)
        req.all_token_ids.append(99)
        self.side.build_connector_meta(step(cached=[(req, None)]))
        self.assertEqual(self.computed(), [(2, [[1, 2]])], "without another new block")

    def test_the_block_of_the_last_sampled_token_is_full_but_not_computed(self) -> None:
        req = self.open(6)
        self.side.build_connector_meta(step([(req, [[1, 2]])]))
        self.advance(req, 6)
        req.all_token_ids.append(1)
        self.advance(req, 1)
        req.all_token_ids.append(2)  # the eighth token: no step computes it any more
        self.side.request_finished(req, [[1, 2]])
        self.assertEqual(self.computed(), [(1, [[1]])])

    def test_a_null_block_ends_the_offers_of_its_request(self) -> None:
        self.make(groups=2)
        good, bad = self.open(8), self.open(8)
        first = step([(good, [[1, 2], [3, 4]]), (bad, [[5, 6], [7, 0]])])
        self.side.build_connector_meta(first)
        for req in (good, bad):
            self.advance(req, 8)
        with self.assertLogs("blockyard.vllm", "ERROR") as caught:
            self.side.build_connector_meta(step())
            self.side.request_finished(bad, [[5, 6], [0, 8]])
        self.assertEqual(self.computed(), [(2, [[1, 2], [3, 4]])])
        self.assertIn("null block", caught.output[0])

    def test_rejected_drafts_are_never_beyond_real_tokens(self) -> None:
        req = self.open(4)
        self.side.build_connector_meta(step([(req, [[1, 2, 3]])]))
        self.advance(req, 9)  # the engine has computed drafts too
        self.side.build_connector_meta(step(cached=[(req, None)]))
        self.assertEqual(self.computed(), [(1, [[1]])])

    def test_a_preempted_request_offers_only_blocks_of_its_new_list(self) -> None:
        req = self.open(8)
        self.side.build_connector_meta(step([(req, [[1, 2, 3]])]))
        req.num_preemptions, req.num_computed_tokens = 1, 0
        self.side.build_connector_meta(step())
        # During a load of the whole prompt, vLLM counts the prompt as computed.
        req.num_computed_tokens = 8
        self.side.build_connector_meta(step())
        self.assertEqual(self.computed(), [])
        self.side.build_connector_meta(step(cached=[(req, [[7, 8, 9]])], resumed=[req]))
        self.side.build_connector_meta(step(cached=[(req, None)]))
        ((rid, generation, blocks, ids),) = self.session.take("computed")
        self.assertEqual((generation, blocks, ids), (1, 2, [[7, 8]]))

    def test_the_rest_is_offered_at_the_end_and_nothing_is_delayed(self) -> None:
        req = self.open(6)
        self.side.build_connector_meta(step([(req, [[1, 2]])]))
        self.advance(req, 6)
        for _ in range(4):
            req.all_token_ids.append(1)
            self.advance(req, 1)
        req.num_in_flight_tokens = 2  # an abort during a step
        self.assertIsNone(self.side.request_finished(req, [[1, 2, 3]]))
        self.assertEqual(self.computed(), [(2, [[1, 2]])])
        self.assertEqual(self.session.take("finished"), [(req.request_id,)])

    def test_aborted_while_loading_offers_nothing(self) -> None:
        req = self.open(8)
        self.session.answer = Hit(2, b"\1\1")
        self.side.get_num_new_matched_tokens(req, 0)
        self.alloc(req, 8, [1, 2])
        req.num_computed_tokens = 8  # vLLM counts the load as computed
        self.side.request_finished(req, [[1, 2]])
        self.assertEqual(self.computed(), [])
        self.assertEqual(self.session.take("finished"), [(req.request_id,)])

    def test_blocks_for_which_there_was_no_room_are_offered_again_some_steps_later(self) -> None:
        req = self.open(8)
        self.side.build_connector_meta(step([(req, [[1, 2]])]))
        self.advance(req, 8)
        self.session.room = False
        for _ in range(40):
            self.side.build_connector_meta(step(cached=[(req, None)]))
        self.assertIn(len(self.session.take("computed")), (2, 3, 4))
        self.session.room = True
        for _ in range(40):
            self.side.build_connector_meta(step(cached=[(req, None)]))
        self.assertEqual(len(self.session.take("computed")), 1)

    def test_a_request_that_cannot_be_offered_does_not_stop_the_others(self) -> None:
        bad, good = self.open(8), self.open(8)
        computed = self.session.computed

        def broken(rid: str, *rest: Any) -> bool:
            if rid == bad.request_id:
                raise RuntimeError("this one is broken")
            return computed(rid, *rest)

        self.session.computed = broken  # type: ignore[method-assign]
        self.side.build_connector_meta(step([(bad, [[1, 2]]), (good, [[3, 4]])]))
        self.advance(bad, 8)
        self.advance(good, 8)
        with self.assertLogs("blockyard.vllm", "ERROR"):
            for _ in range(3):
                self.side.build_connector_meta(step(cached=[(bad, None), (good, None)]))
        self.assertEqual(self.computed(), [(2, [[3, 4]])])
        self.assertEqual(self.side.faults.counts.total(), 1)

    def test_several_groups(self) -> None:
        self.make(groups=2)
        req = self.open(8)
        self.side.build_connector_meta(step([(req, [[1, 2], [5, 6]])]))
        self.advance(req, 8)
        self.side.build_connector_meta(step(cached=[(req, [[3], [7]])]))
        self.assertEqual(self.computed(), [(2, [[1, 2], [5, 6]])])

    def test_rows_that_vllm_replaces(self) -> None:
        req = self.open(8)
        self.side.build_connector_meta(step([(req, [[1, 2]])]))
        self.advance(req, 8)
        output = step()
        output.block_table_updates = {req.request_id: [[5, 6, 7]]}
        self.side.build_connector_meta(output)
        self.assertEqual(self.computed(), [(2, [[5, 6]])])

    def test_a_step_of_256_running_requests_costs_little(self) -> None:
        running = [self.open(8) for _ in range(256)]
        self.side.build_connector_meta(step([(r, [[1, 2, 3]]) for r in running]))
        for req in running:
            self.advance(req, 9)
        output = step(cached=[(req, None) for req in running])
        for _ in range(300):  # two requests in a step offer their prompts
            self.side.build_connector_meta(output)
        self.assertLess(instructions(lambda: self.side.build_connector_meta(output)), 250)

    def test_a_step_in_which_256_requests_get_a_block_costs_little_for_each(self) -> None:
        running = [self.open(4) for _ in range(256)]
        self.side.build_connector_meta(step([(r, [[1, 2]]) for r in running]))
        for req in running:
            self.advance(req, 5)
        for _ in range(300):  # all prompts are offered
            self.side.build_connector_meta(step(cached=[(req, None) for req in running]))
        self.computed()
        output = step(cached=[(req, [[3]]) for req in running])
        cost = instructions(lambda: self.side.build_connector_meta(output))
        self.assertLess(cost, 250 + 256 * 60)
        self.assertEqual(self.computed(), [])


class Pool(unittest.TestCase):
    def setUp(self) -> None:
        self.pool = fakes.FakePool()
        self.blocks = PoolBlocks(self.pool)

    def test_references_balance_and_are_given_back_tail_first(self) -> None:
        self.blocks.hold([3, 4, 5])
        self.blocks.hold([4])
        self.assertEqual(self.blocks.free_count(), 60)
        self.blocks.release([3, 4, 5])
        self.assertEqual(self.pool.freed, [5, 3])
        self.blocks.release([4])
        self.assertEqual(self.pool.freed, [5, 3, 4])
        with self.assertRaises(ValueError):
            self.blocks.release([4])
        self.assertEqual(self.blocks.free_count(), 63)

    def test_a_block_may_be_held_twice_by_one_call(self) -> None:
        self.blocks.hold([3, 4, 4])
        self.blocks.hold([3])
        self.blocks.release([3, 4, 4])
        self.assertEqual(self.pool.freed, [4])
        self.blocks.release([3])
        self.assertEqual(self.pool.freed, [4, 3])

    def test_blocks_with_one_reference_are_released_without_a_loop(self) -> None:
        costs = []
        for count in (16, 48):
            ids = list(range(1, count + 1))
            self.pool.free_blocks = lambda blocks: None
            self.blocks.hold(ids)
            costs.append(instructions(lambda: self.blocks.release(ids)))
        self.assertEqual(costs[0], costs[1])

    def test_vllm_can_empty_its_pool_when_only_stores_are_in_the_way(self) -> None:
        emptied: list[int] = []
        self.pool.reset_prefix_cache = lambda: emptied.append(self.blocks.free_count()) or True
        let_go = mock.Mock(side_effect=lambda: self.blocks.release([3, 4]))
        self.blocks.before_reset(let_go)
        self.assertTrue(self.pool.reset_prefix_cache())
        let_go.assert_not_called()
        self.blocks.hold([3, 4])
        self.pool.touch([self.pool.blocks[5]])
        self.pool.reset_prefix_cache()
        self.pool.free_blocks([self.pool.blocks[5]])
        self.pool.touch([self.pool.blocks[3]])
        self.pool.reset_prefix_cache()
        let_go.assert_not_called()  # a request has blocks too
        self.pool.free_blocks([self.pool.blocks[3]])
        self.assertTrue(self.pool.reset_prefix_cache())
        let_go.assert_called_once_with()
        self.assertEqual(emptied, [63, 60, 61, 63])

    def test_vllm_waits_only_for_blocks_that_nobody_else_uses_and_not_for_long(self) -> None:
        self.assertFalse(self.blocks.frees_soon())
        self.pool.touch([self.pool.blocks[3]])
        self.blocks.hold([3])
        self.assertFalse(self.blocks.frees_soon(), "a request uses it as well")
        self.pool.free_blocks([self.pool.blocks[3]])
        self.assertTrue(self.blocks.frees_soon())
        late = time.monotonic() + 1
        with mock.patch.object(blocks_module.time, "monotonic", return_value=late):
            self.assertFalse(self.blocks.frees_soon())
        self.blocks.release([3])
        self.assertFalse(self.blocks.frees_soon())

    def test_other_threads_see_what_the_cache_has_as_events_name_it(self) -> None:
        """The hash is the number in the last eight bytes of the digest, for the first group."""
        view = PoolView(self.pool)
        self.assertEqual((len(view), view.total(), view.used()), (64, 63, 0))
        self.pool.touch([self.pool.blocks[7]])
        self.assertEqual(view.used(), 1)
        digest = bytes(range(32))
        for number, key in ((3, digest + bytes(4)), (5, digest + b"\0\0\0\1"), (63, bytes(36))):
            self.pool.blocks[number].block_hash = key
        first = int.from_bytes(digest, "big") & (2**64 - 1)
        self.assertEqual(view.cached_hashes(0, 32), first.to_bytes(8, "little"))
        self.assertEqual(view.cached_hashes(32, 32), bytes(8))
        self.assertEqual(view.cached_hashes(4, 32), b"")
        self.pool.blocks[9].block_hash = (digest, 0)  # another release with other keys
        with self.assertRaisesRegex(TypeError, "tuple"):
            view.cached_hashes(0, 32)


if __name__ == "__main__":
    unittest.main()
