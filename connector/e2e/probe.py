"""Counters inside an engine core, independent of the connector.

vLLM loads a scheduler class by name. The classes are vLLM's own with a file that the test process
reads. They count every step, even one without any output, and note when no step is left to take.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from e2e.probe_file import ENV, LAYOUT, Counts


class _Counting:
    """Counters of steps and preemptions, for a class beside a scheduler of vLLM."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]
        # data_parallel_rank is 0 in all ranks if the ranks do not compute together.
        rank = vllm_config.parallel_config.data_parallel_index
        path = os.path.join(os.environ[ENV], f"rank-{rank}")
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(fd, LAYOUT.size)
        self._file = mmap.mmap(fd, LAYOUT.size)
        os.close(fd)
        self._note(Counts(0, 0, os.getpid(), 0))

    def _note(self, counts: Counts) -> None:
        self._counts = counts
        LAYOUT.pack_into(self._file, 0, *counts)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        old, preempted = self._counts, len(output.preempted_req_ids or ())
        self._note(old._replace(steps=old.steps + 1, preempted=old.preempted + preempted))
        return output

    def has_requests(self) -> bool:
        """vLLM asks before every step, and waits for a request after the answer False.

        True also while the connector has an offer without an answer or a copy in flight.
        """
        busy = bool(super().has_requests())  # type: ignore[misc]
        if busy != self._counts.busy:
            self._note(self._counts._replace(busy=int(busy)))
        return busy


class CountingScheduler(_Counting, AsyncScheduler):
    """vLLM's scheduler for steps that overlap, with the counters."""


class PlainScheduler(_Counting, Scheduler):
    """vLLM's scheduler for steps that do not overlap, with the counters."""
