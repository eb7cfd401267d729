"""Link with a socket of the test: order, bounds, descriptors, ends, threads."""

from __future__ import annotations

import array
import gc
import os
import pathlib
import socket
import tempfile
import threading
import time
import unittest
from collections import deque

from blockyard import frames, msgpack
from blockyard.transport import Frame, Link, LinkClosed, LinkFull
from tests.agentproc import wait_until


def message(frame_type: int, corr: int, body: bytes = b"") -> bytes:
    return frames.pack_header(frame_type, corr, len(body)) + body


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


EXTENT = msgpack.encode(
    {"extent": 0, "slots": 1, "slot_bytes": 4096, "data_offset": 4096, "file_bytes": 8192}
)


class LinkCase(unittest.TestCase):
    """A Link, and the agent's end of it as self.peer."""

    def setUp(self) -> None:
        self.dir = tempfile.TemporaryDirectory(prefix="blockyard-test-")
        self.addCleanup(self.dir.cleanup)
        self.path = str(pathlib.Path(self.dir.name) / "agent.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(self.listener.close)
        self.listener.bind(self.path)
        self.listener.listen(1)
        self.link = Link(self.path)
        self.peer, _ = self.listener.accept()
        self.addCleanup(self.peer.close)
        self.addCleanup(self.link.close)

    def send_fds(self, data: bytes, *fds: int) -> None:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        self.peer.sendmsg([data], control)

    def drained(self, count: int) -> list[Frame]:
        """Waits for the next `count` frames."""
        got: list[Frame] = []

        def enough() -> bool:
            got.extend(self.link.drain(count - len(got)))
            return len(got) >= count

        wait_until(f"{count} frames", enough)
        return got


class Sending(LinkCase):
    def test_calls_have_correlations_and_tells_have_none(self) -> None:
        first = self.link.call(frames.LOOKUP, frames.encode_lookup(1, 0, 0, 1))
        second = self.link.call(frames.STORE, frames.encode_store(1, 0, 0, 1))
        self.link.tell(frames.CLOSE, frames.encode_close(1, 0))
        self.assertNotIn(0, (first, second))
        self.assertNotEqual(first, second)
        for want in [(frames.LOOKUP, first), (frames.STORE, second), (frames.CLOSE, 0)]:
            header = frames.parse_header(self.peer.recv(40000))
            self.assertEqual((header.type, header.corr), want)

    def test_correlation_0_is_left_out_when_the_counter_wraps(self) -> None:
        self.link._corr = iter([2**32 - 1, 2**32, 2**32 + 1])  # type: ignore[assignment]
        got = [self.link.call(frames.BYE, frames.encode_bye("")) for _ in range(2)]
        self.assertEqual(got, [2**32 - 1, 1])

    def test_a_peer_that_does_not_read_gives_full_at_once_and_the_link_lives(self) -> None:
        body = frames.encode_open(1, 0, tokens=bytes(28000))
        started = time.monotonic()
        sent = 0
        with self.assertRaises(LinkFull):
            while True:
                self.link.tell(frames.OPEN, body)
                sent += 1
        self.assertLess(time.monotonic() - started, 5)
        for _ in range(sent):
            self.peer.recv(40000)
        self.link.tell(frames.OPEN, body)

    def test_a_body_that_is_too_large_is_refused_before_it_is_sent(self) -> None:
        with self.assertRaisesRegex(ValueError, "OPEN"):
            self.link.tell(frames.OPEN, bytes(frames.MAX_BODY + 1))
        self.assertFalse(self.link.closed)

    def test_a_peer_that_is_gone_gives_closed_after_its_last_frames(self) -> None:
        self.peer.send(message(frames.OK, 3))
        self.peer.close()
        with self.assertRaises(LinkClosed):
            self.link.tell(frames.CLOSE, frames.encode_close(1, 0))
        self.assertTrue(self.link.closed)
        self.assertEqual([f.corr for f in self.drained(1)], [3])
        with self.assertRaises(LinkClosed):
            self.link.drain()

    def test_nobody_there_is_an_oserror_and_leaks_nothing(self) -> None:
        gc.collect()  # garbage of earlier tests would close later and hide a leak
        before = descriptors()
        for path in (self.path + ".none", "/" + "x" * 200):
            with self.assertRaises(OSError):
                Link(path)
        gc.collect()
        self.assertEqual(descriptors(), before)


class Receiving(LinkCase):
    def test_frames_come_in_order_and_at_most_as_many_as_asked(self) -> None:
        for corr in range(1, 11):
            self.peer.send(message(frames.OK, corr))
        wait_until("readable", lambda: self.link.wait(1))
        self.assertEqual([f.corr for f in self.link.drain(4)], [1, 2, 3, 4])
        self.assertEqual([f.corr for f in self.link.drain()], list(range(5, 11)))
        self.assertEqual(self.link.drain(), [])

    def test_frames_before_the_end_are_returned_before_closed_is_raised(self) -> None:
        self.peer.send(message(frames.OK, 1))
        self.peer.close()
        self.assertEqual(len(self.link.drain()), 1)
        with self.assertRaisesRegex(LinkClosed, "closed"):
            self.link.drain()

    def test_malformed_messages_end_the_connection_for_both_sides(self) -> None:
        good = message(frames.GRANT, 1, b"\x80")
        for what, bad in [
            ("magic", b"XXXX" + good[4:]),
            ("body", message(frames.GRANT, 1, b"\xc1")),
            ("range", message(frames.GRANT, 1, msgpack.encode({"present": 5000}))),
            ("size", bytes(frames.MAX_FRAME + 1)),
            ("no descriptor", message(frames.EXTENT_READY, 0, EXTENT)),
        ]:
            with self.subTest(what):
                link = Link(self.path)
                peer, _ = self.listener.accept()
                with peer, self.assertLogs("blockyard.transport", "ERROR"):
                    peer.send(bad)
                    with self.assertRaisesRegex(LinkClosed, "malformed"):
                        link.drain()
                    self.assertEqual(peer.recv(10), b"")
                with self.assertRaises(LinkClosed):
                    link.tell(frames.CLOSE, b"\x80")

    def test_unknown_frames_are_skipped_and_counted(self) -> None:
        self.peer.send(message(99, 0, b"\x80"))
        self.peer.send(message(frames.OK, 1))
        self.assertEqual([f.type for f in self.drained(1)], [frames.OK])
        self.assertEqual(self.link.skipped, 1)

    def test_a_descriptor_comes_with_its_frame_and_is_closed_on_exec(self) -> None:
        with tempfile.TemporaryFile() as file:
            self.send_fds(message(frames.EXTENT_READY, 0, EXTENT), file.fileno())
            frame = self.drained(1)[0]
            self.assertGreaterEqual(frame.fd, 0)
            self.assertTrue(os.path.samestat(os.fstat(frame.fd), os.fstat(file.fileno())))
            self.assertFalse(os.get_inheritable(frame.fd))
            os.close(frame.fd)

    def test_descriptors_that_nobody_expects_are_closed(self) -> None:
        for what, data, count in [
            ("on OK", message(frames.OK, 1), 1),
            ("two", message(frames.EXTENT_READY, 0, EXTENT), 2),
            ("nine", message(frames.EXTENT_READY, 0, EXTENT), 9),
            ("on an unknown frame", message(99, 0, b"\x80"), 1),
        ]:
            with self.subTest(what), tempfile.TemporaryFile() as file:
                link = Link(self.path)
                self.peer, _ = self.listener.accept()
                before = descriptors()
                self.send_fds(data, *[file.fileno()] * count)
                if what != "on an unknown frame":
                    with self.assertLogs("blockyard.transport"), self.assertRaises(LinkClosed):
                        link.drain()
                else:
                    self.assertEqual(link.drain(), [])
                self.assertEqual(descriptors(), before)
                self.peer.close()

    def test_frames_are_taken_in_order_by_two_threads_at_once(self) -> None:
        into: deque[Frame] = deque()
        stop = threading.Event()

        def helper() -> None:
            while not stop.is_set():
                self.link.drain_to(into.append)

        thread = threading.Thread(target=helper)
        thread.start()
        try:
            for corr in range(1, 2001):
                self.peer.send(message(frames.OK, corr))
                self.link.drain_to(into.append)
            wait_until("all frames", lambda: self.link.drain_to(into.append) or len(into) == 2000)
            wait_until("all frames", lambda: len(into) == 2000)
        finally:
            stop.set()
            thread.join()
        self.assertEqual([f.corr for f in into], list(range(1, 2001)))


class Waiting(LinkCase):
    def test_wait_ends_by_frame_wake_close_and_timeout(self) -> None:
        self.assertFalse(self.link.wait(0))
        self.link.wake()
        self.assertTrue(self.link.wait(10))
        self.assertFalse(self.link.wait(0.001))
        self.peer.send(message(frames.OK, 1))
        self.assertTrue(self.link.wait(10))
        self.link.drain()
        self.peer.close()
        self.assertTrue(self.link.wait(10))

    def test_wake_and_close_end_a_wait_in_another_thread(self) -> None:
        for end in (self.link.wake, self.link.close):
            result: list[bool] = []
            thread = threading.Thread(target=lambda: result.append(self.link.wait(30)))
            thread.start()
            end()
            thread.join(10)
            self.assertEqual(result, [True])

    def test_close_tells_the_peer_at_once_and_gives_descriptors_back_with_the_link(self) -> None:
        before = descriptors()
        link = Link(self.path)
        peer, _ = self.listener.accept()
        with peer:
            link.close()
            link.close()
            self.assertEqual(peer.recv(10), b"")
            for use in (link.drain, lambda: link.tell(frames.CLOSE, b"\x80")):
                with self.assertRaises(LinkClosed):
                    use()
        del link, use
        gc.collect()
        self.assertEqual(descriptors(), before)


if __name__ == "__main__":
    unittest.main()
