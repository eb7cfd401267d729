"""System calls that never wait, made while holding the interpreter lock.

Python releases its lock around every system call. To take the lock back may last one switch
interval while another thread computes. That is too long for a hook of the engine or for a copying
thread. So these calls keep the lock. They take only non-blocking descriptors.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct

_libc = ctypes.PyDLL(None, use_errno=True)  # CDLL would release the lock

_CMSG = struct.Struct("@Nii")  # struct cmsghdr: length with this header, level, type
_ALIGN = struct.calcsize("@N")
# Plain numbers: Python's flags cost a dozen calls in each operation.
_NOW = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_RECEIVE = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)  # in Inbox's flags: the message was cut off
_ONE = struct.pack("@Q", 1)


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _Msghdr(ctypes.Structure):
    # The two lengths are size_t in glibc, and int with padding in musl. Both are the same on the
    # little-endian 64-bit machines of the engines.
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("iov", ctypes.POINTER(_Iovec)),
        ("iov_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


_libc.send.restype = ctypes.c_ssize_t
_libc.send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_libc.recvmsg.restype = ctypes.c_ssize_t
_libc.recvmsg.argtypes = (ctypes.c_int, ctypes.POINTER(_Msghdr), ctypes.c_int)
_libc.read.restype = ctypes.c_ssize_t
_libc.read.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
_libc.write.restype = ctypes.c_ssize_t
_libc.write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)


def _raise() -> None:
    """Raises the OSError for errno, with the same class as Python's own calls."""
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def send(fd: int, message: bytes) -> None:
    """Sends one message. BlockingIOError for a full socket, another OSError for other failures."""
    while _libc.send(fd, message, len(message), _NOW) < 0:
        if ctypes.get_errno() != errno.EINTR:
            _raise()


class Inbox:
    """A buffer for one message and its descriptors. One thread at a time may use it."""

    def __init__(self, size: int, descriptors: int) -> None:
        """size: bytes of a message. descriptors: at least this number of descriptors.

        receive() cuts off the excess and sets flags.
        """
        self.message = bytearray(size)
        room = _ALIGN * ((_CMSG.size + 4 * descriptors + _ALIGN - 1) // _ALIGN)
        self._control = bytearray(room)
        # These exports keep the two buffers at their addresses.
        self._message_at = (ctypes.c_char * size).from_buffer(self.message)
        self._control_at = (ctypes.c_char * room).from_buffer(self._control)
        self._iov = _Iovec(ctypes.addressof(self._message_at), size)
        self._head = _Msghdr(
            iov=ctypes.pointer(self._iov),
            iov_count=1,
            control=ctypes.addressof(self._control_at),
        )
        self._where = ctypes.byref(self._head)

    def receive(self, fd: int) -> tuple[int, list[int], int]:
        """Receives into message. Returns the number of bytes, the descriptors and recvmsg's flags.

        The caller owns the descriptors, which are closed on exec. 0 bytes mean the end of the
        connection. BlockingIOError without a message, another OSError for other failures.
        """
        head = self._head
        head.control_length = len(self._control)
        while (count := _libc.recvmsg(fd, self._where, _RECEIVE)) < 0:
            if ctypes.get_errno() != errno.EINTR:
                _raise()
        length = head.control_length
        return count, self._descriptors(length) if length else [], head.flags

    def _descriptors(self, length: int) -> list[int]:
        """The descriptors of SCM_RIGHTS in the first `length` bytes of the control messages."""
        out: list[int] = []
        at = 0
        while at + _CMSG.size <= length:
            size, level, kind = _CMSG.unpack_from(self._control, at)
            if size < _CMSG.size:
                break
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                count = (min(size, length - at) - _CMSG.size) // 4
                out += struct.unpack_from(f"@{count}i", self._control, at + _CMSG.size)
            at += _ALIGN * ((size + _ALIGN - 1) // _ALIGN)
        return out


def wake(eventfd: int) -> None:
    """Adds one to an eventfd. A full eventfd stays as it is."""
    if _libc.write(eventfd, _ONE, 8) < 0 and ctypes.get_errno() != errno.EAGAIN:
        _raise()


def take_wakes(eventfd: int) -> None:
    """Sets an eventfd to zero."""
    into = ctypes.c_uint64()
    if _libc.read(eventfd, ctypes.byref(into), 8) < 0 and ctypes.get_errno() != errno.EAGAIN:
        _raise()
