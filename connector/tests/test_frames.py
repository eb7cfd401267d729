"""Encoders against the protocol's golden frames, and checks of the agent's frames."""

from __future__ import annotations

import random
import struct
import unittest
from typing import Any
from unittest import mock

from blockyard import __version__, frames, msgpack, packed, replies
from blockyard.frames import FrameError, HelloFields, RegisterFields
from blockyard.packed import Slot
from tests import vectors
from tests.effort import instructions

_FROM_AGENT = {
    "WELCOME",
    "EXTENT_READY",
    "OK",
    "ERROR",
    "LOOKUP_HIT",
    "CLAIMED",
    "GRANT",
    "LOAD",
    "RESUMED",
    "EVICTED",
    "DRAIN",
    "LIST_CACHED",
    "FITTED",
}


def reencode(name: str, b: dict[str, Any]) -> bytes:
    """The body of a client's frame, encoded from the fields of a golden frame."""
    run = [b.get(k, 0) for k in ("req", "gen", "first", "count")]
    owner = run[:2]
    group = b.get("group", 0)
    if name == "HELLO":
        fields = HelloFields(
            b["engine"],
            b["worker_id"],
            b["dp_rank"],
            b["incarnation"],
            b["namespace"],
            b["events_endpoint"],
            b["replay_endpoint"],
            b["events_topic"],
            b.get("want_evicted", False),
            b.get("lists_cached", False),
            b.get("consolidated_endpoint", ""),
            b.get("consolidator_mode", ""),
            connector=b.get("connector", ""),
        )
        return frames.encode_hello(b["role"], fields, b["session"])
    if name == "REGISTER":
        return frames.encode_register(
            RegisterFields(b["device_blocks"], b["block_bytes"], b.get("offset", 0))
        )
    if name == "OPEN":
        return frames.encode_open(*owner, b["lora"], b["lora_name"], b["salt"], b["tokens"])
    if name == "APPEND":
        return frames.encode_append(*owner, b["offset"], b["tokens"])
    if name == "LOOKUP":
        return frames.encode_lookup(*run, b["wait_ms"], group)
    if name == "FIT":
        return frames.encode_fit(*owner, b["tokens"], b.get("align", 0))
    if name == "CLAIM":
        return frames.encode_claim(*run, b["job"], b["blocks"], group)
    if name == "STORE":
        return frames.encode_store(*run, b.get("priority", 0), group)
    if name == "RELEASE":
        return frames.encode_release(*run, group)
    if name in ("COMMIT", "ABORT"):
        return frames.encode_slots(*owner, b["slots"])
    if name == "CLOSE":
        return frames.encode_close(*owner)
    if name == "BYE":
        return frames.encode_bye(b["reason"])
    if name == "RESUME":
        return frames.encode_resume(b["session"], b["agent_nonce"], b["granted"], b["pinned"])
    if name == "RESET":
        return frames.encode_reset()
    if name == "STATS":
        return frames.encode_stats(b)
    if name == "CACHED":
        unavailable = b.get("unavailable", False)
        return frames.encode_cached(b["list"], b["hashes"], b["final"], unavailable)
    raise AssertionError(f"no encoder for {name}")


class Golden(unittest.TestCase):
    def test_encoders_give_the_golden_bodies(self) -> None:
        seen = set()
        for name, frame in [*vectors.printed(), *vectors.frozen()]:
            if name in _FROM_AGENT:
                continue
            seen.add(name)
            golden = msgpack.decode(frame[16:])
            ours = reencode(name, golden)
            with self.subTest(name):
                # Absent keys mean zero, and the order is free.
                if name in ("HELLO", "REGISTER", "FIT", "LOOKUP"):
                    mine = msgpack.decode(ours)
                    mine["minor"] = golden.get("minor", 0)  # the encoder writes the current version
                    for key in mine.keys() | golden.keys():
                        zero = type(mine.get(key) or golden.get(key) or 0)()
                        if mine.get("role") == "worker" and key.startswith("events"):
                            continue
                        self.assertEqual(mine.get(key, zero), golden.get(key, zero), key)
                else:
                    self.assertEqual(ours.hex(), frame[16:].hex())
        self.assertGreaterEqual(len(seen), 13)

    def test_both_roles_say_which_connector_they_are(self) -> None:
        for role in ("scheduler", "worker"):
            hello = msgpack.decode(frames.encode_hello(role, HelloFields("test", 1)))
            self.assertEqual(hello["connector"], f"blockyard {__version__}")

    def test_headers_come_back(self) -> None:
        for name, frame in [*vectors.printed(), *vectors.frozen()]:
            header = frames.parse_header(frame)
            self.assertEqual(frames.name(header.type), name)
            packed_again = frames.pack_header(header.type, header.corr, header.body_bytes)
            self.assertEqual(packed_again, frame[:16])

    def test_the_agents_golden_frames_decode(self) -> None:
        kinds = {name: frame for name, frame in vectors.frozen() if name in _FROM_AGENT}
        for name, frame in kinds.items():
            with self.subTest(name):
                header = frames.parse_header(frame)
                body = replies.decode_body(header.type, frame[16:])
                self.assertIsNotNone(body)
                golden = msgpack.decode(frame[16:]) if len(frame) > 16 else {}
                for key, value in (body or {}).items():
                    self.assertEqual(value, golden.get(key, type(value)()), key)

    def test_every_frame_number_has_a_name(self) -> None:
        self.assertEqual(frames.NAMES[19], "LOOKUP_HIT")
        self.assertEqual(sorted(frames.NAMES), [*range(1, 7), *range(16, 40)])
        self.assertEqual(frames.name(99), "TYPE(99)")


class Headers(unittest.TestCase):
    def test_what_is_no_frame_is_refused(self) -> None:
        good = frames.pack_header(frames.OK, 5, 0)
        for what, message in [
            ("short", good[:15]),
            ("magic", b"X" + good[1:]),
            ("flags", good[:6] + b"\x01\x00" + good[8:]),
            ("length", good + b"\x00"),
            ("large", frames.pack_header(frames.OK, 5, frames.MAX_BODY) + b"0" * 32769),
        ]:
            with self.subTest(what), self.assertRaises(FrameError):
                frames.parse_header(message)
        with self.assertRaises(ValueError):
            frames.pack_header(frames.OK, 5, frames.MAX_BODY + 1)


class Replies(unittest.TestCase):
    def hit(self, **changes: Any) -> dict[str, Any]:
        body = {
            "req": 7,
            "gen": 1,
            "first": 0,
            "ready": 2,
            "coming": 0,
            "sources": b"\x01\x02",
            "slots": packed.pack_slots([Slot(0, 1, 2), Slot(0, 2, 2)]),
        }
        return {**body, **changes}

    def test_unknown_keys_are_skipped_and_absent_ones_are_zero(self) -> None:
        body = replies.decode_body(frames.GRANT, msgpack.encode({"later": [1, {"x": 2}], "req": 9}))
        self.assertEqual(
            body, {"req": 9, "gen": 0, "group": 0, "grants": b"", "present": 0, "refused": 0}
        )

    def test_an_unknown_type_is_none(self) -> None:
        self.assertIsNone(replies.decode_body(99, b"\x80"))

    def test_a_tier_of_a_later_version_is_taken(self) -> None:
        body = {"tier": 3, "hashes": bytes(16)}
        taken = replies.decode_body(frames.EVICTED, msgpack.encode(body))
        self.assertEqual(taken, {**body, "lost": 0})

    def test_fields_outside_their_range_are_named(self) -> None:
        cases: list[tuple[int, dict[str, Any], str]] = [
            (frames.LOOKUP_HIT, self.hit(ready=1025), "ready"),
            (frames.LOOKUP_HIT, self.hit(sources=b"\x01"), "sources"),
            (frames.LOOKUP_HIT, self.hit(slots=b"1234"), "slots"),
            (frames.LOOKUP_HIT, self.hit(slots=b""), "slots"),
            (frames.LOOKUP_HIT, self.hit(first="0"), "first"),
            (frames.LOOKUP_HIT, self.hit(coming=True), "coming"),
            (frames.GRANT, {"grants": b"1"}, "grants"),
            (frames.LOAD, {"job": 1}, "slots"),
            (frames.LOAD, {"job": 1, "slots": b"0" * 16, "blocks": b"0" * 8}, "blocks"),
            (frames.DRAIN, {"reason": 5}, "reason"),
            (frames.EVICTED, {"tier": 256}, "tier"),
            (frames.WELCOME, {"session": 0}, "session"),
            (frames.LIST_CACHED, {}, "list"),
        ]
        for frame_type, body, field in cases:
            with self.subTest(field), self.assertRaisesRegex(FrameError, field):
                replies.decode_body(frame_type, msgpack.encode(body))

    def test_extents_that_do_not_fit_their_file_are_refused(self) -> None:
        good = {
            "extent": 1,
            "slots": 16,
            "slot_bytes": 4096,
            "data_offset": 4096,
            "file_bytes": 69632,
        }
        self.assertEqual(replies.decode_body(frames.EXTENT_READY, msgpack.encode(good)), good)
        for change in [
            {"slots": 17},
            {"slots": 0},
            {"data_offset": 4097},
            {"data_offset": 0},
            {"file_bytes": 69631},
            {"file_bytes": 2**30 + 1},
            {"slot_bytes": 2**63},
        ]:
            with self.subTest(change), self.assertRaises(FrameError):
                replies.decode_body(frames.EXTENT_READY, msgpack.encode({**good, **change}))

    def test_random_bodies_decode_or_raise_and_nothing_else(self) -> None:
        rng = random.Random(7)
        golden = [f for name, f in vectors.frozen() if name in _FROM_AGENT and len(f) > 16]
        for _ in range(5000):
            frame = bytearray(rng.choice(golden))
            for _ in range(rng.randrange(1, 4)):
                frame[rng.randrange(16, len(frame))] = rng.randrange(256)
            try:
                replies.decode_body(frame[4], bytes(frame[16:]))
            except FrameError:
                pass

    def test_bodies_in_the_agents_order_are_read_in_one_pass(self) -> None:
        numbers_only = set()
        for name, frame in vectors.frozen():
            steps = replies._STEPS.get(frame[4]) if name in _FROM_AGENT else None
            if steps is not None:
                numbers_only.add(name)
                with self.subTest(name):
                    self.assertIsNotNone(replies._in_order(steps, frame[16:]))
        self.assertLessEqual({"GRANT", "LOOKUP_HIT", "CLAIMED", "FITTED", "LOAD"}, numbers_only)

    def test_one_pass_reads_what_the_slower_way_reads(self) -> None:
        rng = random.Random(11)
        passed = refused = 0
        for _ in range(5000):
            kind = rng.choice(list(replies._STEPS))
            body = bytearray(msgpack.encode(self.drawn(rng, kind)))
            for _ in range(rng.choice((0, 0, 1, 2))):
                body[rng.randrange(len(body))] = rng.randrange(256)
            fast = replies._in_order(replies._STEPS[kind], bytes(body))
            try:
                slow = replies._in_any_order(replies._FIELDS[kind], bytes(body))
            except (FrameError, msgpack.MsgpackError):
                slow = None
            if fast is not None:
                self.assertEqual(fast, slow, (kind, bytes(body)))
            passed += fast is not None
            refused += slow is None
        self.assertGreater(passed, 1000)
        self.assertGreater(refused, 100)

    def drawn(self, rng: random.Random, kind: int) -> dict[str, Any]:
        """A body with random values, mostly in their range. Some keys are absent."""
        body: dict[str, Any] = {}
        for key, field in replies._FIELDS[kind].items():
            assert field.allowed is not None
            most = field.allowed.stop - 1
            number = min(rng.randrange(1 << rng.randrange(1, 65)), most + (rng.random() < 0.02))
            if rng.random() < 0.1:
                continue
            body[key] = rng.randbytes(field.item * min(number, 40)) if field.item else number
        return body

    def test_the_cost_of_an_answer(self) -> None:
        """The engine's thread decodes answers in its hooks. The slower way takes 1,000 to 1,500."""
        granted = msgpack.encode(
            {"req": 70_000, "gen": 0, "grants": bytes(24 * 16), "present": 0, "refused": 0}
        )
        missed = msgpack.encode(self.hit(req=70_000, first=1024, ready=0, sources=b"", slots=b""))
        for kind, body, most in ((frames.GRANT, granted, 500), (frames.LOOKUP_HIT, missed, 700)):
            self.assertLess(instructions(lambda: replies.decode_body(kind, body)), most)


class Packed(unittest.TestCase):
    def test_lists_come_back(self) -> None:
        slots = [Slot(1, 2, 3), Slot(2**32 - 1, 0, 2**64 - 1)]
        self.assertEqual(packed.unpack_slots(packed.pack_slots(slots)), slots)
        ids = [0, 1, 2**32 - 1]
        self.assertEqual(packed.pack_u32(ids), bytes.fromhex("00000000 01000000 ffffffff"))
        self.assertEqual(packed.unpack_u32(packed.pack_u32(ids)), ids)

    def test_grants_come_apart(self) -> None:
        slots = [Slot(1, 2, 3), Slot(2**32 - 1, 0, 2**64 - 1)]
        grants = b"".join(
            struct.pack("<III4xQ", block, *slot) for block, slot in zip((7, 2**32 - 1), slots)
        )
        for u32 in ("I", ""):
            with mock.patch("blockyard.packed._U32", u32):
                blocks, packed_slots = packed.unpack_grants(grants)
                self.assertEqual(blocks, [7, 2**32 - 1])
                self.assertEqual(packed.unpack_slots(packed_slots), slots)
                self.assertEqual(packed.unpack_grants(b""), ([], b""))

    def test_a_cut_list_is_an_error(self) -> None:
        for unpack in (packed.unpack_u32, packed.unpack_slots, packed.unpack_grants):
            with self.assertRaises(ValueError):
                unpack(b"12345")

    def test_lists_that_do_not_fit_a_frame_are_refused(self) -> None:
        with self.assertRaises(ValueError):
            frames.encode_open(1, 0, tokens=bytes(4 * 7169))
        with self.assertRaises(ValueError):
            frames.encode_append(1, 0, 0, b"123")
        with self.assertRaises(ValueError):
            frames.encode_slots(1, 0, b"")
        with self.assertRaises(ValueError):
            frames.encode_slots(1, 0, bytes(16 * 1025))
        with self.assertRaises(ValueError):
            frames.encode_claim(1, 0, 0, 2, 9, b"1234")
        with self.assertRaises(ValueError):
            frames.encode_resume(1, 2, bytes(16 * 2000), bytes(16 * 41))
        longest = frames.encode_resume(2**64 - 1, 2**64 - 1, bytes(16 * 2040), b"")
        self.assertLessEqual(len(longest), frames.MAX_BODY)
        with self.assertRaises(ValueError):
            frames.encode_cached(1, bytes(8 * 4001), True)
        with self.assertRaises(ValueError):
            frames.encode_cached(1, b"1234", True)
        whole = frames.encode_cached(2**64 - 1, bytes(8 * 4000), True)
        self.assertLessEqual(len(whole), frames.MAX_BODY)
        strings = "x" * 1024
        full = frames.encode_open(2**64 - 1, 2**32 - 1, strings, strings, strings, bytes(4 * 7168))
        self.assertLessEqual(len(full), frames.MAX_BODY)


if __name__ == "__main__":
    unittest.main()
