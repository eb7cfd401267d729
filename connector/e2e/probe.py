"""What the tests count inside an engine core, from outside the connector.

vLLM loads the scheduler class that it is told to by name. This one is vLLM's own plus two
counters in a file that the test process reads: neither vLLM nor the connector is changed, and
a step is counted even if nothing is reported to anybody.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from e2e.probe_file import ENV, LAYOUT, Counts


class CountingScheduler(AsyncScheduler):
    """vLLM's scheduler, counted."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        # The rank is 0 in every rank of a model whose ranks do not compute together.
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
        output = super().schedule(*args, **kwargs)
        self._count(1, len(output.preempted_req_ids or ()))
        return output
