"""Counters inside an engine core, independent of the connector.

vLLM loads a scheduler class by name. The classes are vLLM's own with two counters in a file that
the test process reads. They count every step, even one without any output.
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
        self._counts = Counts(0, 0, os.getpid())
        self._count(0, 0)

    def _count(self, steps: int, preempted: int) -> None:
        old = self._counts
        self._counts = Counts(old.steps + steps, old.preempted + preempted, old.pid)
        LAYOUT.pack_into(self._file, 0, *self._counts)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        self._count(1, len(output.preempted_req_ids or ()))
        return output


class CountingScheduler(_Counting, AsyncScheduler):
    """vLLM's scheduler for steps that overlap, with the counters."""


class PlainScheduler(_Counting, Scheduler):
    """vLLM's scheduler for steps that do not overlap, with the counters."""
