"""The decision between a load and a computation, and the measurements behind it."""

from __future__ import annotations

import unittest

from blockyard.pace import (
    MOST_BLOCKS,
    PROBE,
    Curve,
    Pace,
    prefill_seconds,
    rest_seconds,
    seconds_at,
    worth_loading,
)

TOKENS = 16  # of a block
STEP = 1024
# Steps: 2 ms up to 64 tokens, then 0.1 ms a token. Loads: 5 ms, and 0.1 ms a block.
STEPS = [(1.0, 0.002), (64.0, 0.002), (1024.0, 0.098)]
LOADS = [(1.0, 0.0051), (32.0, 0.0082)]


def worth(blocks: int, tokens: int, beside: int = 0) -> bool:
    return worth_loading(LOADS, STEPS, blocks, blocks * TOKENS, tokens, beside, STEP)


class Decision(unittest.TestCase):
    def test_a_short_hit_is_computed_and_a_long_one_is_loaded(self) -> None:
        self.assertFalse(worth(1, 200))
        self.assertFalse(worth(3, 200))
        self.assertTrue(worth(5, 200))
        self.assertTrue(worth(30, 1000))

    def test_tokens_that_a_step_computes_for_nothing_save_nothing(self) -> None:
        self.assertFalse(worth(3, 50))

    def test_requests_beside_make_the_same_tokens_dearer(self) -> None:
        self.assertFalse(worth(4, 65))
        self.assertTrue(worth(4, 65, beside=64))

    def test_a_prompt_over_several_steps_counts_each_step(self) -> None:
        one = prefill_seconds(STEPS, STEP, 0, STEP)
        self.assertAlmostEqual(prefill_seconds(STEPS, 3 * STEP, 0, STEP), 3 * one)
        self.assertEqual(prefill_seconds(STEPS, 0, 0, STEP), 0.0)

    def test_without_measurements_every_hit_is_loaded(self) -> None:
        for loads, steps in (((), STEPS), (LOADS, ()), ((), ())):
            self.assertTrue(worth_loading(loads, steps, 1, TOKENS, 50, 0, STEP))

    def test_a_hit_of_many_blocks_is_loaded_whatever_was_measured(self) -> None:
        slow = [(1.0, 1e6)]
        for blocks, want in ((MOST_BLOCKS - 1, False), (MOST_BLOCKS, True)):
            hit = blocks * TOKENS
            self.assertIs(worth_loading(slow, STEPS, blocks, hit, hit + 1, 0, STEP), want)


class Rest(unittest.TestCase):
    def test_only_a_request_that_is_alone_may_keep_the_engine_waiting(self) -> None:
        self.assertGreater(rest_seconds(1, 8192, 1), 0)
        self.assertEqual(rest_seconds(2, 8192, 1), 0)
        self.assertEqual(rest_seconds(1, 100_000, 1), 0)

    def test_a_rank_of_data_parallelism_lets_no_other_rank_wait(self) -> None:
        self.assertEqual(rest_seconds(1, 8192, 2), 0)


class Curves(unittest.TestCase):
    def test_too_few_samples_are_no_curve(self) -> None:
        curve = Curve()
        curve.add(1, 1.0)
        curve.add(9, 1.0)
        self.assertFalse(curve.line())
        curve.add(1, 1.0)
        self.assertEqual(curve.line(), [(1.0, 1.0), (9.0, 1.0)])

    def test_an_average_follows_a_change_and_not_an_outlier(self) -> None:
        curve = Curve()
        for _ in range(20):
            curve.add(4, 1.0)
        curve.add(4, 1000.0)
        ((_, seconds),) = curve.line()
        self.assertLess(seconds, 1.5)
        for _ in range(60):
            curve.add(4, 3.0)
        ((_, seconds),) = curve.line()
        self.assertAlmostEqual(seconds, 3.0, places=2)

    def test_a_larger_size_takes_no_less_time(self) -> None:
        curve = Curve()
        for size, seconds in ((1, 5.0), (8, 3.0), (64, 9.0)):
            curve.add(size, seconds)
        self.assertEqual([seconds for _, seconds in curve.line()], [5.0, 5.0, 9.0])

    def test_between_and_beyond_the_points(self) -> None:
        line = [(10.0, 1.0), (20.0, 2.0)]
        self.assertEqual(seconds_at(line, 1, True), 1.0)
        self.assertEqual(seconds_at(line, 15, True), 1.5)
        self.assertEqual(seconds_at([(10.0, 1.0), (20.0, 1.5)], 40, True), 3.0)
        self.assertEqual(seconds_at([(10.0, 1.0), (20.0, 1.5)], 40, False), 2.5)
        self.assertEqual(seconds_at([(10.0, 1.0)], 40, False), 1.0)


def measured(fixed: int = 0) -> Pace:
    """A Pace that has seen steps of 1 ms and 0.1 ms a token, and loads of 20 ms."""
    pace, now = Pace(fixed, TOKENS, STEP), 0.0
    for number in range(12):
        for tokens in (1, 64, 512):
            pace.begin_step(tokens, 1, now)
            now += 0.001 + tokens * 0.0001
            pace.end_step(now)
        pace.begin_load(str(number), 1 + number, now)
        pace.begin_step(1, 1, now)
        pace.end_step(now + 0.0011)
        now += 0.02
        pace.end_load(str(number), True, now)
    return pace


class Measuring(unittest.TestCase):
    def test_a_new_engine_loads_every_hit(self) -> None:
        pace = Pace(0, TOKENS, STEP)
        self.assertTrue(pace.accepts(1, 20))
        self.assertEqual(pace.least_blocks(), 1)

    def test_measured_times_decide(self) -> None:
        pace = measured()
        self.assertFalse(pace.accepts(1, 500))
        self.assertTrue(pace.accepts(20, 500))
        self.assertEqual(pace.declined, 1)
        self.assertEqual([pace.least_blocks() for _ in range(6)], [2, 4, 8, 16, 16, 16])

    def test_the_shown_minimum_falls_when_loads_become_faster(self) -> None:
        pace = measured()
        for _ in range(6):
            pace.least_blocks()
        for number in range(40):
            for blocks in (1, 2, 4, 8):
                pace.begin_load(str(number), blocks, 100.0)
                pace.end_load(str(number), True, 100.0001)
        self.assertEqual([pace.least_blocks() for _ in range(6)], [8, 4, 2, 1, 1, 1])

    def test_a_number_of_the_user_replaces_the_measurement(self) -> None:
        pace = measured(fixed=3)
        self.assertTrue(pace.accepts(3, 500))
        self.assertEqual((pace.declined, pace.least_blocks()), (0, 3))

    def test_one_declined_hit_in_many_is_loaded(self) -> None:
        pace = measured()
        self.assertEqual(sum(pace.accepts(1, 500) for _ in range(4 * PROBE)), 4)

    def test_a_faster_load_is_noticed(self) -> None:
        pace, now = measured(), 100.0
        for number in range(40 * PROBE):
            if pace.accepts(1, 500):
                pace.begin_load(str(number), 1, now)
                pace.end_load(str(number), True, now + 0.0001)
        self.assertTrue(pace.accepts(1, 500))
        self.assertLess(pace.declined, 40 * PROBE)

    def test_a_copy_within_a_step_must_be_shorter_than_the_step_that_it_saves(self) -> None:
        pace = measured()
        self.assertFalse(pace.fits_step(1, alone=True), "no copy was measured")
        for _ in range(3):
            pace.copies.add(10, 0.001)  # 0.1 ms a block
        step = seconds_at(pace.steps.line(), 1, True)
        fits = int(step / 0.0001)
        self.assertGreaterEqual(fits, 10)
        self.assertTrue(pace.fits_step(fits - 1, alone=False))
        self.assertFalse(pace.fits_step(fits + 1, alone=False))
        # Alone in the engine, a longer copy delays no other request.
        self.assertTrue(pace.fits_step(fits + 1, alone=True))
        self.assertFalse(pace.fits_step(501, alone=True))

    def test_no_step_waits_for_a_load_that_has_steps_of_its_own(self) -> None:
        pace = measured()
        for _ in range(3):
            pace.copies.add(10, 1e-6)
        self.assertTrue(pace.fits_step(10, alone=False))
        pace.begin_load("long", 10000, 0.0)
        self.assertFalse(pace.fits_step(10, alone=False))
        pace.end_load("long", True, 1.0)
        self.assertTrue(pace.fits_step(10, alone=False))

    def test_a_load_within_a_step_takes_as_long_as_its_copy(self) -> None:
        pace = measured()
        self.assertFalse(pace.accepts(1, 500))
        for _ in range(3):
            pace.copies.add(1, 1e-6)
        self.assertFalse(pace.accepts(1, 500))
        self.assertTrue(pace.accepts(1, 500, short=True))

    def test_steps_that_overlap_count_from_the_end_of_the_one_before(self) -> None:
        pace = Pace(0, TOKENS, STEP)
        pace.begin_step(4, 4, 0.0)
        for number in range(1, 9):
            pace.begin_step(4, 4, number - 0.9)
            pace.end_step(float(number))
        self.assertEqual(pace.steps.line(), [(4.0, 1.0)])

    def test_a_load_beside_a_prompt_failed_or_ended_is_no_sample(self) -> None:
        pace = Pace(0, TOKENS, STEP)
        for _ in range(5):
            pace.begin_load("beside", 1, 0.0)
            pace.begin_step(500, 1, 0.0)
            pace.begin_load("behind", 1, 0.0)
            pace.end_step(1.0)
            pace.begin_load("failed", 1, 1.0)
            pace.begin_load("ended", 1, 1.0)
            pace.forget("ended")
            for rid in ("beside", "behind", "failed", "ended", "unknown"):
                pace.end_load(rid, rid != "failed", 2.0)
        self.assertFalse(pace.loads.line())

    def test_a_step_without_tokens_is_no_sample(self) -> None:
        pace = Pace(0, TOKENS, STEP)
        for _ in range(5):
            pace.begin_step(0, 0, 0.0)
            pace.end_step(1.0)
        pace.end_step(2.0)
        self.assertFalse(pace.steps.line())


if __name__ == "__main__":
    unittest.main()
