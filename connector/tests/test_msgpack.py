"""The msgpack codec: golden bytes, bounds, and malformed input."""

from __future__ import annotations

import random
import unittest
from typing import Any

from blockyard import msgpack
from blockyard.msgpack import MAX_UINT, Ext, MsgpackError, decode, encode
from tests import vectors

_EDGES = [0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, MAX_UINT]


def a_value(rng: random.Random, depth: int) -> Any:
    """A random value of the protocol's types, nested `depth` levels at most."""
    kind = rng.randrange(6 if depth else 4)
    if kind == 0:
        return rng.choice(_EDGES)
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return "aé水" * rng.choice([0, 1, 6, 7, 60, 11000])
    if kind == 3:
        return rng.randbytes(rng.choice([0, 1, 31, 255, 256, 66000]))
    count = rng.choice([0, 1, 15, 16])
    if kind == 4:
        return [a_value(rng, depth - 1) for _ in range(min(count, 16 if depth < 3 else 3))]
    return {f"key{n}": a_value(rng, depth - 1) for n in range(min(count, 16 if depth < 3 else 3))}


class Golden(unittest.TestCase):
    def test_printed_and_frozen_frames_decode_and_encode_to_the_same_bytes(self) -> None:
        both = [*vectors.printed(), *vectors.frozen()]
        self.assertGreaterEqual(len(both), 38)
        for name, frame in both:
            body = frame[16:]
            if body:
                with self.subTest(name, body=body.hex()):
                    self.assertEqual(encode(decode(body)), body)

    def test_integers_take_their_shortest_form(self) -> None:
        for n, want in [
            (0, "00"),
            (127, "7f"),
            (128, "cc80"),
            (255, "ccff"),
            (256, "cd0100"),
            (65536, "ce00010000"),
            (2**32, "cf0000000100000000"),
            (MAX_UINT, "cfffffffffffffffff"),
        ]:
            self.assertEqual(encode(n).hex(), want)

    def test_foreign_types_are_read_so_that_unknown_keys_can_be_skipped(self) -> None:
        for raw, want in [
            ("c0", None),
            ("ff", -1),
            ("d0ff", -1),
            ("d1ff00", -256),
            ("d2ffffffff", -1),
            ("d3ffffffffffffffff", -1),
            ("ca3f800000", 1.0),
            ("cb3ff0000000000000", 1.0),
            ("d40511", Ext(5, b"\x11")),
            ("c7020511ff", Ext(5, b"\x11\xff")),
            ("dc0002c2c3", [False, True]),
            ("df00000001a16101", {"a": 1}),
        ]:
            self.assertEqual(decode(bytes.fromhex(raw)), want)


class Bounds(unittest.TestCase):
    def test_what_cannot_be_encoded_is_an_error(self) -> None:
        for bad, kind in [
            (-1, ValueError),
            (MAX_UINT + 1, ValueError),
            (None, TypeError),
            (1.5, TypeError),
            ({1: 2}, TypeError),
        ]:
            with self.subTest(bad), self.assertRaises(kind):
                encode(bad)

    def test_nesting_ends_at_the_same_depth_in_both_directions(self) -> None:
        value: Any = 1
        for _ in range(msgpack.MAX_DEPTH):
            value = [value]
        self.assertEqual(decode(encode(value)), value)
        with self.assertRaises(ValueError):
            encode([value])
        with self.assertRaises(MsgpackError):
            decode(b"\x91" + encode(value))

    def test_a_length_that_the_input_does_not_back_allocates_nothing(self) -> None:
        for raw in ["dfffffffff", "ddffffffff", "c6ffffffff", "dbffffffff", "de7fffa161"]:
            with self.subTest(raw), self.assertRaises(MsgpackError):
                decode(bytes.fromhex(raw))

    def test_every_cut_of_a_frame_is_an_error(self) -> None:
        for name, frame in vectors.printed():
            body = frame[16:]
            for n in range(len(body)):
                with self.subTest(name, n=n), self.assertRaises(MsgpackError):
                    decode(body[:n])

    def test_bytes_after_the_value_are_an_error(self) -> None:
        with self.assertRaises(MsgpackError):
            decode(b"\x80\x00")


class Random(unittest.TestCase):
    def test_random_values_come_back(self) -> None:
        rng = random.Random(5)
        for _ in range(500):
            value = a_value(rng, 4)
            self.assertEqual(decode(encode(value)), value)

    def test_random_bytes_decode_or_raise_and_nothing_else(self) -> None:
        rng = random.Random(6)
        bodies = [frame[16:] for _, frame in vectors.printed() if len(frame) > 16]
        decoded = 0
        for n in range(20000):
            if n % 2:
                data = rng.randbytes(rng.randrange(40))
            else:
                mutable = bytearray(rng.choice(bodies))
                mutable[rng.randrange(len(mutable))] = rng.randrange(256)
                data = bytes(mutable)
            try:
                decode(data)
                decoded += 1
            except MsgpackError:
                pass
        self.assertGreater(decoded, 1000)


if __name__ == "__main__":
    unittest.main()
