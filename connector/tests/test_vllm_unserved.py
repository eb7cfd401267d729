"""Engines that the connector does not serve: the engine loses nothing, and its user learns why."""

from __future__ import annotations

from types import SimpleNamespace as Bag
from typing import Any
from unittest import mock

from blockyard.settings import NotServedError
from tests import vllm_fakes as fakes
from tests.test_vllm_connector import BLOCKS, SCHEDULER, TOKENS, WORKER, Engine
from tests.vllm_fakes import FakeTensor, full, kv_config, request, step

from blockyard.vllm import handshakes  # isort: skip
from blockyard.vllm.geometry import Ranks  # isort: skip
from blockyard.vllm.records import EMPTY  # isort: skip


def hybrid(*kinds: Any) -> Any:
    """A full group behind one group of each of the kinds."""
    groups = [(kind(block_size=TOKENS), [f"layer{i}"]) for i, kind in enumerate(kinds)]
    return kv_config(*groups, (full(TOKENS), ["full"]), blocks=BLOCKS)


class RSWASpec(fakes.FullAttentionSpec):  # type: ignore[misc]
    """Full attention whose blocks within a prompt are dropped. Only its exact name says so."""


DROPPING = (RSWASpec,) * 5
STATE = (fakes.MambaSpec,) * 3  # of a cache mode whose states cannot be restored


class Inert(Engine):
    def started(self, *kinds: Any) -> tuple[Any, Any, list[str]]:
        """Both roles of a hybrid model's engine after its start, and the lines of the log."""
        self.kv = hybrid(*kinds)
        with self.assertLogs("blockyard.vllm") as caught:
            made, worker = self.make(SCHEDULER), self.make(WORKER)
            # A layer with a state has several tensors.
            worker.register_kv_caches({"layer0": [FakeTensor((4, 4))] * 2})
            made.set_xfer_handshake_metadata_pp_aware({(0, 0): worker.get_handshake_metadata()})
            made.bind_kv_cache_manager(Bag(block_pool=fakes.FakePool()))
        return made, worker, caught.output

    def test_the_reason_is_logged_once_by_both_roles_together(self) -> None:
        for kinds, name in ((DROPPING, "RSWASpec"), (STATE, "MambaSpec")):
            *_, lines = self.started(*kinds)
            self.assertEqual(len(lines), 1, lines)
            self.assertIn("Blockyard stays off", lines[0])
            self.assertIn(f"layers of kind {name}: ", lines[0])

    def test_the_life_of_a_request_changes_nothing(self) -> None:
        made, worker, _ = self.started(*DROPPING)
        req = request(3 * TOKENS)
        tables = [[0, 0, 1]] * 5 + [[2, 3, 4]]
        made.on_new_request(req)
        self.assertEqual(made.get_num_new_matched_tokens(req, 0), (0, False))
        self.assertEqual(made.get_loaded_kv_cache_group_ids(req), ())
        made.update_state_after_alloc(req, Bag(get_block_ids=lambda: tables), 0)
        meta = made.build_connector_meta(step([(req, tables)]))
        self.assertIs(meta, EMPTY)
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        worker.start_load_kv(None)
        results = worker.get_transfer_results(set())
        self.assertEqual((results.finished_recving, results.failed_recving), (set(), set()))
        self.assertIsNone(worker.build_connector_worker_meta())
        made.update_connector_output(Bag(kv_connector_worker_meta=None, failed_recving=None))
        self.assertEqual(made.request_finished_all_groups(req, tables), (False, None))
        self.assertFalse(made.has_pending_push_work())
        self.assertFalse(made.has_pending_block_frees())
        self.assertTrue(made.reset_cache())
        self.assertEqual(list(made.take_events()), [])
        worker.unregister_kv_caches()
        worker.restore_kv_caches()
        made.shutdown()
        worker.shutdown()
        self.assertEqual(made._scheduler.queues(), (0, 0), "nothing of the request is left")
        self.assertEqual(self.sessions, [])


class Required(Engine):
    def setUp(self) -> None:
        super().setUp()
        self.config.kv_transfer_config.kv_connector_extra_config = {"require": True}

    def test_both_roles_refuse_a_model_in_the_constructor(self) -> None:
        self.kv = hybrid(*STATE)
        for role in (SCHEDULER, WORKER):
            with self.assertNoLogs("blockyard.vllm"), self.assertRaises(NotServedError) as caught:
                self.make(role)
            self.assertRegex(str(caught.exception), "layers of kind MambaSpec.* `require`")

    def test_a_configuration_and_the_setting_enabled_count_too(self) -> None:
        self.config.model_config.is_encoder_decoder = True
        with self.assertRaisesRegex(NotServedError, "encoder-decoder"):
            self.make(SCHEDULER)
        extra = {"require": True, "enabled": False}
        self.config.kv_transfer_config.kv_connector_extra_config = extra
        with self.assertRaisesRegex(NotServedError, "disabled"):
            self.make(WORKER)

    def test_a_problem_of_a_worker_ends_the_start_at_the_handshakes(self) -> None:
        made = self.make(SCHEDULER)
        self.kv = kv_config((full(TOKENS), ["a"]), blocks=BLOCKS + 1)
        with self.assertLogs("blockyard.vllm"):
            worker = self.worker()
        with self.assertRaisesRegex(NotServedError, "no axis of 17 blocks"):
            made.set_xfer_handshake_metadata_pp_aware({(0, 0): worker.get_handshake_metadata()})

    def test_workers_that_never_report_end_the_start(self) -> None:
        self.config.parallel_config.tensor_parallel_size = 2
        made = self.make(SCHEDULER)
        share = self.worker(Ranks(0, 2)).get_handshake_metadata()
        made.set_xfer_handshake_metadata_pp_aware({(0, 0): share})
        with (
            mock.patch.object(handshakes, "HANDSHAKE_SECONDS", -1.0),
            self.assertRaisesRegex(NotServedError, "1 of 2 workers"),
        ):
            made.has_pending_push_work()

    def test_a_model_that_is_served_starts(self) -> None:
        made, worker = self.make(SCHEDULER), self.worker()
        made.set_xfer_handshake_metadata_pp_aware({(0, 0): worker.get_handshake_metadata()})
        self.assertEqual(self.session.start.call_count, 1)
