"""The worker role: registration, copies of a step, and reports."""

from __future__ import annotations

import pickle
import unittest
from typing import Any

from blockyard.frames import RegisterFields
from blockyard.settings import Settings
from blockyard.work import Done, Load, Mapped, Store, Work
from tests import vllm_fakes as fakes
from tests.effort import instructions
from tests.vllm_fakes import FakeTensor, full, kv_config, vllm_config

fakes.require_vllm()

from blockyard.vllm.geometry import Ranks  # noqa: E402
from blockyard.vllm.records import EMPTY, StepMetadata  # noqa: E402
from blockyard.vllm.worker import VllmWorker  # noqa: E402

BLOCKS = 16
PAGE = 32 * 4 * 4
LOAD = Load(1, "r1", b"slots", b"blocks")
STORE = Store(2, b"slots", b"blocks")


class FakeSession:
    """A WorkerSession. The test ends its jobs."""

    def __init__(self) -> None:
        self.begun: list[Work] = []
        self.finished: tuple[set[str], set[str]] = (set(), set())
        self.ended: Done | None = None
        self.new_mapped: Mapped | None = None
        self.waited = 0
        self.looks = 0
        self.silent = False
        self.load_waits: list[float] = []
        self.closed = False

    @property
    def news(self) -> int:
        """Another number at each look, unless the session is silent."""
        self.looks += not self.silent
        return self.looks

    def begin(self, work: Work) -> None:
        self.begun.append(work)

    def await_load(self, seconds: float) -> None:
        self.load_waits.append(seconds)

    def finished_loads(self) -> tuple[set[str], set[str]]:
        result, self.finished = self.finished, (set(), set())
        return result

    def done(self) -> Done | None:
        result, self.ended = self.ended, None
        return result

    def mapped(self) -> Mapped | None:
        result, self.new_mapped = self.new_mapped, None
        return result

    def wait(self, timeout: float) -> bool:
        self.waited += 1
        return True

    def close(self) -> None:
        self.closed = True


    def expects(self, rid: str) -> bool:
        return any(load.rid == rid for work in self.begun for load in work.loads)


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.session = FakeSession()
        self.opened: list[tuple] = []
        self.config = vllm_config()
        self.kv = kv_config((full(), ["a", "b"]), blocks=BLOCKS, kv_tp_replicas=1)
        self.tensors = {
            "a": FakeTensor((BLOCKS, 32, 4), base=1 << 20),
            "b": FakeTensor((BLOCKS, 32, 4), base=1 << 21),
        }
        self.make()

    def make(self, ranks: Ranks | None = None, reason: str = "", stages: Any = None) -> None:
        def open_session(*args: Any) -> FakeSession:
            self.opened.append(args)
            return self.session

        self.side = VllmWorker(
            Settings(),
            self.config,
            self.kv,
            reason,
            open_session,
            lambda replicas: ranks or Ranks(),
            stages or (lambda own: [own]),
        )
        self.side.register_kv_caches(self.tensors)

    def begin(self, *jobs: Any) -> None:
        loads = [job for job in jobs if isinstance(job, Load)]
        stores = [job for job in jobs if isinstance(job, Store)]
        metadata = StepMetadata(Work(loads, stores))
        self.side.begin(metadata)  # before the forward pass
        self.side.begin(metadata)  # after the forward pass, with the same metadata


class Registration(Case):
    def test_one_worker_has_the_whole_block(self) -> None:
        ((device, pages, register, share, grouped),) = self.opened
        self.assertFalse(grouped)
        self.assertEqual(device, "cpu")
        self.assertEqual(register, RegisterFields(BLOCKS, 2 * PAGE, 0))
        self.assertEqual([page.offset for page in pages], [0, PAGE])
        handshake = self.side.take_handshake()
        self.assertEqual((handshake.total_bytes, handshake.problem), (2 * PAGE, ""))
        self.assertIsNone(self.side.take_handshake())

    def test_a_worker_of_an_uneven_pipeline_begins_behind_the_others(self) -> None:
        self.make(Ranks(1, 2, 1, 2), stages=lambda own: [3 * PAGE, own])
        register = self.opened[-1][2]
        self.assertEqual(register, RegisterFields(BLOCKS, 2 * PAGE, 2 * 3 * PAGE + 2 * PAGE))
        self.assertEqual(self.side.take_handshake().total_bytes, 2 * (3 * PAGE + 2 * PAGE))

    def test_a_worker_that_cannot_take_part_says_so_to_its_stage_mates_too(self) -> None:
        asked = []
        self.tensors = {"a": FakeTensor((BLOCKS + 1, 32, 4))}
        with self.assertLogs("blockyard.vllm", "ERROR"):
            self.make(stages=lambda own: asked.append(own) or [own])
        self.assertEqual(asked, [0])
        self.assertIn("no axis of 16 blocks", self.side.take_handshake().problem)

    def test_stages_that_cannot_be_asked_keep_it_off(self) -> None:
        def broken(own: int) -> list[int]:
            raise ConnectionError("a stage has gone")

        with self.assertLogs("blockyard.vllm", "ERROR"):
            self.make(stages=broken)
        self.assertIn("a stage has gone", self.side.take_handshake().problem)

    def test_another_stage_that_cannot_take_part(self) -> None:
        with self.assertLogs("blockyard.vllm", "ERROR"):
            self.make(Ranks(0, 1, 0, 2), stages=lambda own: [own, 0])
        self.assertIn("another", self.side.take_handshake().problem)

    def test_off_it_opens_nothing_and_fails_what_it_is_given(self) -> None:
        self.make(reason="it is disabled")
        self.assertEqual(len(self.opened), 1, "the first one only")
        self.assertEqual(self.side.take_handshake().problem, "it is disabled")
        self.begin(LOAD, STORE)
        self.assertEqual(self.side.transfer_results(), ({"r1"}, {"r1"}))
        self.assertEqual(self.side.report().done.jobs, {2: [0, 1]})

    def test_what_the_worker_can_read_goes_with_the_next_report(self) -> None:
        self.side.report()  # takes the handshake
        self.assertIsNone(self.side.report())
        self.session.new_mapped = Mapped(1, 2, 3, b"")
        self.assertEqual(self.side.report().mapped, (Mapped(1, 2, 3, b""),))
        self.assertIsNone(self.side.report())

    def test_a_handshake_that_vllm_does_not_take_goes_with_the_first_report(self) -> None:
        report = self.side.report()
        self.assertEqual(len(report.handshakes), 1)
        self.assertIsNone(self.side.report())


class Copies(Case):
    def setUp(self) -> None:
        super().setUp()
        self.side.take_handshake()

    def test_a_step_begins_once_though_vllm_shows_it_twice(self) -> None:
        self.begin(LOAD, STORE)
        self.assertEqual([(w.loads, w.stores) for w in self.session.begun], [([LOAD], [STORE])])

    def test_results_are_passed_on_once(self) -> None:
        self.session.finished = ({"r1", "r2"}, {"r2"})
        self.session.ended = Done({1: [1, 0]})
        self.assertEqual(self.side.transfer_results(), ({"r1", "r2"}, {"r2"}))
        self.assertEqual(self.side.transfer_results(), (set(), set()))
        self.assertEqual(self.side.report().done.jobs, {1: [1, 0]})
        self.assertIsNone(self.side.report())

    def test_copies_that_do_not_end_keep_vllm_from_taking_their_memory(self) -> None:
        self.session.wait = lambda timeout: False  # type: ignore[assignment]
        with self.assertRaisesRegex(RuntimeError, "cannot sleep"):
            self.side.suspend()
        self.begin(LOAD)
        self.assertEqual(len(self.session.begun), 1, "the engine goes on, awake")

    def test_replicated_kv_is_stored_by_one_rank_and_loaded_by_all(self) -> None:
        self.make(Ranks(1, 2, 0, 1, replicas=2))
        self.side.take_handshake()
        self.begin(LOAD, STORE)
        self.assertEqual([(w.loads, w.stores) for w in self.session.begun], [([LOAD], [])])
        self.assertEqual(self.side.report().done.jobs, {2: [1, 0]})

    def test_asleep_it_copies_nothing_and_wakes_with_what_was_asked(self) -> None:
        self.side.suspend()
        self.assertEqual(self.session.waited, 1)
        self.begin(LOAD, STORE)
        self.assertEqual(self.session.begun, [])
        self.assertEqual(self.side.report().done.jobs, {2: [0, 1]}, "their KV is gone")
        self.side.resume()
        self.side.resume()
        self.assertEqual(len(self.session.begun), 1)

    def test_faults_stay_inside(self) -> None:
        self.session.begin = lambda work: 1 / 0  # type: ignore[assignment]
        self.session.finished_loads = lambda: 1 / 0  # type: ignore[assignment]
        self.session.done = lambda: 1 / 0  # type: ignore[assignment]
        with self.assertLogs("blockyard.vllm", "ERROR"):
            self.begin(LOAD)
            self.assertEqual(self.side.transfer_results(), (set(), set()))
            self.assertIsNone(self.side.report())

    def test_metadata_of_others_is_ignored(self) -> None:
        self.side.begin(None)
        self.side.begin(object())
        self.assertEqual(self.session.begun, [])

    def test_only_a_step_that_computes_nothing_waits_for_a_load(self) -> None:
        for metadata, waits in (
            (StepMetadata(Work([Load(1, "r1", b"", b"")])), 0),
            (StepMetadata(Work([Load(2, "r2", b"", b"")]), idle=True), 1),
            (StepMetadata(idle=True), 2),
            (EMPTY, 2),
        ):
            metadata = pickle.loads(pickle.dumps(metadata))
            self.side.begin(metadata)
            self.side.begin(metadata)
            self.side.transfer_results()
            self.side.transfer_results()
            self.assertEqual(len(self.session.load_waits), waits)
        self.assertLessEqual(max(self.session.load_waits), 0.002)

    def test_a_step_waits_for_its_short_loads_and_names_the_blocks_of_those_that_fail(self) -> None:
        results = [
            ({"other"}, set()),
            ({"good", "failed"}, {"failed"}),
            ({"other-failed"}, {"other-failed"}),
        ]
        self.session.finished_loads = lambda: results.pop(0)  # type: ignore[assignment]
        self.session.silent = True
        loads = [Load(n, rid, b"", b"") for n, rid in enumerate(("good", "failed"), 1)]
        named = (("good", (1, 2)), ("failed", (3, 4)), ("unknown", (5,)))
        metadata = pickle.loads(pickle.dumps(StepMetadata(Work(loads), short=named)))
        self.side.begin(metadata)  # handle_preemptions
        self.side.load(metadata)
        self.assertEqual(len(self.session.begun), 1)
        self.assertEqual(len(self.session.load_waits), 1)
        # Requests of short loads run, so vLLM must not hear that they have been received.
        self.assertEqual(
            self.side.transfer_results(), ({"other", "other-failed"}, {"other-failed"})
        )
        self.assertEqual(self.side.invalid_blocks(), {3, 4, 5})
        self.assertEqual(self.side.invalid_blocks(), set())
        self.assertEqual(self.side.transfer_results(), (set(), set()))

    def test_a_short_load_cannot_wait_for_a_worker_that_sleeps_or_is_off(self) -> None:
        def step() -> tuple[set[int], Any]:
            named = ((LOAD.rid, (7,)),)
            self.side.load(StepMetadata(Work([LOAD], []), short=named))
            return self.side.invalid_blocks(), self.side.report().done.jobs

        self.side.suspend()
        self.assertEqual(step(), ({7}, {1: [0, 1]}))
        self.side.resume()
        self.assertEqual(self.session.begun, [], "it was not held")
        self.make(reason="it is disabled")
        self.assertEqual(step(), ({7}, {1: [0, 1]}))
        self.assertEqual(self.side.transfer_results(), (set(), set()))

    def test_a_session_that_breaks_fails_the_short_loads(self) -> None:
        self.session.begin = lambda work: 1 / 0  # type: ignore[assignment]
        with self.assertLogs("blockyard.vllm", "ERROR"):
            self.side.load(StepMetadata(Work([LOAD], []), short=((LOAD.rid, (7,)),)))
        self.assertEqual(self.side.invalid_blocks(), {7})

    def test_a_rank_of_data_parallelism_lets_no_other_rank_wait(self) -> None:
        self.config = vllm_config()
        self.config.parallel_config.data_parallel_size = 2
        self.make()
        self.side.begin(StepMetadata(idle=True))
        self.side.transfer_results()
        self.assertEqual(self.session.load_waits, [])

    def test_an_empty_step_costs_little(self) -> None:
        def empty() -> None:
            self.side.begin(EMPTY)
            self.side.begin(EMPTY)
            self.side.transfer_results()
            self.side.report()
            self.side.stats()

        self.side.take_handshake()
        self.session.silent = True
        empty()
        self.assertLess(instructions(empty), 170)

    def test_shutdown_closes_the_session(self) -> None:
        self.side.shutdown()
        self.side.shutdown()
        self.assertTrue(self.session.closed)


if __name__ == "__main__":
    unittest.main()
