"""Loads the C library of connector/native, and builds it where a compiler is.

library() returns the library of a wheel, or of the cache directory, or builds it there. The name of
a built library has the hash of its sources, so another version never meets it. Processes that build
at the same time each build a file of their own and rename it, so none loads half a library.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import pathlib
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import threading

_log = logging.getLogger(__name__)

ABI = 3
TEXT_BYTES = 192
ALL_GROUPS = 2**32 - 1
LOAD, STORE = 0, 1
PUMP_FRAME, PUMP_WAKE = 1, 2

FLAGS = ("-std=c11", "-O2", "-g1", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra")
_BUILD_SECONDS = 120

_u32, _u64, _ptr, _int = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int


class NativeError(Exception):
    """The library cannot be used. The text says why."""


class Page(ctypes.Structure):
    """struct by_page."""

    _fields_ = [
        *((name, _u64) for name in ("address", "stride", "bytes", "offset")),
        ("group", _u32),
        ("unused", _u32),
    ]


class Piece(ctypes.Structure):
    """struct by_piece."""

    _fields_ = [
        *((name, _u32) for name in ("kind", "group", "count", "stride")),
        ("slots", ctypes.POINTER(_u64)),
        ("blocks", ctypes.POINTER(_u32)),
        ("fence", _u64),
    ]


class Run(ctypes.Structure):
    """struct by_run."""

    _fields_ = [("device", _u64), ("host", _u64), ("bytes", _u64)]


BEGIN = ctypes.CFUNCTYPE(_int, _ptr, ctypes.POINTER(Piece), ctypes.POINTER(_u64), _ptr)
POLL = ctypes.CFUNCTYPE(_int, _ptr, _u64, _ptr)
DROP = ctypes.CFUNCTYPE(None, _ptr, _u64)


class Backend(ctypes.Structure):
    """struct by_backend."""

    _fields_ = [
        ("self", _ptr),
        ("begin", BEGIN),
        ("poll", POLL),
        ("drop", DROP),
        ("load_bytes", _u64),
        ("store_bytes", _u64),
        ("max_flying", _u32),
        ("unused", _u32),
    ]


class Job(ctypes.Structure):
    """struct by_job."""

    _fields_ = [
        ("number", _u64),
        *((name, _u32) for name in ("kind", "group", "count", "block_count")),
        ("slots", ctypes.c_char_p),
        ("blocks", ctypes.c_char_p),
        ("fence", _u64),
        ("patience_ns", _u64),
    ]


class End(ctypes.Structure):
    """struct by_end."""

    _fields_ = [
        ("number", _u64),
        ("began_ns", _u64),
        *((name, _u32) for name in ("kind", "blocks", "ok", "early")),
        ("text", ctypes.c_char * TEXT_BYTES),
    ]


class Counts(ctypes.Structure):
    """struct by_counts."""

    _fields_ = [(name, _u64) for name in ("copied_bytes", "copy_ns", "pieces")]


class LoadFrame(ctypes.Structure):
    """struct by_load."""

    _fields_ = [
        ("job", _u64),
        *((name, _u32) for name in ("group", "count", "block_count", "unused")),
        ("slots", _ptr),
        ("blocks", _ptr),
    ]


class Pump(ctypes.Structure):
    """struct by_pump."""

    _fields_ = [
        ("copier", _ptr),
        ("socket", ctypes.c_int32),
        ("wake", ctypes.c_int32),
        ("early", _u32),
        ("session", _u32),
        ("patience_ns", _u64),
        ("begun", _u64),
        ("skipped", _u64),
    ]


def _to(kind: type) -> type:
    return ctypes.POINTER(kind)


# Name of each function -> its result and its arguments. blockyard.h describes the functions.
_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "by_abi": (_u32, ()),
    "by_plan_new": (_ptr, (_to(Page), _u32, _u32, _u32)),
    "by_plan_free": (None, (_ptr,)),
    "by_plan_bytes": (_u64, (_ptr, _u32)),
    "by_plan_runs": (ctypes.c_int64, (_ptr, _to(Piece), _u64, _to(Run), ctypes.c_size_t)),
    "by_plan_room": (ctypes.c_size_t, (_ptr, _u32, _u32, _u64)),
    "by_plan_copy": (_int, (_ptr, _to(Piece))),
    "by_plan_check": (_int, (_ptr, _to(_u32), ctypes.c_size_t)),
    "by_copy": (None, (_ptr, _ptr, ctypes.c_size_t)),
    "by_extents_new": (_ptr, ()),
    "by_extents_free": (None, (_ptr,)),
    "by_extents_set": (_int, (_ptr, _u32, _u64, _u64, _u32, _u64)),
    "by_extents_drop": (None, (_ptr, _u32)),
    "by_memory_backend": (None, (_to(Backend), _ptr)),
    "by_copier_new": (_ptr, (_ptr, _ptr, _to(Backend), _int)),
    "by_copier_start": (_int, (_ptr, _u32, ctypes.c_char_p)),
    "by_copier_add": (_int, (_ptr, _to(Job))),
    "by_copier_step": (None, (_ptr,)),
    "by_copier_take": (_u32, (_ptr, _to(End), _u32)),
    "by_copier_busy": (_u32, (_ptr,)),
    "by_copier_load": (None, (_ptr, _to(_u32), _to(_u32), _to(_u32))),
    "by_copier_remapped": (None, (_ptr,)),
    "by_copier_drop": (None, (_ptr, ctypes.c_char_p)),
    "by_copier_counts": (None, (_ptr, _to(Counts))),
    "by_copier_free": (None, (_ptr,)),
    "by_frame_type": (_int, (ctypes.c_char_p, ctypes.c_size_t)),
    "by_frame_load": (_int, (ctypes.c_char_p, ctypes.c_size_t, _to(LoadFrame))),
    "by_cuda_new": (_ptr, (ctypes.c_char_p, _ptr, ctypes.c_char_p)),
    "by_cuda_backend": (None, (_to(Backend), _ptr)),
    "by_cuda_fence": (_u64, (_ptr, _u64, ctypes.c_char_p)),
    "by_cuda_keep": (None, (_ptr, _u64)),
    "by_cuda_drop": (None, (_ptr, _u64)),
    "by_cuda_pin": (_int, (_ptr, _u64, _u64)),
    "by_cuda_unpin": (_int, (_ptr, _u64)),
    "by_cuda_calls": (None, (_ptr, _to(_u64), _to(_u64))),
    "by_cuda_free": (None, (_ptr,)),
    "by_pump": (_int, (_to(Pump), ctypes.c_int64)),
    "by_loader_new": (_ptr, (_ptr, _int, ctypes.c_char_p)),
    "by_loader_go": (None, (_ptr, _to(Pump))),
    "by_loader_hold": (None, (_ptr, _to(_u64))),
    "by_loader_free": (None, (_ptr,)),
}
# These take microseconds and never wait, so they keep Python's lock. To take the lock back may last
# a switch interval.
_KEEP_LOCK = frozenset(
    "by_abi by_extents_set by_extents_drop by_copier_add by_copier_take by_copier_busy"
    " by_copier_load by_copier_remapped by_copier_counts by_plan_bytes by_plan_room"
    " by_frame_type by_frame_load by_plan_check by_cuda_keep by_cuda_drop by_cuda_fence"
    " by_loader_go by_loader_hold".split()
)


class Library:
    """The functions of the library, as attributes. path: its file."""

    def __init__(self, path: pathlib.Path) -> None:
        """NativeError when the file is not the library of this version."""
        self.path = path
        try:
            waits, keeps = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(keeps if name in _KEEP_LOCK else waits, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        except (OSError, AttributeError) as err:
            raise NativeError(f"{path}: {err}") from None
        abi = self.by_abi()
        if abi != ABI:
            raise NativeError(f"{path}: interface {abi}, want {ABI}")

    def __getattr__(self, name: str) -> ctypes._CFuncPtr:
        raise AttributeError(f"{self.path} has no {name}")


def source_directory() -> pathlib.Path | None:
    """The sources: inside the package in a wheel, beside it in a checkout. None without any."""
    package = pathlib.Path(__file__).resolve().parent
    for directory in (package / "_native", package.parent / "native"):
        if (directory / "blockyard.h").is_file():
            return directory
    return None


def source_files(directory: pathlib.Path) -> list[pathlib.Path]:
    """The files that the library is built from, sorted."""
    return sorted(p for p in directory.iterdir() if p.suffix in (".c", ".h", ".map"))


def file_name(directory: pathlib.Path, machine: str = platform.machine()) -> str:
    """The file name of the library of these sources for a machine, such as "x86_64"."""
    digest = hashlib.sha256(" ".join((*FLAGS, machine)).encode())
    for path in source_files(directory):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return f"blockyard-{digest.hexdigest()[:16]}.{machine}.so"


def compiler() -> str | None:
    """A C compiler: CC if it is set, else the first of the usual names. None without any."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    return None


def build(directory: pathlib.Path, into: pathlib.Path, cc: str) -> None:
    """Builds the library of the sources in directory, atomically. NativeError with the output."""
    handle, name = tempfile.mkstemp(prefix=".build-", dir=into.parent)
    os.close(handle)
    try:
        sources = [str(p) for p in source_files(directory) if p.suffix == ".c"]
        script = f"-Wl,--version-script={directory / 'blockyard.map'}"
        command = [cc, *FLAGS, script, "-o", name, *sources, "-ldl"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
        )
        if done.returncode:
            raise NativeError(f"{cc}: {done.stderr.strip()[-2000:]}")
        os.chmod(name, 0o755)
        os.rename(name, into)
    except (OSError, subprocess.SubprocessError) as err:
        raise NativeError(f"{cc}: {err}") from None
    finally:
        pathlib.Path(name).unlink(missing_ok=True)


def cache_directory() -> pathlib.Path:
    """The user's own directory for built libraries. NativeError when others may write there."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = pathlib.Path(base).expanduser() / "blockyard"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = directory.stat()
    except (OSError, RuntimeError) as err:
        raise NativeError(f"no cache directory: {err}") from None
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NativeError(f"{directory}: other users may write there")
    return directory


def _built(directory: pathlib.Path) -> Library | None:
    """The library in a wheel. None without one, or with one that needs a newer libc."""
    path = directory / file_name(directory)
    try:
        return Library(path) if path.is_file() else None
    except NativeError as err:
        _log.info("the library of the wheel is not used: %s", err)
        return None


def _load() -> Library:
    if not sys.platform.startswith("linux") or sys.byteorder != "little":
        raise NativeError("only for little-endian Linux")
    directory = source_directory()
    if directory is None:
        raise NativeError("the sources are missing")
    found = _built(directory)
    if found is not None:
        return found
    path = cache_directory() / file_name(directory)
    if path.is_file():
        try:
            return Library(path)
        except NativeError as err:  # another machine's compiler, or a file cut short
            _log.info("the library is built again: %s", err)
    cc = compiler()
    if cc is None:
        raise NativeError("no C compiler")
    build(directory, path, cc)
    return Library(path)


_lock = threading.Lock()
_found: Library | NativeError | None = None


def library() -> Library:
    """The library. The first call may build it, in some seconds. NativeError: it cannot be used.

    Later calls give the same answer. Thread-safe.
    """
    global _found
    with _lock:
        if _found is None:
            try:
                _found = _load()
            except NativeError as err:
                _found = err
            except Exception as err:  # such as a full disk: Python copies
                _found = NativeError(f"{type(err).__name__}: {err}")
        if isinstance(_found, NativeError):
            raise _found
        return _found
