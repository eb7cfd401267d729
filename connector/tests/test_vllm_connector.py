"""BlockyardConnector as vLLM uses it: both roles of one engine.

The base classes are vLLM's own, or the stand-ins of tests/stubs where vLLM is not installed.
"""

from __future__ import annotations

import inspect
import pickle
import unittest
from types import SimpleNamespace as Bag
from typing import Any
from unittest import mock

from blockyard.settings import SettingsError
from blockyard.work import Done, Load, Store, Work
from tests import vllm_fakes as fakes
from tests.vllm_fakes import FakeTensor, full, kv_config, request, step, vllm_config

fakes.require_vllm()

from vllm.distributed.kv_transfer.kv_connector.v1 import base  # noqa: E402

import blockyard.vllm  # noqa: E402
from blockyard.vllm import assembly, connector, handshakes  # noqa: E402
from blockyard.vllm.geometry import Ranks  # noqa: E402
from blockyard.vllm.records import WorkerReport  # noqa: E402

BLOCKS, TOKENS = 16, 32
SCHEDULER, WORKER = base.KVConnectorRole.SCHEDULER, base.KVConnectorRole.WORKER


class FakeWorkerSession:
    """A WorkerSession in which every job succeeds at once."""

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.news = 0

    def start(self, register: Any, pages: Any) -> None:
        self.pages = pages

    def begin(self, work: Work) -> None:
        self.works.append(work)
        self.news += 1

    def expects(self, rid: str) -> bool:
        return False

    def await_load(self, seconds: float) -> None:
        """Does nothing: every load has ended."""

    def finished_loads(self) -> tuple[set[str], set[str]]:
        return {load.rid for work in self.works for load in work.loads}, set()

    def done(self) -> Done | None:
        done = Done()
        for work in self.works:
            for job in (*work.loads, *work.stores):
                done.add(job.job, True)
        self.works = []
        return done or None

    def mapped(self) -> None:
        """None: no change."""

    def wait(self, timeout: float) -> bool:
        return True

    def close(self) -> None:
        """Does nothing."""


class Engine(unittest.TestCase):
    """An engine of `ranks` workers without a model and an agent."""

    def setUp(self) -> None:
        for target, name, new in (
            (assembly, "SchedulerSession", self.scheduler_session),
            (assembly, "WorkerSession", self.worker_session),
            (assembly, "worker_ranks", lambda config, replicas: self.ranks),
            (assembly, "gather_stages", lambda own: [own]),
            (connector, "_is_nested", lambda own: self.nested),
        ):
            patch = mock.patch.object(target, name, new)
            patch.start()
            self.addCleanup(patch.stop)
        spec = full(TOKENS)
        spec.dtype = Bag(itemsize=4)
        self.kv = kv_config((spec, ["a", "b"]), blocks=BLOCKS)
        self.config = vllm_config()
        self.ranks = Ranks()
        self.nested = False
        self.sessions: list[Any] = []

    def scheduler_session(self, *args: Any) -> Any:
        self.session = mock.Mock(**{"busy.return_value": False, "take_work.return_value": Work()})
        return self.session

    def worker_session(self, *args: Any, early_loads: bool) -> Any:
        self.sessions.append(FakeWorkerSession())
        return self.sessions[-1]

    def make(self, role: Any) -> Any:
        return blockyard.vllm.BlockyardConnector(self.config, role, self.kv)

    def worker(self, ranks: Ranks | None = None) -> Any:
        self.ranks = ranks or Ranks()
        made = self.make(WORKER)
        page = (BLOCKS, TOKENS, 4)
        made.register_kv_caches({"a": FakeTensor(page), "b": FakeTensor(page, base=1 << 24)})
        return made

    def hello(self) -> Any:
        (call,) = self.session.start.call_args_list
        return call.args[0]


class Kind(Engine):
    def test_what_vllm_asks_before_it_makes_one(self) -> None:
        cls = blockyard.vllm.BlockyardConnector
        self.assertTrue(issubclass(cls, base.SupportsHMA))
        self.assertEqual(
            list(inspect.signature(cls).parameters), ["vllm_config", "role", "kv_cache_config"]
        )
        self.assertIsNone(cls.get_required_kvcache_layout(self.config))
        self.assertFalse(cls.requires_piecewise_for_cudagraph({}))
        self.assertTrue(cls.supports_sleep_mode(None))
        self.assertFalse(inspect.isabstract(cls))

    def test_answers_of_a_cache(self) -> None:
        made = self.make(SCHEDULER)
        self.assertFalse(made.requires_kv_delivery)
        self.assertEqual(list(made.take_events()), [])
        self.assertFalse(made.has_pending_block_frees())
        self.assertFalse(self.worker().has_connector_metadata())

    def test_a_bad_setting_ends_the_start_with_its_name(self) -> None:
        self.config.kv_transfer_config.kv_connector_extra_config = {"sokcet": "/x"}
        with self.assertRaisesRegex(SettingsError, "sokcet"):
            self.make(SCHEDULER)

    def test_failure_policy_fail_is_warned_of_and_works(self) -> None:
        self.config.kv_transfer_config.kv_load_failure_policy = "fail"
        with self.assertLogs("blockyard.vllm", "WARNING") as caught:
            made = self.make(SCHEDULER)
        self.assertIn("recompute", caught.output[0])
        made.on_new_request(request(64))
        self.assertEqual(self.session.open.call_count, 1)

    def test_a_producer_never_loads(self) -> None:
        # For this role vLLM allows loads into blocks that a step in flight writes.
        self.config.kv_transfer_config.kv_role = "kv_producer"
        with self.assertLogs("blockyard.vllm", "WARNING"):
            made = self.make(SCHEDULER)
        made.on_new_request(request(64))
        want = {"lookup": False, "store": True, "hand_over": None}
        self.assertEqual(self.session.open.call_args.kwargs, want)

    def test_the_lookup_of_a_lone_request_may_wait_unless_other_ranks_would(self) -> None:
        for ranks in (1, 2):
            self.config.parallel_config.data_parallel_size = ranks
            made, req = self.make(SCHEDULER), request(64)
            made.on_new_request(req)
            self.session.hit.return_value = None
            self.assertEqual(made.get_num_new_matched_tokens(req, 0), (None, False))
            rest = self.session.hit.call_args.kwargs["rest"]
            self.assertIs(rest > 0, ranks == 1)


class Handshakes(Engine):
    def test_what_the_engine_can_do_is_told(self) -> None:
        self.config.scheduler_config = Bag(max_num_batched_tokens=8192)
        made, worker = self.make(SCHEDULER), self.worker()
        made.set_xfer_handshake_metadata_pp_aware({(0, 0): worker.get_handshake_metadata()})
        hello = self.hello()
        self.assertEqual((hello.device_blocks, hello.max_num_batched_tokens), (BLOCKS, 8192))

    def test_one_worker(self) -> None:
        made, worker = self.make(SCHEDULER), self.worker()
        handshake = pickle.loads(pickle.dumps(worker.get_handshake_metadata()))
        made.set_xfer_handshake_metadata_pp_aware({(0, 0): handshake})
        hello = self.hello()
        self.assertEqual(hello.namespace["page_size"], TOKENS)
        block = 2 * TOKENS * 4 * 4
        numbers = "num_layers outer_dim page_size inner_dim dtype_width_bytes".split()
        product = 1
        for name in numbers:
            product *= hello.namespace[name]
        self.assertEqual(product, block)
        self.assertEqual(self.session.start.call_args.args[1], 1)
        self.assertFalse(made.has_pending_push_work())
        self.assertIsNone(worker.build_connector_worker_meta(), "it was taken")

    def test_an_engine_that_publishes_events_lists_its_hashes(self) -> None:
        """HELLO also has the consolidated stream. Without events HELLO has neither."""
        told = ("tcp://127.0.0.1:5557", "tcp://0.0.0.0:57001", "tcp://127.0.0.1:57001")
        for endpoint, expected in (("tcp://*:5557", (True, told[1])), ("", (False, ""))):
            self.config.kv_events_config = Bag(enable_kv_cache_events=True, endpoint=endpoint)
            self.config.additional_config = {"consolidator_endpoints": told}
            made, worker = self.make(SCHEDULER), self.worker()
            made.set_xfer_handshake_metadata_pp_aware({(0, 0): worker.get_handshake_metadata()})
            hello = self.hello()
            self.assertEqual((hello.lists_cached, hello.consolidated_endpoint), expected)

    def test_tensor_parallel_workers_are_waited_for(self) -> None:
        self.config.parallel_config.tensor_parallel_size = 2
        made = self.make(SCHEDULER)
        shares = {
            (0, rank): self.worker(Ranks(rank, 2)).get_handshake_metadata() for rank in (0, 1)
        }
        made.set_xfer_handshake_metadata_pp_aware({(0, 1): shares[0, 1]})
        self.assertEqual(self.session.start.call_count, 0)
        made.set_xfer_handshake_metadata_pp_aware(shares)
        self.assertEqual(self.session.start.call_args.args[1], 2)
        self.assertEqual(self.hello().namespace["tp"], 2)

    def test_one_of_several_connectors_gets_its_handshake_by_the_first_report(self) -> None:
        self.nested = True
        made, worker = self.make(SCHEDULER), self.worker()
        self.assertIsNone(worker.get_handshake_metadata())
        made.set_xfer_handshake_metadata_pp_aware({(0, 0): "another connector's"})
        self.assertTrue(made.has_pending_push_work(), "so that the engine steps")
        report = pickle.loads(pickle.dumps(worker.build_connector_worker_meta()))
        made.update_connector_output(Bag(kv_connector_worker_meta=report))
        self.assertEqual(self.session.start.call_count, 1)
        self.assertFalse(made.has_pending_push_work())

    def test_workers_that_never_report_do_not_keep_the_engine_stepping(self) -> None:
        made = self.make(SCHEDULER)
        self.assertTrue(made.has_pending_push_work())
        with (
            mock.patch.object(handshakes, "HANDSHAKE_SECONDS", -1.0),
            self.assertLogs("blockyard.vllm", "WARNING"),
        ):
            made._assembly._until = 0.0
            self.assertFalse(made.has_pending_push_work())
        self.assertEqual(self.session.close.call_count, 1)

    def test_a_worker_with_a_problem_turns_it_off(self) -> None:
        made = self.make(SCHEDULER)
        self.kv = kv_config((full(TOKENS), ["a"]), blocks=BLOCKS + 1)
        with self.assertLogs("blockyard.vllm"):
            worker = self.worker()
            made.set_xfer_handshake_metadata_pp_aware({(0, 0): worker.get_handshake_metadata()})
        self.assertEqual(self.session.start.call_count, 0)
        req = request(64)
        made.on_new_request(req)
        self.assertEqual(made.get_num_new_matched_tokens(req, 0), (0, False))

    def test_weights_that_cannot_be_told_apart_are_warned_of(self) -> None:
        self.config.load_config.load_format = "tensorizer"
        made, worker = self.make(SCHEDULER), self.worker()
        with self.assertLogs("blockyard.vllm", "WARNING") as caught:
            made.set_xfer_handshake_metadata_pp_aware({(0, 0): worker.get_handshake_metadata()})
        self.assertIn("weights", caught.output[0])
        self.assertTrue(self.hello().namespace["weights"].startswith("unknown-"))


class Steps(Engine):
    def test_a_load_and_a_store_through_both_roles(self) -> None:
        made, worker = self.make(SCHEDULER), self.worker()
        made.set_xfer_handshake_metadata_pp_aware({(0, 0): worker.get_handshake_metadata()})
        made.bind_kv_cache_manager(Bag(block_pool=fakes.FakePool()))
        self.assertEqual(self.session.bind.call_count, 1)
        work = Work([Load(1, "r", b"", b"")], [Store(2, b"", b"")])
        self.session.take_work.return_value = work
        self.session.loading = True
        meta = pickle.loads(pickle.dumps(made.build_connector_meta(step())))
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        worker.start_load_kv(None, request_ids=[])
        worker.wait_for_save()
        results = worker.get_transfer_results(set())
        report = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        self.assertEqual((results.finished_recving, results.failed_recving), ({"r"}, set()))
        self.assertEqual(worker.get_block_ids_with_load_errors(), set())
        made.update_connector_output(
            Bag(kv_connector_worker_meta=report, failed_recving=results.failed_recving)
        )
        (settled,) = self.session.settle.call_args.args
        self.assertEqual(settled.jobs, {1: [1, 0], 2: [1, 0]})

    def test_sleep_and_wake(self) -> None:
        worker = self.worker()
        worker.get_handshake_metadata()
        worker.unregister_kv_caches()
        worker.unregister_kv_caches()
        worker.restore_kv_caches()
        worker.restore_kv_caches()
        worker.shutdown()

    def test_a_report_is_true_so_that_vllm_passes_it_on(self) -> None:
        self.assertTrue(WorkerReport(None))


if __name__ == "__main__":
    unittest.main()
