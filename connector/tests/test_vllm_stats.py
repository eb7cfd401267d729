"""The connector's counters in vLLM's metrics and log."""

from __future__ import annotations

import pickle
import unittest
from types import SimpleNamespace as Bag
from typing import Any
from unittest import mock

from blockyard.request import Hit
from tests import vllm_fakes as fakes
from tests.vllm_case import TOKENS, Case

ORIGIN = fakes.require_vllm()

from vllm.distributed.kv_transfer.kv_connector import factory  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1 import metrics  # noqa: E402

from blockyard.vllm import BlockyardConnector, scheduler, stats  # noqa: E402
from blockyard.vllm.stats import BlockyardStats, Changes  # noqa: E402


class Metric:
    """A Prometheus metric that records its value for each engine."""

    made: dict[str, Metric] = {}

    def __init__(self, name: str, text: str, labels: list[str], **options: Any) -> None:
        assert text and labels == ["engine"]
        self.values: dict[Any, float] = {}
        Metric.made[name] = self

    def labels(self, engine: Any) -> Any:
        def inc(by: float) -> None:
            self.values[engine] = self.values.get(engine, 0) + by

        def set_to(value: float) -> None:
            self.values[engine] = value

        return Bag(inc=inc, set=set_to)


class Stats(unittest.TestCase):
    def test_workers_and_scheduler_add_up(self) -> None:
        total = BlockyardStats({"load_bytes": 10, "copy_seconds": 0.5})
        total = total.aggregate(BlockyardStats({"load_bytes": 5, "store_bytes": 1}))
        total = total.aggregate(BlockyardStats({"loads": 1, "min_load_blocks": 4}))
        total = total.aggregate(BlockyardStats({"loads": 2, "min_load_blocks": 2}))
        want = {"load_bytes": 15, "copy_seconds": 0.5, "store_bytes": 1}
        self.assertEqual(total.data, {**want, "loads": 3, "min_load_blocks": 2})
        self.assertIn("Blockyard loads", total.reduce())

    def test_a_worker_sends_its_stats_to_another_process(self) -> None:
        sent = pickle.loads(pickle.dumps(BlockyardStats({"loads": 1})))
        rebuilt = BlockyardConnector.build_kv_connector_stats(sent.to_dict())
        self.assertEqual((rebuilt.data, rebuilt.is_empty()), ({"loads": 1}, False))
        rebuilt.reset()
        self.assertTrue(rebuilt.is_empty())
        self.assertTrue(BlockyardConnector.build_kv_connector_stats().is_empty())

    def test_only_changes_are_sent(self) -> None:
        changes = Changes(("a", "b"))
        self.assertEqual(changes.of((0, 0)), {})
        self.assertEqual(changes.of((2, 0)), {"a": 2})
        self.assertEqual(changes.of((3, 4)), {"a": 1, "b": 4})
        self.assertEqual(changes.of((3, 4)), {})

    def test_vllm_finds_the_class_and_its_subclasses_by_name(self) -> None:
        class Renamed(BlockyardConnector):
            """Has another name."""

        known = factory.KVConnectorFactory._registry
        self.assertIn("BlockyardConnector", known)
        self.assertIn(Renamed.__name__, known)
        stats.register(BlockyardConnector)


class Metrics(unittest.TestCase):
    def test_each_engine_has_its_own_values(self) -> None:
        types = {getattr(metrics, kind): Metric for kind in ("Counter", "Gauge", "Histogram")}
        config = Bag(kv_transfer_config=None)
        engines = {0: ["0"], 1: ["1"]}
        prom = BlockyardConnector.build_prom_metrics(config, types, ["engine"], engines)
        prom.observe({"loads": 2, "connected": 1}, 0)
        prom.observe({"loads": 3, "connected": 0, "of_a_later_release": 1}, 1)
        prom.observe({"loads": 3}, 1)
        self.assertEqual(Metric.made["vllm:blockyard_loads"].values, {"0": 2, "1": 6})
        self.assertEqual(Metric.made["vllm:blockyard_connected"].values, {"0": 1, "1": 0})


class SchedulerRole(Case):
    def measure(self, load_seconds: float) -> None:
        """Has the role measure steps of 1 ms for 10 tokens, and loads."""
        pace, now = self.side.pace, 0.0
        for number in range(8):
            for tokens in (1, 10 * (1 + number)):
                pace.begin_step(tokens, 1, now)
                now += tokens * 1e-4
                pace.end_step(now)
            pace.begin_load(f"measured-{number}", 1, now)
            now += load_seconds
            pace.end_load(f"measured-{number}", True, now)

    def test_an_answer_has_the_gauges_and_comes_once(self) -> None:
        answer = self.side.stats()
        self.assertEqual(answer.data, {"connected": 1, "min_load_blocks": 1})
        self.assertIsNone(self.side.stats())

    def test_changes_wait_while_copies_are_in_flight_and_are_complete_at_their_end(self) -> None:
        with mock.patch.object(scheduler, "_now", lambda: now):
            now = 100.0
            self.side.stats()
            self.session.working = self.session.changed = True
            self.side.pace.declined += 1
            self.assertIsNone(self.side.stats())
            now += stats.INTERVAL_SECONDS
            self.assertEqual(self.side.stats().data["declined_hits"], 1)
            self.session.changed = True
            self.side.pace.declined += 1
            self.assertIsNone(self.side.stats())
            self.session.working = False  # perhaps no further step follows
            self.assertEqual(self.side.stats().data["declined_hits"], 1)

    def test_a_short_hit_is_computed_and_its_pins_are_released(self) -> None:
        self.measure(load_seconds=0.002)
        self.session.answer = Hit(2, b"\1\1")
        req = self.open(20)
        self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), (0, False))
        self.assertEqual(self.session.take("release_hit"), [(req.request_id, 0)])
        self.session.answer = Hit(15, bytes([1]) * 15)
        req = self.open(64)
        self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), (15 * TOKENS, True))
        self.assertEqual(self.side.stats().data["declined_hits"], 1)

    def test_an_accepted_hit_stays_accepted(self) -> None:
        self.session.answer = Hit(2, b"\1\1")
        req = self.open(20)
        self.assertTrue(self.side.get_num_new_matched_tokens(req, 0)[1])
        self.measure(load_seconds=0.5)
        self.assertTrue(self.side.get_num_new_matched_tokens(req, 0)[1])
        req.num_preemptions = 1
        self.assertFalse(self.side.get_num_new_matched_tokens(req, 0)[1])

    def test_a_hand_over_is_always_loaded(self) -> None:
        self.measure(load_seconds=0.5)
        self.session.answer = Hit(2, b"\1\1")
        req = self.open(20, kv_transfer_params={"blockyard": {"await": 2, "deadline_ms": 9}})
        self.assertIs(self.side._tracked[req.request_id].handed, True)
        self.assertTrue(self.side.get_num_new_matched_tokens(req, 0)[1])

    def test_a_fixed_number_wins(self) -> None:
        self.make(min_load_blocks=1)
        self.measure(load_seconds=0.5)
        self.session.answer = Hit(1, b"\1")
        self.assertTrue(self.side.get_num_new_matched_tokens(self.open(20), 0)[1])


if __name__ == "__main__":
    unittest.main()
