"""The sender of each of the scheduler's frames, and the order of frames."""

from __future__ import annotations

import sys
import threading
import unittest
from unittest import mock

from blockyard import frames, keeper
from tests.agentproc import AgentProcess, needs_agent, wait_until
from tests.schedrig import Rig
from tests.test_scheduler import TOKENS
from tests.test_scheduler_faults import IDS, FaultDesk


class Order(FaultDesk):
    """The frames of the keeper and of the engine's thread."""

    def test_a_frame_whose_answer_is_waited_for_goes_behind_those_left_to_the_keeper(self) -> None:
        self.offer()
        self.session.finished("a")
        self.session.computed("a", 0, 3, [IDS])
        self.session.open("b", 0, list(TOKENS))
        self.connection.must(frames.RELEASE, frames.encode_release(9, 0, 0, 1))
        self.assertEqual(list(self.link.sent)[-1][0], frames.LOOKUP, "RELEASE waits")
        self.session.open("c", 0, list(TOKENS))
        kinds = [frames.name(kind) for kind, _, _ in self.link.sent]
        self.assertEqual(kinds, ["OPEN", "LOOKUP", "RELEASE", "OPEN", "LOOKUP"])

    def test_many_frames_before_it_are_sent_by_the_keeper_in_order(self) -> None:
        for number in range(8):
            self.connection.must(frames.CLOSE, frames.encode_close(100 + number, 0))
        with mock.patch.object(self.connection, "_wake") as wake:
            self.session.open("a", 0, list(TOKENS))
        self.assertTrue(wake.called)
        self.assertEqual(list(self.link.sent), [], "a hook has no time for so many")
        self.assertEqual(self.sent(), ["CLOSE"] * 8 + ["OPEN", "LOOKUP"])

    def test_a_claim_does_not_wait_for_others(self) -> None:
        self.store("a", TOKENS)
        self.session.open("b", 0, list(TOKENS))
        self.assertEqual(self.hit("b"), 3)
        for number in range(300):
            self.connection.must(frames.CLOSE, frames.encode_close(100 + number, 0))
        self.assertTrue(self.session.load("b", 0, 0, [[1, 2, 3]]))
        self.assertEqual([kind for kind, _, _ in self.link.sent], [frames.CLAIM])

    def test_nothing_follows_bye(self) -> None:
        self.connection.say_bye("test")
        self.connection.must(frames.CLOSE, frames.encode_close(1, 0))
        self.assertFalse(self.connection.later(frames.CLOSE, frames.encode_close(1, 0)))
        self.assertEqual(self.sent(), ["BYE"])

    def test_threads_that_send_at_once_lose_and_swap_nothing(self) -> None:
        """One thread queues and sends frames, like a hook. The other sends, like the keeper."""
        stop = threading.Event()
        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        sys.setswitchinterval(1e-6)

        def send() -> None:
            while not stop.is_set():
                self.connection.flush()

        thread = threading.Thread(target=send)
        thread.start()
        try:
            for number in range(5000):
                body = frames.encode_close(number, 0)
                if number % 3:
                    self.connection.must(frames.CLOSE, body)
                else:
                    wait_until("room", lambda: self.connection.tell(frames.CLOSE, body))
        finally:
            stop.set()
            thread.join()
        self.connection.flush()
        numbers = [body["req"] for _, _, body in self.link.sent]
        self.assertEqual(numbers, list(range(5000)))

    def test_a_keeper_that_sleeps_is_woken_once(self) -> None:
        with mock.patch.object(self.connection, "_wake") as wake:
            self.connection.asleep = True
            for _ in range(3):
                self.connection.must(frames.CLOSE, frames.encode_close(1, 0))
        self.assertEqual(wake.call_count, 1)


@needs_agent
class IdleEngine(unittest.TestCase):
    def test_what_the_last_hook_left_is_sent_and_answered_without_another(self) -> None:
        """A frame wakes the sleeping keeper."""
        with AgentProcess() as agent, mock.patch.object(keeper, "_BUSY_SECONDS", 0.01):
            rig = Rig(agent, stats=False)  # STATS would end the keeper's sleep
            self.addCleanup(rig.close)
            rig.connect()
            connection = rig.session._attachment.connection
            limit = mock.patch.object(keeper, "_MAX_BACKOFF", 3600)  # of the sleep
            limit.start()
            self.addCleanup(limit.stop)
            for turn in range(1, 6):
                tokens = list(range(1000 * turn, 1000 * turn + 40))
                rig.session.open("a", 0, tokens)
                rig.hit("a")
                rig.session.computed("a", 0, 10, [rig.fill(tokens)])
                work = wait_until("the grant", rig.session.take_work)
                wait_until("the keeper sleeps", lambda: connection.asleep)
                rig.session.settle(rig.worker.copy(work))
                rig.session.finished("a")
                self.assertFalse(rig.session.busy())
                wait_until("OK of COMMIT", lambda: len(connection.inbox) > 0)
                self.assertFalse(connection.backlog)
                rig.session.take_work()
                self.assertEqual(rig.session.stats()["stored_blocks"], 10 * turn)


if __name__ == "__main__":
    unittest.main()
