"""The scheduler role: loads within the step that computes the rest of the prompt."""

from __future__ import annotations

import pickle
import unittest
from types import SimpleNamespace as Bag
from typing import Any
from unittest import mock

from blockyard.readable import Readable
from blockyard.request import Hit
from blockyard.work import Load, Mapped, Work
from tests.vllm_case import TOKENS, Case
from tests.vllm_fakes import FakePool, full, kv_config, step, vllm_config

from blockyard.vllm import facts  # isort: skip
from blockyard.vllm.records import EMPTY, WorkerReport  # isort: skip


class Pool(FakePool):
    """A pool that records the blocks that leave its prefix cache."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: set[int] = set()

    def evict_blocks(self, block_ids: set[int]) -> None:
        self.evicted |= block_ids


class ShortCase(Case):
    def setUp(self) -> None:
        super().setUp()
        self.pool = Pool()
        self.side.short.on = True
        self.side.short.pinned = True
        self.side.bind(self.pool)
        self.side.pace.fits_step = lambda blocks, alone: True  # type: ignore[method-assign]
        self.session.answer = Hit(3, b"\1\1\1")

    def load(self, tokens: int = 20, ids: Any = (4, 5, 6, 7, 8), local: int = 0) -> Any:
        """Opens a request, and begins its load as vLLM does."""
        req = self.open(tokens)
        found, later = self.side.get_num_new_matched_tokens(req, local)
        self.assertFalse(later)
        self.alloc(req, found, list(ids))
        return req

    def end(self, *invalid: int) -> None:
        self.side.update_connector_output(Bag(invalid_block_ids=set(invalid)))


class Short(ShortCase):
    def test_a_hit_is_loaded_in_the_step_that_computes_the_rest(self) -> None:
        req = self.load()
        self.assertEqual(self.session.take("load"), [(req.request_id, 0, 0, [[4, 5, 6]])])
        self.session.work = Work([Load(1, req.request_id, b"s", b"b")])
        metadata = self.side.build_connector_meta(step(new=[(req, [[4, 5, 6, 7, 8]])]))
        metadata = pickle.loads(pickle.dumps(metadata))
        self.assertEqual(metadata.short, ((req.request_id, (4, 5, 6)),))
        self.end()
        self.assertEqual(self.pool.evicted, set())
        self.assertIs(self.side.build_connector_meta(step(cached=[(req, None)])), EMPTY)
        self.assertEqual(self.side.stats().data["short_loads"], 1)

    def test_a_step_has_a_token_to_compute(self) -> None:
        req = self.open(3 * TOKENS)
        self.assertEqual(
            self.side.get_num_new_matched_tokens(req, 0), (3 * TOKENS - 1, False)
        )
        self.alloc(req, 3 * TOKENS - 1, [4, 5, 6])
        self.assertEqual(self.session.take("load"), [(req.request_id, 0, 0, [[4, 5, 6]])])

    def test_blocks_of_a_failed_load_and_behind_it_leave_the_prefix_cache(self) -> None:
        req = self.load(ids=(2, 3, 4, 5, 6, 7), local=TOKENS)
        self.side.build_connector_meta(step(new=[(req, [[2, 3, 4, 5, 6, 7]])]))
        self.end(4)
        self.assertEqual(self.pool.evicted, {3, 4, 5, 6, 7})
        self.assertEqual(self.session.take("yield_blocks"), [()])
        self.end(4)
        self.assertEqual(self.session.take("yield_blocks"), [], "the step has ended")

    def test_blocks_of_others_that_failed_change_nothing(self) -> None:
        req = self.load()
        self.side.build_connector_meta(step(new=[(req, [[4, 5, 6, 7, 8]])]))
        self.end(7, 9)  # 7 is computed, not loaded
        self.assertEqual(self.pool.evicted, set())

    def test_a_load_that_the_session_refuses_is_named_to_the_workers(self) -> None:
        self.session.broken = "load"
        with self.assertLogs("blockyard.vllm", "ERROR"):
            req = self.load()
        self.assertEqual(self.session.take("fail_load"), [(req.request_id,)])
        metadata = self.side.build_connector_meta(step(new=[(req, [[4, 5, 6, 7, 8]])]))
        self.assertEqual(metadata.short, ((req.request_id, (4, 5, 6)),))

    def test_a_step_with_a_fault_still_has_its_loads(self) -> None:
        """Otherwise the workers copy in a later step, into blocks that vLLM computes by then."""
        req = self.load()
        self.session.work = Work([Load(1, req.request_id, b"s", b"b")])
        self.session.broken = "take_work"
        with self.assertLogs("blockyard.vllm", "ERROR"):
            metadata = self.side.build_connector_meta(step(new=[(req, [[4, 5, 6, 7, 8]])]))
        self.assertEqual([load.job for load in metadata.work.loads], [1])
        self.assertEqual(metadata.short, ((req.request_id, (4, 5, 6)),))

    def test_a_request_whose_own_hit_is_being_loaded_waits_a_step(self) -> None:
        first = self.load()
        same, other = self.open(20), self.open(20)
        other.all_token_ids[0] = 99
        for waiting, local, answer in (
            (same, 3 * TOKENS, None),
            (same, 0, 3 * TOKENS),
            (other, 3 * TOKENS, 2 * TOKENS - 1),
        ):
            found, _ = self.side.get_num_new_matched_tokens(waiting, local)
            self.assertEqual(found, answer)
        self.side.build_connector_meta(step(new=[(first, [[4, 5, 6, 7, 8]])]))
        self.assertIsNotNone(self.side.get_num_new_matched_tokens(same, 3 * TOKENS)[0])

    def test_a_promise_that_vllm_does_not_take_is_no_load(self) -> None:
        req = self.open(20)
        self.side.get_num_new_matched_tokens(req, 0)
        self.alloc(req, 0, [1, 2, 3, 4, 5])
        self.assertEqual(self.session.take("release_hit"), [(req.request_id, 0)])
        self.assertIs(self.side.build_connector_meta(step()), EMPTY)

    def test_the_last_answer_counts(self) -> None:
        req = self.open(20)
        self.side.get_num_new_matched_tokens(req, 0)
        self.side.pace.fits_step = lambda blocks, alone: False  # type: ignore[method-assign]
        self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), (3 * TOKENS, True))
        self.alloc(req, 3 * TOKENS, [4, 5, 6])
        self.assertIs(self.side.build_connector_meta(step()), EMPTY)

    def test_the_loads_of_a_step_fit_together(self) -> None:
        self.side.pace.fits_step = lambda blocks, alone: blocks < 6  # type: ignore[method-assign]
        first = self.load()
        other = self.open(20)
        self.assertEqual(self.side.get_num_new_matched_tokens(other, 0), (3 * TOKENS, True))
        self.side.build_connector_meta(step(new=[(first, [[4, 5, 6, 7, 8]])]))
        self.assertEqual(self.side.get_num_new_matched_tokens(other, 0), (3 * TOKENS, False))

    def test_a_pool_that_cannot_drop_a_hash_gets_no_short_load(self) -> None:
        self.side.bind(FakePool())
        req = self.open(20)
        self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), (3 * TOKENS, True))


class Pinned(ShortCase):
    """Over a real record of the workers' reports."""

    def setUp(self) -> None:
        super().setUp()
        self.side.short.pinned = False
        self.readable = Readable()
        self.readable.workers = 2
        self.session.mapped = self.readable.take

    def report(self, *reports: tuple[int, bool]) -> None:
        """Reports of workers, which vLLM carries together: worker and whether all is pinned."""
        mapped = tuple(Mapped(worker, 2, 3, b"", pinned) for worker, pinned in reports)
        meta = pickle.loads(pickle.dumps(WorkerReport(None, (), mapped)))
        self.side.update_connector_output(Bag(kv_connector_worker_meta=meta))

    def is_short(self) -> bool:
        tokens, later = self.side.get_num_new_matched_tokens(self.open(20), 0)
        self.assertEqual(tokens, 3 * TOKENS)
        return not later

    def test_no_short_load_before_all_workers_have_pinned_their_memory(self) -> None:
        self.assertFalse(self.is_short(), "no worker has said anything")
        self.report((1, True))
        self.assertFalse(self.is_short(), "worker 2 has said nothing")
        self.report((2, False))
        self.assertFalse(self.is_short())
        self.report((2, True))
        self.assertTrue(self.is_short())

    def test_memory_that_is_mapped_later_ends_short_loads_until_it_is_pinned(self) -> None:
        self.report((1, True), (2, True))
        self.assertTrue(self.is_short())
        self.report((1, False), (2, True))
        self.assertFalse(self.is_short())
        self.report((1, True), (2, False))
        self.assertFalse(self.is_short())
        self.report((2, True))
        self.assertTrue(self.is_short())


class Conditions(unittest.TestCase):
    def works(self, *groups: Any, zeroing: bool = False, **changes: Any) -> bool:
        config = vllm_config(**{"max_concurrent_batches": 1, "use_v2_model_runner": False})
        for name, value in changes.items():
            setattr(config, name, value)
        kv = kv_config(*(groups or ((full(), ["a"]),)), needs_kv_cache_zeroing=zeroing)
        return facts.short_loads_work(config, kv)

    def test_vllm_must_recover_from_a_failed_one(self) -> None:
        with mock.patch.object(facts, "_schedules_ahead", lambda config: False):
            self.assertTrue(self.works())
            self.assertFalse(self.works((full(), ["a"]), (full(), ["b"])))
            self.assertFalse(self.works(zeroing=True))
            self.assertFalse(self.works(max_concurrent_batches=2))
            self.assertFalse(self.works(use_v2_model_runner=True))
            self.assertFalse(self.works(speculative_config=Bag(method="ngram")))
            ranks = Bag(**vars(vllm_config().parallel_config) | {"data_parallel_size": 2})
            self.assertFalse(self.works(parallel_config=ranks))
        self.assertFalse(self.works(), "the scheduler's class is unknown")


if __name__ == "__main__":
    unittest.main()
