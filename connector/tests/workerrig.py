"""A test rig of a worker session with a real agent, KV in plain memory, and a scripted scheduler.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import random
import struct
import threading
import time
import unittest
from collections.abc import Sequence
from typing import Any

from blockyard import frames, packed
from blockyard.extents import Extents
from blockyard.frames import HelloFields, RegisterFields
from blockyard.mover import CpuMover, Pages
from blockyard.packed import Slot
from blockyard.settings import Settings
from blockyard.transport import Frame, Link
from blockyard.work import Load, Store, Work
from blockyard.worker import WorkerIdentity, WorkerSession
from tests import planes
from tests.agentproc import AgentProcess, needs_agent, wait_until

LAYERS = 3
PAGE = 4096
BLOCK = LAYERS * PAGE
TOKENS = 4
NAMESPACE: dict[str, str | int] = {
    "model": "worker-rig",
    "weights": "w1",
    "dtype": "bfloat16",
    "num_layers": LAYERS,
    "outer_dim": 2,
    "page_size": TOKENS,
    "inner_dim": PAGE // (2 * TOKENS * 2),
    "dtype_width_bytes": 2,
    "layout": "fully_contiguous",
    "tp": 1,
    "pp": 1,
    "dcp": 1,
    "kv_format": "f1",
}


# The tests break connections on purpose. Their warnings are no news.
logging.getLogger("blockyard").addHandler(logging.NullHandler())

_jobs = itertools.count(1 << 32)  # unique in the process, like an engine's job numbers


class Kv:
    """A KV cache in plain memory: one tensor for each layer."""

    def __init__(self, blocks: int, layers: int = LAYERS, page: int = PAGE) -> None:
        self.blocks = blocks
        self.page = page
        self.layers = [(ctypes.c_char * (blocks * page))() for _ in range(layers)]
        self.rng = random.Random(1)

    def pages(self, share_offset: int = 0) -> Pages:
        described = []
        for number, layer in enumerate(self.layers):
            at = ctypes.addressof(layer)
            described.append((at, self.page, self.page, number * self.page, 0, at + len(layer)))
        return Pages(described, self.blocks, share_offset=share_offset)

    def read(self, block: int) -> bytes:
        start = block * self.page
        return b"".join(layer.raw[start : start + self.page] for layer in self.layers)

    def write(self, block: int, data: bytes) -> None:
        for number, layer in enumerate(self.layers):
            piece = data[number * self.page : (number + 1) * self.page]
            ctypes.memmove(ctypes.addressof(layer) + block * self.page, piece, self.page)

    def fill(self, block: int) -> bytes:
        """Fills a block with random bytes and returns the bytes."""
        data = self.rng.randbytes(self.page * len(self.layers))
        self.write(block, data)
        return data


class ScriptedScheduler:
    """A scheduler's connection. The test sends every frame."""

    def __init__(self, agent: AgentProcess, worker_id: int) -> None:
        self.hello = HelloFields("test 1", worker_id, namespace=NAMESPACE, incarnation=1)
        self.requests = 0
        self.extents = Extents()
        self.link = Link(agent.socket)
        self.welcome = self.ask(frames.HELLO, frames.encode_hello("scheduler", self.hello)).body

    def ask(self, frame_type: int, body: bytes, seconds: float = 10.0) -> Frame:
        """Sends a frame and returns its answer, ERROR included."""
        corr = self.link.call(frame_type, body)
        deadline = time.monotonic() + seconds
        answer: Frame | None = None
        while answer is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"{frames.name(frame_type)} was not answered")
            self.link.wait(0.1)
            for frame in self.link.drain():
                if frame.type == frames.EXTENT_READY:
                    self.extents.add(frame.body, frame.fd)
                elif frame.corr == corr:
                    answer = frame
        return answer

    def open(self, tokens: Sequence[int]) -> int:
        """Opens a request with these tokens. Returns its number."""
        self.requests += 1
        body = frames.encode_open(self.requests, 0, tokens=packed.pack_u32(tokens))
        self.link.tell(frames.OPEN, body)
        return self.requests

    def grant(self, request: int, count: int) -> list[Slot]:
        """Offers the first `count` blocks of a request. Returns the granted slots."""
        answer = self.ask(frames.STORE, frames.encode_store(request, 0, 0, count))
        assert answer.type == frames.GRANT, answer
        grants = struct.iter_unpack("<IIIIQ", answer.body["grants"])
        return [Slot(extent, index, generation) for _, extent, index, _, generation in grants]

    def commit(self, request: int, slots: Sequence[Slot]) -> None:
        answer = self.ask(
            frames.COMMIT, frames.encode_slots(request, 0, packed.pack_slots(slots))
        )
        assert answer.type == frames.OK, answer

    def lookup(self, request: int, count: int) -> list[Slot]:
        """Pins the resident ones of a request's first `count` blocks. Returns their slots."""
        answer = self.ask(frames.LOOKUP, frames.encode_lookup(request, 0, 0, count, 0))
        assert answer.type == frames.LOOKUP_HIT, answer
        return packed.unpack_slots(answer.body["slots"])

    def claim(self, request: int, blocks: Sequence[int], job: int = 0) -> int:
        """Claims the first blocks of a request. Returns the job after the answer."""
        job = job or self.job()
        body = frames.encode_claim(request, 0, 0, len(blocks), job, packed.pack_u32(blocks))
        answer = self.ask(frames.CLAIM, body)
        assert answer.type == frames.CLAIMED and answer.body["workers"] == 1, answer
        return job

    def job(self) -> int:
        return next(_jobs)

    def change_generation(self, slot: Slot, to: int) -> None:
        """Overwrites a slot's generation word, which only the agent may do."""
        self.extents.find(slot.extent, slot.index).words[slot.index] = to

    def close(self) -> None:
        self.link.close()
        self.extents.close()


class GatedMover(CpuMover):
    """A mover with a gate. calls: kind and first group's blocks of every copy."""

    load_bytes = 4 * BLOCK
    store_bytes = 2 * BLOCK

    def __init__(self, pages: Pages) -> None:
        super().__init__(pages)
        self.calls: list[tuple[str, list[int]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()  # set while a copy waits at the gate

    def load(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None = None
    ) -> None:
        self._pass("load", blocks)
        super().load(slots, blocks, fence)

    def store(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None = None
    ) -> None:
        self._pass("store", blocks)
        super().store(slots, blocks, fence)

    def _pass(self, kind: str, blocks: Sequence[Sequence[int]]) -> None:
        self.calls.append((kind, list(blocks[0])))
        if not self.gate.is_set():
            self.waiting.set()
            if not self.gate.wait(30):
                raise AssertionError("the gate was never opened")

    def close_gate(self) -> None:
        """Makes the next copy wait before it begins."""
        self.waiting.clear()
        self.gate.clear()


class Rig:
    """An agent, a scripted scheduler and a worker session. close() ends all of them."""

    scheduler: ScriptedScheduler  # once start_scheduler() was called

    def __init__(
        self,
        blocks: int = 64,
        connect: bool = True,
        early_loads: bool = True,
        mover: type[GatedMover] = GatedMover,
        flags: Sequence[str] = (),
    ) -> None:
        """flags: of the agent."""
        self.agent = AgentProcess(flags=flags)
        self.worker_id = random.SystemRandom().randrange(1, 2**63)
        self.kv = Kv(blocks)
        self.mover = mover(self.kv.pages())
        identity = WorkerIdentity(self.worker_id, 0, "test 1")
        settings = Settings(socket=self.agent.socket, native=planes.in_c)
        self.session = WorkerSession(settings, identity, lambda pages: self.mover, early_loads)
        self.done: dict[int, list[int]] = {}
        self.finished: dict[str, bool] = {}  # request -> whether it failed
        self.tokens = 0
        if connect:
            self.start_scheduler()
        self.session.start(RegisterFields(blocks, BLOCK), self.kv.pages())
        if connect:
            self.wait_joined()

    def start_scheduler(self) -> ScriptedScheduler:
        """Connects a scheduler. RESUME then gives up all slots of the previous scheduler."""
        previous = getattr(self, "scheduler", None)
        self.scheduler = ScriptedScheduler(self.agent, self.worker_id)
        if previous is not None:
            previous.close()
            body = frames.encode_resume(
                previous.welcome["session"], previous.welcome["agent_nonce"], b"", b""
            )
            assert self.scheduler.ask(frames.RESUME, body).type == frames.RESUMED
        return self.scheduler

    def wait_joined(self) -> None:
        """Waits until the worker has joined the session and gets LOADs."""
        wait_until("the worker joins", lambda: self.session.joined)

    def fresh_tokens(self, blocks: int) -> list[int]:
        """New tokens of so many blocks."""
        self.tokens += 1
        return [self.tokens * 1000 + n for n in range(blocks * TOKENS)]

    def collect(self) -> None:
        """Takes the session's reports, and checks that no result is reported twice."""
        done = self.session.done()
        if done is not None:
            for job, counts in done.jobs.items():
                assert job not in self.done and sum(counts) == 1, (job, counts)
                self.done[job] = counts
        finished, failed = self.session.finished_loads()
        assert failed <= finished
        for rid in finished:
            assert rid not in self.finished, rid
            self.finished[rid] = rid in failed

    def wait_job(self, job: int, seconds: float = 10.0) -> bool:
        """Waits for the report of a job. Returns whether the job succeeded."""

        def reported() -> bool:
            self.collect()
            return job in self.done

        wait_until(f"job {job} is reported", reported, seconds)
        return self.done[job] == [1, 0]

    def wait_request(self, rid: str, seconds: float = 10.0) -> bool:
        """Waits for the report of a request. Returns whether its loads succeeded."""

        def reported() -> bool:
            self.collect()
            return rid in self.finished

        wait_until(f"request {rid} is reported", reported, seconds)
        return not self.finished[rid]

    def store(self, tokens: Sequence[int], blocks: Sequence[int]) -> int:
        """Stores device blocks under these tokens, from STORE to COMMIT. Returns the request."""
        request = self.scheduler.open(tokens)
        slots = self.scheduler.grant(request, len(blocks))
        assert len(slots) == len(blocks)
        job = self.scheduler.job()
        self.begin_store(job, slots, blocks)
        assert self.wait_job(job)
        self.scheduler.commit(request, slots)
        return request

    def begin_store(self, job: int, slots: Sequence[Slot], blocks: Sequence[int]) -> None:
        """Begins a store in the session, as the engine does."""
        store = Store(job, packed.pack_slots(slots), packed.pack_u32(blocks))
        self.session.begin(Work(stores=[store]))

    def begin_load(self, job: int, rid: str, slots: Sequence[Slot], blocks: Sequence[int]) -> None:
        """Begins a load in the session, as the engine does."""
        load = Load(job, rid, packed.pack_slots(slots), packed.pack_u32(blocks))
        self.session.begin(Work(loads=[load]))

    def close(self) -> None:
        self.mover.gate.set()
        self.session.close()
        if hasattr(self, "scheduler"):
            self.scheduler.close()
        self.agent.close()


@needs_agent
class RigCase(unittest.TestCase):
    """Tests with a rig, which is made with `options` and ends after the test."""

    options: dict[str, Any] = {}

    def setUp(self) -> None:
        self.rig = Rig(**self.options)
        self.addCleanup(self.rig.close)

    @property
    def scheduler(self) -> ScriptedScheduler:
        return self.rig.scheduler

    def stored(self, count: int) -> tuple[list[int], list[bytes]]:
        """Stores `count` blocks from device blocks 0..count-1. Returns tokens and bytes."""
        tokens = self.rig.fresh_tokens(count)
        data = [self.rig.kv.fill(block) for block in range(count)]
        self.rig.store(tokens, range(count))
        return tokens, data
