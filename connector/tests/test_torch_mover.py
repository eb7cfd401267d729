"""CudaMover with a stand-in for the driver: plain memory, streams and events of the test."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import random
import threading
import unittest
import weakref
from typing import Any
from unittest import mock

from blockyard import torch_mover
from blockyard.mover import GeometryError, Pages
from blockyard.torch_mover import CudaCopy, CudaMover


class FakeEvent:
    """An event. Its stream reaches it in work()."""

    def __init__(self) -> None:
        self.reached = False

    def query(self) -> bool:
        return self.reached


class FakeStream:
    """A stream that keeps copies until work(), which stops at an event that is not reached."""

    def __init__(self) -> None:
        self.queue: list[tuple[FakeEvent | None, list[tuple[int, int, int]], FakeEvent]] = []

    def work(self) -> None:
        while self.queue:
            fence, runs, event = self.queue[0]
            if fence is not None and not fence.reached:
                return
            for to, source, size in runs:
                ctypes.memmove(to, source, size)
            event.reached = True
            del self.queue[0]


class FakeDriver:
    def __init__(self) -> None:
        self.streams: list[FakeStream] = []
        self.calls: list[bool] = []
        self.pinned: list[bool] = []
        self.registered: list[int] = []
        self.unregistered: list[int] = []
        self.error = 0

    def stream(self) -> FakeStream:
        self.streams.append(FakeStream())
        return self.streams[-1]

    def fence(self) -> FakeEvent:
        return FakeEvent()

    def copy(
        self,
        stream: FakeStream,
        fence: FakeEvent | None,
        to: list[int],
        source: list[int],
        sizes: list[int],
        load: bool,
        pinned: bool = True,
    ) -> FakeEvent:
        self.calls.append(load)
        self.pinned.append(pinned)
        event = FakeEvent()
        stream.queue.append((fence, list(zip(to, source, sizes, strict=True)), event))
        return event

    def register(self, address: int, size: int) -> int:
        self.registered.append(address)
        return self.error

    def unregister(self, address: int) -> int:
        self.unregistered.append(address)
        return self.error


BLOCKS, LAYERS, PAGE = 8, 3, 64


class CudaCase(unittest.TestCase):
    def setUp(self) -> None:
        rng = random.Random(4)
        size = BLOCKS * LAYERS * PAGE
        self.kv = (ctypes.c_char * size).from_buffer_copy(rng.randbytes(size))
        self.slots = (ctypes.c_char * size).from_buffer_copy(rng.randbytes(size))
        base, limit = ctypes.addressof(self.kv), ctypes.addressof(self.kv) + size
        described = [
            (base + n * BLOCKS * PAGE, PAGE, PAGE, n * PAGE, 0, limit) for n in range(LAYERS)
        ]
        self.driver = FakeDriver()
        self.mover = CudaMover(Pages(described, BLOCKS, "cuda:0"), self.driver)
        self.loads, self.stores = self.driver.streams

    def pin(self, slots: int = BLOCKS) -> None:
        """Pins the first slots as one piece."""
        self.mover.on_map(self.slot(0), slots * LAYERS * PAGE)

    def slot(self, number: int) -> int:
        return ctypes.addressof(self.slots) + number * LAYERS * PAGE

    def block(self, number: int) -> bytes:
        pieces = (self.kv.raw[(n * BLOCKS + number) * PAGE :][:PAGE] for n in range(LAYERS))
        return b"".join(pieces)


class Copies(CudaCase):
    def setUp(self) -> None:
        super().setUp()
        self.pin()

    def test_a_store_and_a_load_of_it_move_every_byte(self) -> None:
        want = [self.block(5), self.block(2)]
        stored = self.mover.store([self.slot(0), self.slot(1)], [[5, 2]], None)
        self.stores.work()
        self.assertTrue(stored.done())
        self.assertEqual(self.slots.raw[: 2 * LAYERS * PAGE], b"".join(want))
        loaded = self.mover.load([self.slot(1), self.slot(0)], [[6, 7]], None)
        self.loads.work()
        self.assertTrue(loaded.done())
        self.assertEqual([self.block(7), self.block(6)], want)
        self.assertEqual(self.driver.calls, [False, True])

    def test_a_copy_ends_with_its_event_and_waits_for_its_fence(self) -> None:
        fence = self.mover.fence()
        assert isinstance(fence, FakeEvent)
        copy = self.mover.store([self.slot(0)], [[1]], fence)
        self.stores.work()
        self.assertFalse(copy.done(), "the engine has yet to compute the block")
        fence.reached = True
        self.stores.work()
        self.assertTrue(copy.done())

    def test_a_load_does_not_stand_behind_a_store_that_waits(self) -> None:
        self.mover.store([self.slot(0)], [[1]], self.mover.fence())
        load = self.mover.load([self.slot(1)], [[2]], None)
        self.stores.work()
        self.loads.work()
        self.assertTrue(load.done())

    def test_a_block_outside_the_pool_queues_nothing(self) -> None:
        for copy in (self.mover.load, self.mover.store):
            with self.assertRaises(GeometryError):
                copy([self.slot(0)], [[BLOCKS]], None)
        self.assertEqual(self.driver.calls, [])

    def test_no_load_may_begin_without_a_fence(self) -> None:
        self.assertTrue(self.mover.needs_fence)


class Unpinned(CudaCase):
    """Copies of memory that is not pinned yet."""

    def test_they_are_made_all_the_same(self) -> None:
        want = self.block(5)
        self.mover.store([self.slot(0)], [[5]], None)
        self.stores.work()
        load = self.mover.load([self.slot(0)], [[6]], None)
        self.loads.work()
        self.assertTrue(load.done())
        self.assertEqual(self.block(6), want)
        self.assertEqual(self.driver.pinned, [False, False], "not for the call that takes many")

    def test_nothing_waits_in_the_driver_for_a_fence(self) -> None:
        """The driver would block the calling thread, and loads would wait for a store."""
        fence = FakeEvent()
        store = self.mover.store([self.slot(0)], [[1]], fence)
        self.assertFalse(store.done())
        self.assertEqual(self.driver.calls, [])
        fence.reached = True
        self.assertFalse(store.done())
        self.assertEqual(self.stores.queue[0][0], None, "queued behind no fence")
        self.stores.work()
        self.assertTrue(store.done())

    def test_a_copy_that_cannot_be_queued_later_fails(self) -> None:
        fence = FakeEvent()
        load = self.mover.load([self.slot(0)], [[1]], fence)
        fence.reached = True
        with (
            mock.patch.object(self.driver, "copy", side_effect=RuntimeError("device lost")),
            self.assertRaisesRegex(RuntimeError, "device lost"),
        ):
            load.done()

    def test_every_slot_of_a_copy_must_lie_in_a_pinned_piece(self) -> None:
        self.pin(2)
        slots = [self.slot(n) for n in range(3)]
        for chosen, pinned in ((slots[:2], True), (slots[1:], False), (slots[2:], False)):
            self.mover.load(chosen, [list(range(len(chosen)))], None)
            self.assertEqual(self.driver.pinned[-1], pinned)
        self.mover.on_unmap(self.slot(0), 2 * LAYERS * PAGE)
        self.mover.load(slots[:1], [[0]], None)
        self.assertFalse(self.driver.pinned[-1])

    def test_what_is_pinned_while_a_copy_waits_counts(self) -> None:
        fence = FakeEvent()
        load = self.mover.load([self.slot(0)], [[1]], fence)
        self.pin()
        fence.reached = True
        load.done()
        self.assertEqual(self.driver.pinned, [True])


class Pinning(CudaCase):
    def test_what_was_pinned_is_unpinned_once(self) -> None:
        self.assertTrue(self.mover.on_map(4096, 100))
        self.mover.on_unmap(4096, 100)
        self.mover.on_unmap(4096, 100)
        self.assertEqual((self.driver.registered, self.driver.unregistered), ([4096], [4096]))

    def test_memory_that_cannot_be_pinned_is_used_all_the_same_and_said_once(self) -> None:
        self.driver.error = 2
        with self.assertLogs("blockyard.torch_mover", "WARNING") as logs:
            self.assertFalse(self.mover.on_map(4096, 100))
            self.assertFalse(self.mover.on_map(8192, 100))
        self.assertEqual(len(logs.output), 1)
        self.assertIn("ulimit", logs.output[0])
        self.mover.on_unmap(4096, 100)
        self.assertEqual(self.driver.unregistered, [])

    def test_memory_that_cannot_be_unpinned_is_told_to_who_would_unmap_it(self) -> None:
        self.mover.on_map(4096, 100)
        self.driver.error = 4
        with self.assertRaisesRegex(RuntimeError, "CUDA error 4"):
            self.mover.on_unmap(4096, 100)

    def test_other_errors_are_not_put_down_to_a_limit(self) -> None:
        self.driver.error = 201
        with self.assertLogs("blockyard.torch_mover", "WARNING") as logs:
            self.mover.on_map(4096, 100)
        self.assertIn("CUDA error 201", logs.output[0])
        self.assertNotIn("ulimit", logs.output[0])


class FakeCuda:
    """A stand-in of the CUDA driver's contexts. Each thread has the context that it has set."""

    def __init__(self, context: int) -> None:
        self.current = threading.local()
        self.current.context = context
        self.without: list[str] = []  # calls of threads without a context
        self.pinned: list[int] = []

    def __getattr__(self, name: str) -> Any:
        function = mock.Mock(side_effect=lambda *args: self.call(name, *args))
        setattr(self, name, function)
        return function

    def call(self, name: str, *args: Any) -> int:
        if name == "cuCtxGetCurrent":
            args[0]._obj.value = getattr(self.current, "context", 0)
        elif name == "cuCtxSetCurrent":
            self.current.context = args[0].value
        elif not getattr(self.current, "context", 0):
            self.without.append(name)
            return 201
        elif name == "cuMemHostRegister_v2":
            self.pinned.append(args[0])
        return 0


class Contexts(unittest.TestCase):
    def driver(self, context: int) -> tuple[torch_mover.TorchDriver, FakeCuda]:
        cuda = FakeCuda(context)
        torch = mock.MagicMock()
        with (
            mock.patch.dict("sys.modules", {"torch": torch}),
            mock.patch.object(torch_mover.ctypes, "CDLL", return_value=cuda),
        ):
            return torch_mover.TorchDriver("cuda:0"), cuda

    def test_calls_of_the_copying_thread_run_in_the_engines_context(self) -> None:
        """torch's own switch has no effect for the default device of a new thread."""
        driver, cuda = self.driver(77)
        stream = mock.MagicMock(cuda_stream=5)
        results: list[int] = []

        def copying() -> None:
            results.append(driver.register(4096, 100))
            driver.copy(stream, None, [1], [2], [3], True)
            results.append(driver.unregister(4096))

        thread = threading.Thread(target=copying)
        thread.start()
        thread.join()
        self.assertEqual((results, cuda.without, cuda.pinned), ([0, 0], [], [4096]))

    def test_what_the_driver_reads_lives_until_the_event(self) -> None:
        driver, _ = self.driver(77)
        arrays: list[weakref.ref[Any]] = []

        class Tensor(list):
            pass

        def tensor(numbers: list[int], dtype: object) -> Tensor:
            made = Tensor(numbers)
            arrays.append(weakref.ref(made))
            return made

        driver._torch.tensor = tensor
        given: list[list[int]] = []
        driver._batch = lambda *lists: given.extend(list(array) for array in lists)
        event = driver._torch.cuda.Event.return_value
        event.query.return_value = False
        copy = CudaCopy(driver.copy(mock.MagicMock(), None, [1], [2], [3], True))
        gc.collect()
        self.assertFalse(copy.done())
        self.assertEqual(given, [[2], [1], [3]], "sources, destinations, sizes")
        self.assertEqual([list(array() or ()) for array in arrays], [[2], [1], [3]])
        event.query.return_value = True
        self.assertTrue(copy.done())
        del copy
        self.assertEqual([array() for array in arrays], [None] * 3)

    def test_memory_that_is_not_pinned_goes_run_by_run(self) -> None:
        driver, cuda = self.driver(77)
        driver._batch = mock.Mock()
        driver.copy(mock.MagicMock(cuda_stream=5), None, [1, 4], [2, 5], [3, 6], True, False)
        self.assertFalse(driver._batch.called)
        calls = [call.args for call in cuda.cuMemcpyHtoDAsync_v2.call_args_list]
        self.assertEqual(calls, [(1, 2, 3, 5), (4, 5, 6, 5)])

    def test_a_thread_without_a_context_makes_no_driver(self) -> None:
        with self.assertRaisesRegex(GeometryError, "no context"):
            self.driver(0)


class Torch(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
    def test_a_machine_without_a_driver_is_told_so(self) -> None:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            with self.assertRaisesRegex(GeometryError, "no CUDA driver"):
                torch_mover.TorchDriver("cuda:0")
        else:
            self.skipTest("there is a CUDA driver")


if __name__ == "__main__":
    unittest.main()
