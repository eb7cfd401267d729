"""The fake CUDA driver of connector/native/tests, in this process or for a program."""

from __future__ import annotations

import ctypes
import pathlib
import subprocess
import tempfile
import threading
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from blockyard import native

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "native" / "tests"

_scratch = tempfile.TemporaryDirectory()


def path() -> str:
    """The path of the fake libcuda.so.1, built once. SkipTest without a compiler."""
    built = pathlib.Path(_scratch.name) / "libcuda.so.1"
    cc = native.compiler()
    if cc is None:
        raise unittest.SkipTest("no C compiler for the fake CUDA driver")
    if not built.exists():
        command = [cc, "-std=c11", "-O1", "-fPIC", "-shared", "-pthread", "-o", str(built)]
        subprocess.run([*command, *map(str, sorted(SOURCES.glob("fake*.c")))], check=True)
    return str(built)


def calls(mover: Any) -> tuple[int, int]:
    """Batches and single copies of a NativeCudaMover."""
    counts = ctypes.c_uint64(), ctypes.c_uint64()
    mover._lib.by_cuda_calls(mover._handle, *map(ctypes.byref, counts))
    return counts[0].value, counts[1].value


def install(case: unittest.TestCase) -> tuple[Any, ctypes.c_void_p]:
    """Gives a test the fake driver, begun anew, and a torch that has one stream of the engine.

    Returns the driver's calls and the stream. The calling thread has a context until the test takes
    the context away. Other threads get one from `torch.cuda.device()`.
    """
    driver = ctypes.CDLL(path())
    driver.fake_reset(ctypes.c_uint64(3))
    driver.fake_context(1)
    stream = ctypes.c_void_p()
    case.assertEqual(driver.cuStreamCreate(ctypes.byref(stream), 0), 0)
    case.addCleanup(driver.cuStreamDestroy_v2, stream)

    own = threading.get_ident()

    @contextmanager
    def device(_: object) -> Iterator[None]:
        if threading.get_ident() != own:
            driver.fake_context(1)
        yield

    torch = mock.MagicMock()
    torch.cuda.device = device
    torch.cuda.current_stream.return_value.cuda_stream = stream.value
    for patch in (
        mock.patch.dict("sys.modules", {"torch": torch}),
        mock.patch("blockyard.native_cuda.DRIVER", path()),
    ):
        patch.start()
        case.addCleanup(patch.stop)
    return driver, stream
