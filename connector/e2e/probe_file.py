"""The file of e2e.probe's counters, which the test process reads. Imports no vLLM."""

from __future__ import annotations

import pathlib
import struct
from typing import NamedTuple

ENV = "BLOCKYARD_E2E_PROBE"  # the directory of an engine's counters
LAYOUT = struct.Struct("<QQQQ")


class Counts(NamedTuple):
    """Counters since the engine core started, and its state."""

    steps: int  # calls of schedule()
    preempted: int  # preempted requests
    pid: int  # of the engine core
    busy: int  # 1 while the engine core has a step to take, be it for a copy alone


def read(directory: pathlib.Path) -> list[Counts]:
    """The counters of every engine core that writes to `directory`, in the order of ranks."""
    return [Counts(*LAYOUT.unpack(p.read_bytes())) for p in sorted(directory.glob("rank-*"))]
