"""The results of requests' loads, and the engine's wait for them."""

from __future__ import annotations

import threading
import time
import unittest

from blockyard.ended import NO_LOADS, EndedLoads
from blockyard.work import Load

FOREVER = 60.0


def load(job: int, rid: str) -> Load:
    return Load(job, rid, b"", b"")


class Results(unittest.TestCase):
    def setUp(self) -> None:
        self.ended = EndedLoads()

    def begin(self, *loads: Load) -> None:
        """Both threads learn of the loads of one step."""
        self.ended.begin(list(loads))
        for one in loads:
            self.ended.expect(one)

    def test_a_request_ends_once_with_its_last_job(self) -> None:
        self.begin(load(1, "a"), load(2, "a"), load(3, "b"))
        self.ended.end(1, False)
        self.ended.end(3, True)
        self.ended.end(4, True)  # a store
        self.assertEqual(self.ended.take(), ({"b"}, set()))
        self.ended.end(2, True)
        self.assertEqual(self.ended.take(), ({"a"}, {"a"}))
        self.assertEqual(self.ended.take(), NO_LOADS)

    def test_jobs_that_ended_before_the_engine_named_them(self) -> None:
        loads = [load(1, "a"), load(2, "b")]
        self.ended.begin(loads)
        for one, ok in zip(loads, (True, False)):
            self.ended.expect_ended(one, ok)
            self.ended.report_if_ended(one.rid)
        self.assertEqual(self.ended.take(), ({"a", "b"}, {"b"}))

    def test_without_a_load_nobody_waits(self) -> None:
        began = time.monotonic()
        self.ended.wait(FOREVER)
        self.begin(load(1, "a"))
        self.ended.end(1, True)
        self.ended.wait(FOREVER)  # the result is there
        self.ended.take()
        self.ended.wait(FOREVER)  # and is taken
        self.assertLess(time.monotonic() - began, FOREVER)

    def test_the_end_of_a_load_ends_the_wait(self) -> None:
        for number in range(200):
            self.begin(load(number, "a"))
            thread = threading.Thread(target=self.ended.end, args=(number, True))
            thread.start()
            self.ended.wait(FOREVER)
            self.assertEqual(self.ended.take(), ({"a"}, set()))
            thread.join()

    def test_the_wait_has_an_end(self) -> None:
        self.begin(load(1, "a"))
        self.ended.wait(0.001)
        self.assertEqual(self.ended.take(), NO_LOADS)


if __name__ == "__main__":
    unittest.main()
