"""The gate of e2e.slow's copies, in a file that the test and the workers share."""

from __future__ import annotations

import mmap
import os
import pathlib
import struct

ENV = "BLOCKYARD_E2E_THROTTLE"
_FLAGS = struct.Struct("<QQ")  # hold loads, hold stores
_COUNTS = struct.Struct("<QQ")  # loads and stores that have reached the gate


class Throttle:
    """A gate in a shared file. No copy of a kind begins while the gate is shut for the kind."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(fd, _FLAGS.size + _COUNTS.size)
        self._map = mmap.mmap(fd, _FLAGS.size + _COUNTS.size)
        os.close(fd)

    def hold(self, *, loads: bool = False, stores: bool = False) -> None:
        """Shuts the gate for the kinds that are true, and opens it for the others."""
        _FLAGS.pack_into(self._map, 0, loads, stores)

    def held(self, kind: str) -> bool:
        """Whether the gate is shut for "load" or "store"."""
        return bool(_FLAGS.unpack_from(self._map, 0)[kind == "store"])

    def arrive(self, kind: str) -> None:
        """Counts a copy that has reached the gate. Only one process may call it."""
        loads, stores = _COUNTS.unpack_from(self._map, _FLAGS.size)
        if kind == "store":
            stores += 1
        else:
            loads += 1
        _COUNTS.pack_into(self._map, _FLAGS.size, loads, stores)

    def arrived(self, kind: str) -> int:
        """The number of copies of a kind that have reached the gate."""
        return _COUNTS.unpack_from(self._map, _FLAGS.size)[kind == "store"]

    def close(self) -> None:
        """Unmaps the file."""
        self._map.close()
