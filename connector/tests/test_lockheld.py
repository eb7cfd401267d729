"""Calls that keep the interpreter's lock behave like Python's own calls, errors included."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import unittest

from blockyard import lockheld


class Sockets(unittest.TestCase):
    def setUp(self) -> None:
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.inbox = lockheld.Inbox(64, 2)
        self.addCleanup(self.near.close)
        self.addCleanup(self.far.close)

    def receive(self) -> tuple[bytes, list[int], int]:
        count, fds, flags = self.inbox.receive(self.far.fileno())
        return bytes(self.inbox.message[:count]), fds, flags

    def open_files(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    def test_messages_arrive_whole_in_their_order_with_zero_bytes_in_them(self) -> None:
        for message in (b"one\0two", b"x" * 64, b"y"):
            lockheld.send(self.near.fileno(), message)
        self.assertEqual(self.receive()[0], b"one\0two")
        self.assertEqual(self.receive()[0], b"x" * 64)
        self.assertEqual(self.receive(), (b"y", [], socket.MSG_CMSG_CLOEXEC))

    def test_nothing_to_receive_and_no_room_to_send_are_told_at_once(self) -> None:
        with self.assertRaises(BlockingIOError):
            self.receive()
        with self.assertRaises(BlockingIOError):
            while True:
                lockheld.send(self.near.fileno(), b"z" * 1000)

    def test_the_end_of_the_connection(self) -> None:
        self.near.close()
        self.assertEqual(self.receive()[0], b"")
        with self.assertRaises(BrokenPipeError):
            lockheld.send(self.far.fileno(), b"late")
        with self.assertRaisesRegex(OSError, "Bad file descriptor"):
            self.inbox.receive(-1)

    def test_descriptors_come_open_and_close_on_exec(self) -> None:
        read, write = os.pipe()
        socket.send_fds(self.near, [b"m"], [write])
        os.close(write)
        message, fds, _ = self.receive()
        self.assertEqual((message, len(fds)), (b"m", 1))
        self.assertTrue(fcntl.fcntl(fds[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC)
        os.write(fds[0], b"through")
        self.assertEqual(os.read(read, 10), b"through")
        os.close(fds[0])
        os.close(read)

    def test_what_does_not_fit_is_flagged_and_no_descriptor_stays_behind(self) -> None:
        before = self.open_files()
        lockheld.send(self.near.fileno(), b"w" * 65)
        message, _, flags = self.receive()
        self.assertEqual(len(message), 64)
        self.assertTrue(flags & socket.MSG_TRUNC)
        packed = array.array("i", [self.near.fileno()] * 9)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)
        self.near.sendmsg([b"many"], [rights])
        _, fds, flags = self.receive()
        self.assertTrue(flags & socket.MSG_CTRUNC)
        self.assertGreaterEqual(len(fds), 2)
        for fd in fds:
            os.close(fd)
        self.assertEqual(self.open_files(), before)


class Wakes(unittest.TestCase):
    def test_a_wake_lasts_until_it_is_taken(self) -> None:
        fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.addCleanup(os.close, fd)
        lockheld.take_wakes(fd)
        lockheld.wake(fd)
        lockheld.wake(fd)
        self.assertEqual(os.eventfd_read(fd), 2)
        os.eventfd_write(fd, 2**64 - 2)
        lockheld.wake(fd)  # full
        lockheld.take_wakes(fd)
        with self.assertRaises(BlockingIOError):
            os.eventfd_read(fd)

    def test_a_descriptor_that_is_none_is_an_error(self) -> None:
        for call in (lockheld.wake, lockheld.take_wakes):
            with self.assertRaises(OSError):
                call(-1)


if __name__ == "__main__":
    unittest.main()
