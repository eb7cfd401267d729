"""The scheduler role: requests and loads in vLLM's hooks."""

from __future__ import annotations

import pathlib
import pickle
import tempfile
import unittest
from types import SimpleNamespace as Bag
from typing import Any
from unittest import mock

from blockyard.request import Hit
from blockyard.settings import Settings
from blockyard.work import Done, Mapped
from tests.vllm_case import TOKENS, Case
from tests.vllm_fakes import FakePool, request, step, vllm_config

from blockyard.vllm import identity  # isort: skip
from blockyard.vllm import handshakes  # isort: skip
from blockyard.vllm import sources  # isort: skip
from blockyard.vllm.records import EMPTY, WorkerReport  # isort: skip
from blockyard.vllm.scheduler import NO_HIT, VllmScheduler  # isort: skip


def read_by_hand(adapters: identity.Adapters, adapter: identity.Adapter) -> None:
    """A read that has not begun yet."""
    adapter.reading = True


def read_now(adapters: identity.Adapters) -> None:
    """A read that has ended."""
    for adapter in adapters._known.values():
        adapter.read()


class Opening(Case):
    def test_a_request_is_opened_with_its_live_list_of_tokens(self) -> None:
        req = self.open(10)
        ((rid, generation, tokens, identity),) = self.session.take("open")
        self.assertEqual((rid, generation, tuple(identity)), (req.request_id, 0, ("", "", "")))
        self.assertIs(tokens, req.all_token_ids)

    def test_a_salt_is_part_of_the_identity_and_a_long_one_is_hashed(self) -> None:
        self.open(10, cache_salt="tenant")
        self.open(10, cache_salt="x" * 2000)
        first, second = (call[3] for call in self.session.take("open"))
        self.assertEqual(first.salt, "tenant")
        self.assertTrue(second.salt.startswith("sha256:"))

    def test_what_tokens_do_not_describe_is_left_alone(self) -> None:
        for changes in (
            {"mm_features": [object()]},
            {"prompt_embeds": object()},
            {"prompt_is_token_ids": [True]},
            {"prompt_token_ids": None},
            {"resumable": True},
        ):
            req = self.open(10, **changes)
            with self.subTest(**changes):
                self.assertEqual(self.session.calls, [])
                self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), NO_HIT)
                self.alloc(req, 0, [1, 2])
                self.assertIs(self.side.build_connector_meta(step([(req, [[1, 2]])])), EMPTY)
                self.side.request_finished(req, [[1, 2]])
                self.assertEqual(self.session.calls, [])
        self.assertEqual(len(self.side.faults.counts), 4)

    def test_a_request_waits_until_the_files_of_its_adapter_are_read(self) -> None:
        with tempfile.TemporaryDirectory() as path:
            (pathlib.Path(path) / "adapter.safetensors").write_bytes(b"weights")
            lora = Bag(lora_int_id=1, lora_name="a", lora_path=path)
            with mock.patch.object(identity.Adapters, "_read_later", read_by_hand):
                req = self.open(8, lora_request=lora)
                aborted = self.open(8, lora_request=lora)
            self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), (None, False))
            self.side.request_finished(aborted, [[]])
            self.assertEqual(self.session.take("open"), [])
            read_now(self.side._adapters)
            self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), NO_HIT)
            ((rid, *_),) = self.session.take("open")
            self.assertEqual(rid, req.request_id)

    def test_an_adapter_that_cannot_be_read_is_not_waited_for(self) -> None:
        lora = Bag(lora_int_id=1, lora_name="a", lora_path="/nowhere")
        with mock.patch.object(identity.Adapters, "_read_later", read_by_hand):
            slow, failed = self.open(8, lora_request=lora), self.open(8, lora_request=lora)
        with mock.patch.object(identity, "READ_SECONDS", -1.0):
            self.assertEqual(self.side.get_num_new_matched_tokens(slow, 0), NO_HIT)
        with self.assertLogs("blockyard.vllm", "WARNING"):
            read_now(self.side._adapters)
        self.assertEqual(self.side.get_num_new_matched_tokens(failed, 0), NO_HIT)
        self.assertEqual(self.session.calls, [])

    def test_blocks_of_an_adapter_whose_files_changed_meanwhile_are_not_offered(self) -> None:
        """The engine reads the files after the fingerprint, when it schedules the adapter's first
        request. So it may have loaded either files."""
        with tempfile.TemporaryDirectory() as path:
            file = pathlib.Path(path) / "adapter.safetensors"
            file.write_bytes(b"weights")
            lora = Bag(lora_int_id=1, lora_name="a", lora_path=path)
            with mock.patch.object(identity.Adapters, "_read_later", read_by_hand):
                reqs = [self.open(8, lora_request=lora) for _ in range(3)]
            read_now(self.side._adapters)
            for req in reqs:
                self.side.get_num_new_matched_tokens(req, 0)
            self.side.build_connector_meta(step([(r, [[1, 2]]) for r in reqs]))
            for req in reqs:
                self.advance(req, 8)
            self.side.request_finished(reqs[0], [[1, 2]])
            self.assertEqual(len(self.session.take("computed")), 1)
            file.write_bytes(b"Weights")
            with self.assertLogs("blockyard.vllm", "WARNING"):
                self.side.build_connector_meta(step(cached=[(reqs[1], None), (reqs[2], None)]))
            self.side.request_finished(reqs[2], [[1, 2]])
            self.assertEqual(self.session.take("computed"), [])

    def test_a_request_may_ask_not_to_read(self) -> None:
        session = mock.Mock()
        self.side = VllmScheduler(Settings(), session, TOKENS, 1)
        self.open(10, skip_reading_prefix_cache=True)
        want = {"lookup": False, "store": True, "hand_over": None}
        self.assertEqual(session.open.call_args.kwargs, want)
        self.side = VllmScheduler(Settings(load=False, store=False), session, TOKENS, 1)
        self.open(10)
        want = {"lookup": False, "store": False, "hand_over": None}
        self.assertEqual(session.open.call_args.kwargs, want)


class Queues(Case):
    def test_what_was_in_the_last_step_runs_and_the_rest_waits(self) -> None:
        """Requests without a cache count too."""
        reqs = [self.open(8), self.open(8, mm_features=[object()]), self.open(8)]
        self.assertEqual(self.side.queues(), (0, 3))
        output = step([(reqs[0], [[1, 2]]), (reqs[1], [[3, 4]])])
        output.num_scheduled_tokens = {r.request_id: 8 for r in reqs[:2]}
        self.side.build_connector_meta(output)
        self.assertEqual(self.side.queues(), (2, 1))
        for req in reqs:
            self.side.request_finished(req, [[]])
        self.assertEqual(self.side.queues(), (0, 0), "an idle engine takes no step that says so")

    def test_a_session_sees_pool_and_queues(self) -> None:
        self.side.bind(FakePool())
        ((pool, queues),) = self.session.take("observe")
        self.assertEqual((pool.total(), queues()), (63, (0, 0)))
        with self.assertLogs("blockyard.vllm", "ERROR"):  # a pool of another release
            self.side.bind(object())


class IdleSteps(Case):
    def test_workers_may_wait_in_a_step_that_computes_nothing_while_a_load_is_in_flight(
        self,
    ) -> None:
        req = self.open(8)
        for loading, output, idle in (
            (False, step(), False),
            (True, step(), True),
            (True, step(cached=[(req, None)]), False),
        ):
            self.session.loading = loading
            metadata = pickle.loads(pickle.dumps(self.side.build_connector_meta(output)))
            self.assertIs(metadata.idle, idle)
            self.assertIs(metadata is EMPTY, not idle)


class Starting(Case):
    def test_an_engine_that_starts_waits_for_its_session_but_not_for_long(self) -> None:
        connected = [0, 0, 0, 1]
        session = mock.Mock(**{"stats.side_effect": lambda: {"connected": connected.pop(0)}})
        with tempfile.NamedTemporaryFile() as socket:
            self.await_agent(socket.name, session)
            self.assertEqual(connected, [])
            connected = [0] * 100_000
            with mock.patch.object(handshakes, "START_SECONDS", 0.01):
                self.await_agent(socket.name, session)
        self.assertGreater(len(connected), 0)

    def test_without_an_agent_it_does_not_wait(self) -> None:
        session = mock.Mock(**{"stats.return_value": {"connected": 0}})
        self.await_agent("/nowhere.sock", session)
        self.assertEqual(session.stats.call_count, 0)

    def await_agent(self, socket: str, session: Any) -> None:
        settings = Settings(socket=socket)
        side = VllmScheduler(settings, session, TOKENS, 1)
        handshakes.Assembly(vllm_config(), None, settings, side).await_agent()


class Loading(Case):
    def test_undecided_then_a_hit_of_the_whole_prompt(self) -> None:
        req = self.open(12)
        self.session.answer = None
        self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), (None, False))
        self.session.answer = Hit(3, b"\1\2\1")
        for _ in range(3):  # vLLM repeats the call while it has no free blocks
            self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), (12, True))
        self.alloc(req, 12, [5, 6, 7])
        self.assertEqual(self.session.take("load"), [(req.request_id, 0, 0, [[5, 6, 7]])])

    def test_the_load_begins_behind_the_local_hit(self) -> None:
        self.make(groups=2)
        req = self.open(20)
        self.session.answer = Hit(2, b"\1\1")
        self.assertEqual(self.side.get_num_new_matched_tokens(req, 8), (8, True))
        self.assertEqual(self.session.take("hit"), [(req.request_id, 0, 2)])
        self.alloc(req, 8, [1, 2, 3, 4, 9], [11, 12, 13, 14, 19])
        self.assertEqual(self.session.take("load"), [(req.request_id, 0, 2, [[3, 4], [13, 14]])])

    def test_only_groups_that_a_load_fills_are_named(self) -> None:
        """vLLM zeroes the new blocks of the other groups, unless a load fills them."""
        self.make(groups=2)
        req = self.open(20)
        self.assertEqual(self.side.loaded_group_ids(req), ())
        self.session.answer = Hit(2, b"\1\1")
        self.side.get_num_new_matched_tokens(req, 8)
        self.assertEqual(self.side.loaded_group_ids(req), (0, 1))
        self.alloc(req, 8, [1, 2, 3, 4], [11, 12, 13, 14])
        self.assertEqual(self.side.loaded_group_ids(req), (), "the load has begun")
        self.assertEqual(self.side.loaded_group_ids(request(8)), ())
        self.side.get_num_new_matched_tokens(req, 8)
        self.side.turn_off("test")
        self.assertEqual(self.side.loaded_group_ids(req), ())

    def test_a_hit_never_exceeds_the_tokens_of_the_request(self) -> None:
        req = self.open(11)
        self.session.answer = Hit(9, b"\1" * 9)
        self.assertEqual(self.side.get_num_new_matched_tokens(req, 4), (4, True))

    def test_nothing_is_claimed_behind_a_hit_that_ends_within_a_block(self) -> None:
        """A claim has only whole blocks behind whole blocks."""
        req = self.open(40)
        self.session.answer = Hit(3, b"\1\1\1")
        for local in range(5 * TOKENS):
            claimed, later = self.side.get_num_new_matched_tokens(req, local)
            with self.subTest(local=local):
                self.assertEqual(claimed, 0 if local % TOKENS else 3 * TOKENS)
                self.assertEqual(later, claimed > 0)
        self.assertIn((req.request_id, 0), self.session.take("release_hit"))

    def test_a_part_of_a_block_is_not_loaded_and_not_left_out_either(self) -> None:
        req = self.open(40)
        self.session.answer = Hit(3, b"\1\1\1")
        self.side.get_num_new_matched_tokens(req, 0)
        with self.assertLogs("blockyard.vllm"):
            self.alloc(req, 3 * TOKENS - 1, [4, 5, 6])
        self.assertEqual(self.session.take("load"), [])
        self.assertEqual(self.session.take("fail_load"), [(req.request_id,)])

    def test_a_hit_that_vllm_does_not_load_is_let_go(self) -> None:
        req = self.open(40)
        self.session.answer = Hit(2, b"\1\1")
        self.side.get_num_new_matched_tokens(req, 0)
        for _ in range(2):
            self.alloc(req, 0, [1])
        self.assertEqual(self.session.take("release_hit"), [(req.request_id, 0)])

    @unittest.skipIf(sources.CacheHitSource is None, "vLLM before 0.32 does not ask")
    def test_sources_add_up_to_the_tokens_asked_about(self) -> None:
        req = self.open(40)
        self.session.answer = Hit(4, b"\1\2\1\2")
        self.side.get_num_new_matched_tokens(req, 0)
        self.alloc(req, 16, [1, 2, 3, 4])
        split = self.side.get_external_cache_hit_sources(req, 16)
        self.assertEqual({k.value: v for k, v in split.items()}, {"host": 8, "disk": 8})
        split = self.side.get_external_cache_hit_sources(req, 4)
        self.assertEqual({k.value: v for k, v in split.items()}, {"host": 4})
        self.assertEqual(self.side.get_external_cache_hit_sources(req, 0), {})

    def test_a_load_into_blocks_that_make_no_sense_is_failed_by_the_workers_once(self) -> None:
        for ids in ([1], [0, 1], [1, 0]):
            self.side.faults.counts.clear()
            req = self.open(40)
            self.session.answer = Hit(2, b"\1\1")
            self.side.get_num_new_matched_tokens(req, 0)
            with self.assertLogs("blockyard.vllm", "ERROR"):
                self.alloc(req, 8, ids)
            self.assertEqual(self.session.take("fail_load"), [(req.request_id,)])
            self.assertIs(self.side.build_connector_meta(step()), EMPTY)

    def test_a_load_that_the_session_refuses_is_failed_by_the_session(self) -> None:
        req = self.open(40)
        self.session.answer, self.session.loads = Hit(2, b"\1\1"), False
        self.side.get_num_new_matched_tokens(req, 0)
        self.alloc(req, 8, [1, 2])
        self.assertIs(self.side.build_connector_meta(step()), EMPTY)

    def test_after_a_failed_load_the_answer_is_miss_until_the_next_preemption(self) -> None:
        req = self.open(40)
        self.session.answer = Hit(2, b"\1\1")
        self.side.get_num_new_matched_tokens(req, 0)
        self.alloc(req, 8, [1, 2])
        self.side.update_connector_output(Bag(failed_recving={req.request_id, "unknown"}))
        self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), NO_HIT)
        req.num_preemptions = 1
        self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), (8, True))

    def test_reports_are_settled(self) -> None:
        done = Done({7: [1, 0]})
        self.side.update_connector_output(Bag(kv_connector_worker_meta=WorkerReport(done)))
        self.side.update_connector_output(Bag(kv_connector_worker_meta=None))
        self.side.update_connector_output(Bag(kv_connector_worker_meta=object()))
        self.assertEqual(self.session.take("settle"), [(done,)])

    def test_the_session_learns_what_each_worker_has_mapped(self) -> None:
        reports = (Mapped(1, 2, 3, b""), Mapped(2, 2, 3, b""))
        meta = WorkerReport(None, (), reports)
        self.side.update_connector_output(Bag(kv_connector_worker_meta=meta))
        self.assertEqual(self.session.take("mapped"), [(reports[0],), (reports[1],)])


if __name__ == "__main__":
    unittest.main()
