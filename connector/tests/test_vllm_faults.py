"""The scheduler role with broken calls below it, and the records between the roles."""

from __future__ import annotations

import pickle
import unittest
from types import SimpleNamespace as Bag

from blockyard.request import Hit
from blockyard.work import Done, Load, Mapped, Work
from tests.vllm_case import Case, FakeSession
from tests.vllm_fakes import step

from blockyard.vllm.records import EMPTY, StepMetadata, WorkerReport  # isort: skip
from blockyard.vllm.scheduler import NO_HIT  # isort: skip


class Faults(Case):
    """An exception in a hook would end the engine. The guard turns it into a miss."""

    def test_no_broken_call_reaches_vllm(self) -> None:
        names = "open hit load release_hit computed finished settle take_work busy close reset"
        for name in names.split():
            with self.subTest(name), self.assertLogs("blockyard.vllm", "WARNING"):
                self.session = FakeSession()
                self.make()
                self.session.broken, self.session.answer = name, Hit(1, b"\1")
                req = self.open(8)
                n, _ = self.side.get_num_new_matched_tokens(req, 0)
                self.alloc(req, n or 0, [1, 2])
                other = self.open(8)
                self.side.get_num_new_matched_tokens(other, 0)
                self.alloc(other, 0, [1, 2])
                self.side.build_connector_meta(step([(req, [[1, 2]])]))
                self.advance(req, 8)
                self.side.build_connector_meta(step(cached=[(req, [[3]])]))
                report = WorkerReport(Done({1: [1, 0]}))
                self.side.update_connector_output(Bag(kv_connector_worker_meta=report))
                self.side.busy()
                self.side.request_finished(req, [[1, 2]])
                self.assertTrue(self.side.reset_cache())
                self.side.shutdown()
                self.assertEqual(self.side.faults.counts.total() > 0, True)

    def test_a_promised_load_that_breaks_is_reported_as_failed(self) -> None:
        self.session.broken, self.session.answer = "load", Hit(1, b"\1")
        req = self.open(8)
        self.side.get_num_new_matched_tokens(req, 0)
        with self.assertLogs("blockyard.vllm", "ERROR"):
            self.alloc(req, 4, [1])
        self.assertEqual(self.session.take("fail_load"), [(req.request_id,)])
        self.assertEqual(self.session.take("finished"), [(req.request_id,)])

    def test_each_kind_is_logged_once(self) -> None:
        self.session.broken = "open"
        with self.assertLogs("blockyard.vllm", "ERROR") as caught:
            for _ in range(5):
                self.open(8)
        self.assertEqual(len(caught.records), 1)
        self.assertEqual(self.side.faults.counts["on_new_request: RuntimeError"], 5)

    def test_turned_off_it_answers_and_begins_nothing(self) -> None:
        req = self.open(8)
        with self.assertLogs("blockyard.vllm", "WARNING"):
            self.side.turn_off("test")
        self.assertEqual(self.session.take("finished"), [(req.request_id,)])
        self.assertEqual(self.session.take("close"), [()])
        self.assertEqual(self.side.get_num_new_matched_tokens(req, 0), NO_HIT)
        self.alloc(req, 0, [1])
        self.assertIs(self.side.build_connector_meta(step([(req, [[1]])])), EMPTY)
        self.side.update_connector_output(Bag(kv_connector_worker_meta=None))
        self.side.request_finished(req, [[1]])
        self.open(8)
        self.assertTrue(self.side.reset_cache())
        self.assertEqual([c for c in self.session.calls if c[0] != "open"], [])

    def test_turned_off_it_settles_what_is_in_flight(self) -> None:
        """The engine keeps stepping, and the end of the copies drops their references."""
        with self.assertLogs("blockyard.vllm", "WARNING"):
            self.side.turn_off("test")
        self.assertTrue(self.side.busy())
        report = WorkerReport(Done({1: [1, 0]}))
        self.side.update_connector_output(Bag(kv_connector_worker_meta=report))
        self.assertEqual(len(self.session.take("settle")), 1)

    def test_turned_off_between_a_promise_and_its_load_vllm_hears_of_a_failure(self) -> None:
        first, second = self.open(8), self.open(8)
        self.session.answer = Hit(1, b"\1")
        for req in (first, second):
            self.side.get_num_new_matched_tokens(req, 0)
        self.alloc(first, 4, [1])
        self.session.work = Work([Load(1, first.request_id, b"", b"")])
        with self.assertLogs("blockyard.vllm", "WARNING"):
            self.side.turn_off("test")
        self.alloc(second, 4, [2])
        metadata = self.side.build_connector_meta(step())
        self.assertEqual([load.rid for load in metadata.work.loads], [first.request_id])
        self.assertEqual(self.session.take("fail_load"), [(second.request_id,)])
        self.assertIs(self.side.build_connector_meta(step()), EMPTY)


class Records(unittest.TestCase):
    def test_metadata_survives_pickling_and_an_empty_one_is_small(self) -> None:
        sent = StepMetadata(Work([Load(1, "r", b"s", b"b")], []))
        got = pickle.loads(pickle.dumps(sent))
        self.assertEqual(got.work.loads, sent.work.loads)
        self.assertLess(len(pickle.dumps(EMPTY)), 200)

    def test_reports_of_workers_are_summed(self) -> None:
        report = WorkerReport(None).aggregate(WorkerReport(Done({1: [1, 0]})))
        report = report.aggregate(WorkerReport(Done({1: [0, 1], 2: [1, 0]})))
        self.assertEqual(report.done.jobs, {1: [1, 1], 2: [1, 0]})
        report.aggregate(WorkerReport(None, (), (Mapped(1, 2, 3, b"4"),)))
        report.aggregate(WorkerReport(None, (), (Mapped(5, 2, 3, b"6"),)))
        read = pickle.loads(pickle.dumps(report))
        self.assertEqual(read.done.jobs, report.done.jobs)
        self.assertEqual(read.mapped, (Mapped(1, 2, 3, b"4"), Mapped(5, 2, 3, b"6")))


if __name__ == "__main__":
    unittest.main()
