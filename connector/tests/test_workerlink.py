"""WorkerLink with a scripted agent: refusals, silence, shares, extents, counters."""

from __future__ import annotations

import array
import os
import pathlib
import socket
import tempfile
import time
import unittest
from typing import Any

from blockyard import frames, msgpack, packed
from blockyard.extents import Extents
from blockyard.frames import HelloFields, RegisterFields
from blockyard.workerlink import _SESSION_TRIES, WorkerLink
from tests.agentproc import wait_until

WELCOME = {
    "major": 1,
    "minor": 0,
    "session": 3,
    "agent_nonce": 4,
    "namespace_id": bytes(16),
    "pool": 5,
    "block_bytes": 8192,
    "slot_bytes": 8192,
    "max_requests": 10,
    "max_pins": 10,
    "host_enabled": True,
}
EXTENT = {
    "extent": 2,
    "slots": 2,
    "slot_bytes": 8192,
    "data_offset": 4096,
    "file_bytes": 4096 + 2 * 8192,
}


class LinkCase(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="blockyard-test-")
        self.addCleanup(directory.cleanup)
        self.path = str(pathlib.Path(directory.name) / "agent.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(self.listener.close)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.extents = Extents()
        self.addCleanup(self.extents.close)
        self.counters = {"loads": 0, "errors": 0}
        self.now = 100.0
        self.link = self.worker_link()
        self.loads: list[dict[str, Any]] = []

    def worker_link(self, block_bytes: int = 4096, offset: int = 4096) -> WorkerLink:
        link = WorkerLink(
            self.path,
            HelloFields("test 1", 7, 1),
            RegisterFields(10, block_bytes, offset),
            self.extents,
            self.counters,
            True,
        )
        self.addCleanup(link.close)
        return link

    def service(self) -> None:
        self.loads += self.link.service(self.now)

    def accept(self) -> socket.socket:
        """Accepts the link's connection. Returns the agent's end."""
        self.service()
        self.listener.settimeout(10)
        peer, _ = self.listener.accept()
        self.addCleanup(peer.close)
        peer.settimeout(10)
        return peer

    def receive(self, peer: socket.socket, frame_type: int) -> tuple[int, dict[str, Any]]:
        data = peer.recv(40000)
        header = frames.parse_header(data)
        self.assertEqual(frames.name(header.type), frames.name(frame_type))
        return header.corr, msgpack.decode(data[16:])

    def send(
        self, peer: socket.socket, frame_type: int, corr: int, body: dict[str, Any], fd: int = -1
    ) -> None:
        data = msgpack.encode(body) if frame_type != frames.OK else b""
        message = frames.pack_header(frame_type, corr, len(data)) + data
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        peer.sendmsg([message], rights if fd >= 0 else [])

    def join(self) -> socket.socket:
        peer = self.accept()
        corr, _ = self.receive(peer, frames.HELLO)
        self.send(peer, frames.WELCOME, corr, WELCOME)
        self.service()
        corr, _ = self.receive(peer, frames.REGISTER)
        self.send(peer, frames.OK, corr, {})
        with self.assertLogs("blockyard.workerlink", "INFO"):
            self.service()
        self.assertTrue(self.link.joined)
        return peer

    def lost(self, pattern: str) -> None:
        with self.assertLogs("blockyard.workerlink", "INFO") as logs:
            self.service()
        self.assertRegex(logs.output[-1], pattern)
        self.assertFalse(self.link.joined)
        self.assertEqual(self.link.fileno(), -1)
        due = self.link.due()
        assert due is not None
        self.assertGreater(due, self.now)
        self.assertLessEqual(due, self.now + 0.5)


class Joining(LinkCase):
    def test_a_worker_asks_for_the_session_of_its_id_and_names_its_share(self) -> None:
        peer = self.accept()
        corr, hello = self.receive(peer, frames.HELLO)
        self.assertEqual(
            [hello[k] for k in ("role", "session", "worker_id", "dp_rank")], ["worker", 0, 7, 1]
        )
        self.assertNotIn("namespace", hello)
        self.send(peer, frames.WELCOME, corr, WELCOME)
        self.service()
        _, register = self.receive(peer, frames.REGISTER)
        self.assertEqual(register, {"device_blocks": 10, "block_bytes": 4096, "offset": 4096})
        self.assertFalse(self.link.joined)

    def test_a_refusal_is_tried_again_later_and_said_once(self) -> None:
        error = {"code": "not_found", "retryable": True, "req": 0, "text": "no session"}
        waits = []
        for attempt in range(_SESSION_TRIES + 8):
            peer = self.accept()
            corr, _ = self.receive(peer, frames.HELLO)
            self.send(peer, frames.ERROR, corr, error)
            peer.close()
            if attempt == 0:
                self.lost("no session")
            else:
                with self.assertNoLogs("blockyard.workerlink", "INFO"):
                    self.service()
            waits.append((self.link.due() or 0) - self.now)
            self.now = self.link.due() or 0
        self.assertEqual(waits, sorted(waits))
        self.assertLess(waits[0], 0.03)
        self.assertAlmostEqual(waits[_SESSION_TRIES - 1], 0.05, 3)
        self.assertAlmostEqual(waits[-1], 0.5, 3)

    def test_work_makes_it_try_at_once_but_not_all_the_time(self) -> None:
        os.unlink(self.path)
        for _ in range(8):
            self.service()
            self.now = self.link.due() or 0
        self.service()
        due = self.link.due() or 0
        self.assertGreater(due - self.now, 0.4)
        self.link.work(True, self.now)
        due = self.link.due() or 0
        self.assertAlmostEqual(due - self.now, 0.02, 3)

    def test_an_agent_that_does_not_answer_is_given_up(self) -> None:
        self.accept()
        self.service()
        self.assertGreaterEqual(self.link.fileno(), 0)
        self.now = self.link.due() or 0
        self.lost("no answer")

    def test_no_agent_at_all(self) -> None:
        os.unlink(self.path)
        self.lost("agent.sock")

    def test_a_share_that_does_not_fit_the_sessions_blocks_is_not_registered(self) -> None:
        self.link = self.worker_link(block_bytes=4097)
        peer = self.accept()
        corr, _ = self.receive(peer, frames.HELLO)
        self.send(peer, frames.WELCOME, corr, WELCOME)
        self.lost("share: 4097 bytes from 4096 on")
        self.assertEqual(peer.recv(10), b"")


class Joined(LinkCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = tempfile.TemporaryFile()
        self.addCleanup(self.file.close)
        self.file.truncate(EXTENT["file_bytes"])
        self.peer = self.join()

    def test_extents_are_mapped_and_loads_are_returned_in_order(self) -> None:
        self.send(self.peer, frames.EXTENT_READY, 0, EXTENT, self.file.fileno())
        slots, blocks = packed.pack_slots([packed.Slot(2, 0, 1)]), packed.pack_u32([3])
        for job in (1, 2):
            self.send(self.peer, frames.LOAD, 0, {"job": job, "slots": slots, "blocks": blocks})
        self.service()
        self.assertEqual([load["job"] for load in self.loads], [1, 2])
        self.assertEqual(len(self.extents), 1)

    def test_an_extent_that_cannot_be_mapped_ends_the_connection_and_leaks_nothing(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        wrong = {**EXTENT, "slot_bytes": 4096}
        self.send(self.peer, frames.EXTENT_READY, 0, wrong, self.file.fileno())
        self.send(self.peer, frames.EXTENT_READY, 0, EXTENT, self.file.fileno())
        self.lost("slot_bytes")
        wait_until(
            "descriptors are given back", lambda: len(os.listdir("/proc/self/fd")) == before - 2
        )
        self.assertEqual(self.counters["errors"], 1)

    def test_a_lost_connection_is_made_again_and_mappings_stay(self) -> None:
        self.send(self.peer, frames.EXTENT_READY, 0, EXTENT, self.file.fileno())
        self.service()
        self.peer.close()
        self.lost("closed|reset")
        self.assertEqual(self.extents.address(2, 1) - self.extents.address(2, 0), 8192)
        self.now = self.link.due() or 0
        self.join()
        self.assertEqual(self.extents.address(2, 1) - self.extents.address(2, 0), 8192)

    def test_counters_are_sent_at_most_once_a_second_and_only_when_they_change(self) -> None:
        self.assertIsNone(self.link.due())
        self.counters["loads"] = 5
        due = self.link.due()
        assert due is not None
        self.service()
        self.peer.setblocking(False)
        with self.assertRaises(BlockingIOError):
            self.peer.recv(1000)
        self.now = due
        self.service()
        self.assertEqual(self.receive(self.peer, frames.STATS)[1], {"loads": 5, "errors": 0})
        self.assertIsNone(self.link.due())

    def test_counters_begin_anew_with_a_connection(self) -> None:
        self.counters["loads"] = 5
        self.peer.close()
        self.lost("closed|reset")
        self.now = self.link.due() or 0
        peer = self.join()
        self.counters["loads"] = 7
        self.now += 1.0
        self.service()
        self.assertEqual(self.receive(peer, frames.STATS)[1], {"loads": 2, "errors": 0})

    def test_close_says_bye(self) -> None:
        started = time.monotonic()
        self.link.close()
        self.receive(self.peer, frames.BYE)
        self.assertEqual(self.peer.recv(10), b"")
        self.assertLess(time.monotonic() - started, 5)


if __name__ == "__main__":
    unittest.main()
