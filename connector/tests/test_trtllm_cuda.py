"""TensorRT-LLM's worker on the plane in C with the fake CUDA driver, and a real agent."""

from __future__ import annotations

import ctypes
import unittest
from typing import Any
from unittest import mock

from tests import fakedriver, planes
from tests.agentproc import needs_agent, wait_until
from tests.trtllm_case import (
    BLOCK_TOKENS,
    BlockyardWorker,
    Case,
    Executor,
    SecondExecutor,
    prompt,
    worker_module,
)


def calls(worker: BlockyardWorker) -> tuple[int, int]:
    """Batches and single copies of a worker."""
    return fakedriver.calls(worker._copies._session._mover)


def pinned(worker: BlockyardWorker) -> bool:
    """Whether all memory that a worker has mapped is pinned."""
    pinner = worker._copies._session._pinner
    return bool(pinner._areas) and pinner.all_pinned


@planes.needs_c
@needs_agent
class Cuda(Case):
    def setUp(self) -> None:
        with mock.patch("tests.planes.in_c", True):
            super().setUp()
        patch = mock.patch.object(worker_module, "_device", lambda: "cuda:0")
        patch.start()
        self.addCleanup(patch.stop)
        self.driver, _ = fakedriver.install(self)

    def on_cuda(self, kind: type[Executor]) -> type[Executor]:
        """An executor whose pools are memory of the device."""
        driver = self.driver

        class OnCuda(kind):  # type: ignore[misc, valid-type]
            def register(self, worker: Any, pool: Any) -> None:
                pool.device = "cuda:0"
                size = ctypes.c_size_t(len(pool.memory))
                driver.fake_device(ctypes.c_void_p(pool.data_ptr()), size)
                super().register(worker, pool)

        return OnCuda

    def check(self, kind: type[Executor]) -> None:
        """Stores and loads a prompt on two ranks. The executor checks every byte."""
        engine = self.engine(world=2, kind=self.on_cuda(kind))
        for worker in engine.workers:
            wait_until("the memory is pinned", lambda: pinned(worker))
        before = [calls(worker) for worker in engine.workers]
        self.run_to_end(engine, self.request(prompt(1)))
        self.stored(4)
        stored = [calls(worker) for worker in engine.workers]
        again = self.request(prompt(1))
        self.run_to_end(engine, again)
        self.assertEqual(engine.hits[again.request_id], 4 * BLOCK_TOKENS)
        for worker, old, middle in zip(engine.workers, before, stored):
            batches, singles = calls(worker)
            self.assertTrue(old[0] < middle[0] < batches, (old, middle, batches))
            self.assertEqual(singles, old[1])
            self.assertEqual(worker.stats()["loaded_blocks"], 4)

    def test_stores_and_loads_are_batches(self) -> None:
        self.check(Executor)

    def test_stores_and_loads_of_the_second_manager_are_batches(self) -> None:
        self.check(SecondExecutor)


if __name__ == "__main__":
    unittest.main()
