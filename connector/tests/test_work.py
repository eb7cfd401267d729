"""The records between scheduler and workers."""

from __future__ import annotations

import pickle
import unittest

from blockyard.work import EMPTY_WORK, Done, Load, Store, Work


class WorkTest(unittest.TestCase):
    def test_a_step_without_copies_is_false(self) -> None:
        self.assertFalse(EMPTY_WORK)
        self.assertTrue(Work(loads=[Load(1, "a", b"", b"")]))
        self.assertTrue(Work(stores=[Store(1, b"", b"")]))

    def test_work_survives_pickling(self) -> None:
        work = Work([Load(1, "a", b"s", b"b")], [Store(2**63, b"s", b"b")])
        got = pickle.loads(pickle.dumps(work))
        self.assertEqual((got.loads, got.stores), (work.loads, work.stores))
        self.assertEqual(got.loads[0].rid, "a")
        self.assertLess(len(pickle.dumps(work)), 200)

    def test_reports_add_up_over_workers(self) -> None:
        first, second = Done(), Done()
        self.assertFalse(first)
        first.add(1, True)
        first.add(2, False)
        second.add(1, True)
        second.add(3, True)
        first.merge(second)
        self.assertEqual(first.jobs, {1: [2, 0], 2: [0, 1], 3: [1, 0]})
        self.assertEqual(second.jobs, {1: [1, 0], 3: [1, 0]}, "what is merged stays as it is")
        self.assertEqual(pickle.loads(pickle.dumps(first)).jobs, first.jobs)


if __name__ == "__main__":
    unittest.main()
