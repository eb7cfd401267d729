"""TensorRT-LLM: a load that fails on one rank ends the engine on all ranks, in the same call.

Each rank is a thread. A barrier stands for the collective operation in which the engine gathers the
results of get_finished() of all ranks. A rank that raises early leaves the others waiting there.
"""

from __future__ import annotations

import threading
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from blockyard.packed import pack_slots, unpack_slots
from blockyard.trtllm import copies as copies_module
from blockyard.work import Work
from tests import planes
from tests.agentproc import needs_agent, wait_until
from tests.trtllm_case import Case, prompt, worker_module

SECONDS = 20.0


@planes.both
@needs_agent
class Ranks(Case):
    """Two ranks with a load. fail() makes the load fail on rank 1."""

    def setUp(self) -> None:
        super().setUp()
        self.engine_ = self.engine(world=2)
        self.run_to_end(self.engine_, self.request(prompt(1)))
        self.stored(4)
        self.workers = self.engine_.workers
        self.copies = [worker._copies for worker in self.workers]
        self.gathered = threading.Barrier(2)
        self.raised: dict[int, tuple[int, str]] = {}
        self.held: list[tuple[Work, object]] = []
        session = self.copies[1]._session
        self.begin = session.begin
        patches = [
            mock.patch.object(copies_module, "RETRY_SECONDS", ()),
            # Otherwise the agent's LOAD begins the copy.
            mock.patch.object(session, "_early", False),
            mock.patch.object(session, "begin", lambda *work: self.held.append(work)),
        ]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        session._wake_up()  # its thread may wait with the old value
        with mock.patch.object(self.engine_, "_collect"):
            self.engine_.submit(self.request(prompt(1)))
            wait_until("the load begins", lambda: self.engine_.step() or self.held)
        self.started = list(self.engine_.started)
        self.assertEqual(len(self.started), 1)

    def fail(self) -> None:
        """Makes rank 1 load slots with another generation than theirs."""
        for work, fence in self.held:
            wrong = []
            for load in work.loads:
                slots = [slot._replace(generation=99) for slot in unpack_slots(load.slots)]
                wrong.append(load._replace(slots=pack_slots(slots)))
            self.begin(Work(wrong), fence)

    def rank(self, rank: int, before: Callable[[int, int], None]) -> None:
        started = self.started
        for call in range(1000):
            before(rank, call)
            try:
                self.workers[rank].get_finished([], started)
            except worker_module.LoadFailed as err:
                self.raised[rank] = (call, str(err))
                return
            started = []
            self.gathered.wait(SECONDS)

    def run_ranks(self, before: Callable[[int, int], None]) -> None:
        threads = [
            threading.Thread(target=self.rank, args=(rank, before), daemon=True)
            for rank in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * SECONDS)
        self.assertFalse(self.gathered.broken, "a rank was left alone")
        self.assertEqual(self.raised.keys(), {0, 1})
        self.assertEqual(self.raised[0][0], self.raised[1][0])

    def knows(self, rank: int) -> Callable[[], bool]:
        return lambda: self.workers[rank]._failure_reported

    def test_both_raise_in_the_same_call(self) -> None:
        def before(rank: int, call: int) -> None:
            if (rank, call) == (1, 3):
                self.fail()

        self.run_ranks(before)
        self.assertGreaterEqual(self.raised[0][0], 3)
        self.assertIn("another rank could not load", self.raised[0][1])
        self.assertIn("a copy failed 1 times", self.raised[1][1])

    def test_a_rank_that_is_a_call_ahead_is_not_left_there(self) -> None:
        """Rank 0 has answered call 3. Rank 1 has not begun call 3, and gets the failure."""

        def before(rank: int, call: int) -> None:
            if (rank, call) == (1, 3):
                wait_until("rank 0 waits for rank 1", lambda: self.gathered.n_waiting == 1)
                self.fail()
                wait_until("both know", lambda: self.knows(0)() and self.knows(1)())

        self.run_ranks(before)
        self.assertEqual(self.raised[0][0], 4)

    def held_call(self) -> tuple[threading.Thread, list[str]]:
        """Begins a call of rank 0 that waits for the agreement."""
        said: list[str] = []

        def call() -> None:
            try:
                self.workers[0].get_finished([], self.started)
            except worker_module.LoadFailed as err:
                said.append(str(err))

        self.fail()
        wait_until("rank 0 knows", self.knows(0))
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        return thread, said

    def no_agreement(self, seconds: float) -> Any:
        dispatch = self.engine_.leader._hub.dispatch
        return (
            mock.patch.object(dispatch, "agree"),
            mock.patch.object(worker_module, "AGREE_SECONDS", seconds),
        )

    def test_without_an_agreement_each_raises_by_itself(self) -> None:
        agree, seconds = self.no_agreement(0.01)
        with agree, seconds:
            thread, said = self.held_call()
            thread.join(SECONDS)
        self.assertIn("did not agree", said[0])

    def test_nobody_waits_for_a_leader_that_is_gone(self) -> None:
        agree, seconds = self.no_agreement(1000.0)
        with agree, seconds, self.assertLogs("blockyard", "ERROR"):
            thread, said = self.held_call()
            self.engine_.leader.shutdown()
            thread.join(SECONDS)
        self.assertEqual(len(said), 1)


if __name__ == "__main__":
    unittest.main()
