"""The two data planes of a worker: in C (native_plane.py), and in Python as reference and fallback.

A plane makes the parts of a WorkerSession that copy. plane_for() chooses the plane.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from typing import Protocol

from . import native
from .copying import Copier, CopyJob
from .extents import Extent, Extents
from .mover import CopyEngine, Pages, mover_for
from .settings import Settings

_log = logging.getLogger(__name__)


class JobCopier(Protocol):
    """Copies jobs. copying.Copier describes the methods.

    unlocked: a load that arrives with a LOAD begins without Python's lock. micros: microseconds
    from the first piece to the end of each ended load; the caller removes them.
    """

    unlocked: bool
    micros: dict[int, int]

    @property
    def busy(self) -> bool:
        """Whether a job has not ended."""

    def pause(self) -> float | None:
        """Seconds until step() has work, None without a limit."""

    def add(self, job: CopyJob) -> bool:
        """Queues a job. False: the job has been added before."""

    def step(self) -> list[tuple[int, bool]]:
        """Numbers of the ended jobs, and whether they succeeded."""

    def drop(self, problem: str) -> list[tuple[int, bool]]:
        """Fails queued and held jobs. Returns those that have ended."""

    def wait(self, fd: int, timeout: float | None, session: int | None) -> None:
        """Waits until fd (-1: none) or the wake descriptor is readable, at most timeout seconds.

        session: upper half of the numbers of jobs that may begin with a LOAD alone, or None.
        """

    def close(self) -> None:
        """Frees the copier. No copy may be in flight."""


class Plane(Protocol):
    """Makes the parts of one worker."""

    def extents(
        self, on_map: Callable[[Extent], None], on_unmap: Callable[[Extent], None]
    ) -> Extents:
        """The table of mapped extents."""

    def mover(self, pages: Pages) -> CopyEngine:
        """The copy engine for the device of the pages."""

    def copier(
        self,
        mover: CopyEngine,
        pages: Pages,
        extents: Extents,
        counters: dict[str, int],
        wake: int,
    ) -> JobCopier:
        """The copier. extents: from extents(). wake: an eventfd that ends wait()."""


class PythonCopier(Copier):
    """A Copier in the thread that waits for frames."""

    def __init__(
        self,
        mover: CopyEngine,
        pages: Pages,
        extents: Extents,
        counters: dict[str, int],
        wake: int,
    ) -> None:
        super().__init__(mover, pages, extents, counters)
        self.unlocked = False
        self._wake = wake

    def wait(self, fd: int, timeout: float | None, session: int | None) -> None:
        """See JobCopier. LOADs wait for Python."""
        if timeout is not None and 0 < timeout < 1e-3:
            time.sleep(timeout)  # poll() would round up to a millisecond
            timeout = 0
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if fd >= 0:
            poll.register(fd, select.POLLIN)
        poll.poll(None if timeout is None else timeout * 1000)


class PythonPlane:
    """The plane in Python."""

    def extents(
        self, on_map: Callable[[Extent], None], on_unmap: Callable[[Extent], None]
    ) -> Extents:
        """See Plane."""
        return Extents(on_map=on_map, on_unmap=on_unmap)

    def mover(self, pages: Pages) -> CopyEngine:
        """See Plane."""
        return mover_for(pages)

    def copier(
        self,
        mover: CopyEngine,
        pages: Pages,
        extents: Extents,
        counters: dict[str, int],
        wake: int,
    ) -> PythonCopier:
        """See Plane."""
        return PythonCopier(mover, pages, extents, counters, wake)


def plane_for(settings: Settings) -> Plane:
    """The plane in C where its library can be loaded or built, else the plane in Python.

    Logs one line that says which plane runs.
    """
    reason = "the setting `native` is false"
    if settings.native:
        try:
            library = native.library()
        except native.NativeError as err:
            reason = str(err)
        else:
            from .native_plane import NativePlane

            plane = NativePlane(library, settings.copy_threads)
            _log.info(
                "copies run in C (%s), on %d threads in plain memory", library.path, plane.threads
            )
            return plane
    _log.info("copies run in Python: %s", reason)
    return PythonPlane()
