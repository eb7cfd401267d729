"""The processors near a worker's GPU, for the threads that copy.

On a machine with several memory nodes (NUMA) the agent places its memory near the GPUs. A thread on
another node's processors would move each byte across the link between the nodes.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)

DRIVER = "libcuda.so.1"
_ADDRESS_BYTES = 32


def pci_address(device: int) -> str:
    """The PCI address of a CUDA device as sysfs has it. OSError without a driver or device."""
    driver = ctypes.CDLL(DRIVER)
    text = ctypes.create_string_buffer(_ADDRESS_BYTES)
    error = driver.cuDeviceGetPCIBusId(text, _ADDRESS_BYTES, device)
    if error:
        raise OSError(f"CUDA error {error}")
    return text.value.decode("ascii", "replace").lower()


def processors_near(address: str, root: str = "/sys") -> set[int]:
    """The processors of the memory node of a PCI device. OSError or ValueError when unknown."""
    path = pathlib.Path(root, "bus/pci/devices", address, "local_cpulist")
    found: set[int] = set()
    for part in path.read_text("ascii").strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


@contextmanager
def near(
    device: str,
    root: str = "/sys",
    address_of: Callable[[int], str] = pci_address,
) -> Iterator[None]:
    """Threads that start in this context run on the processors near the device.

    device: "cuda:N"; other devices change nothing. The calling thread has its own processors again
    at the end. Nothing changes where all allowed processors are near the device, where none is, and
    where the system refuses the change. At most one log line says what has changed or why not.
    """
    own = os.sched_getaffinity(0)
    moved = _move(_wanted(device, own, root, address_of), device)
    try:
        yield
    finally:
        if moved:
            os.sched_setaffinity(0, own)


def _move(wanted: set[int], device: str) -> bool:
    """Moves the calling thread to these processors. Returns whether it has moved."""
    if not wanted:
        return False
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as err:  # a sandbox may forbid the call
        _log.warning("copies run on any processor: %s", err)
        return False
    _log.info("copies run on the processors near %s: %s", device, _ranges(wanted))
    return True


def _wanted(
    device: str, own: set[int], root: str, address_of: Callable[[int], str]
) -> set[int]:
    """The processors for threads beside this device. Empty: the threads may run anywhere."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return set()
    try:
        address = address_of(int(number or 0))
        all_near = processors_near(address, root)
    except (OSError, ValueError, AttributeError) as err:
        _log.info("copies run on any processor: %s is not known to be near one: %s", device, err)
        return set()
    wanted = own & all_near
    if wanted == own:
        _log.debug("all processors are near %s", device)
        return set()
    if not wanted:
        _log.info("copies run on any processor: this process has none near %s", device)
        return set()
    return wanted


def _ranges(numbers: set[int]) -> str:
    """Numbers as text, such as 0-3,8."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
