"""A test rig of a scheduler session with a real agent, and the engine's parts around it.

Blocks counts references. ScriptedWorker copies between a dict of device blocks and the agent's
memory when a test calls it. Rig connects them to the session.
"""

from __future__ import annotations

import collections
import ctypes
import hashlib
from collections.abc import Sequence
from typing import Any

from blockyard import frames
from blockyard.extents import Extents, unpack_slots
from blockyard.frames import HelloFields, RegisterFields
from blockyard.namespace import Identity
from blockyard.packed import unpack_u32
from blockyard.readable import pack_runs
from blockyard.scheduler import SchedulerSession
from blockyard.settings import Settings
from blockyard.transport import Link, LinkClosed
from blockyard.work import Done, Mapped, Work
from tests.agentproc import AgentProcess, wait_until

BLOCK_TOKENS = 4
BLOCK_BYTES = 128
NAMESPACE: dict[str, str | int] = {
    "model": "m",
    "weights": "w1",
    "dtype": "bfloat16",
    "num_layers": 1,
    "outer_dim": 2,
    "page_size": BLOCK_TOKENS,
    "inner_dim": 8,
    "dtype_width_bytes": 2,
    "layout": "fully_contiguous",
    "tp": 1,
    "pp": 1,
    "dcp": 1,
    "kv_format": "f1",
}


class Blocks:
    """Device blocks with reference counts. A release without a reference fails."""

    def __init__(self, free: int = 1 << 20) -> None:
        self.refs: collections.Counter[int] = collections.Counter()
        self.free = free

    def hold(self, block_ids: Sequence[int]) -> None:
        self.refs.update(block_ids)

    def release(self, block_ids: Sequence[int]) -> None:
        for block in reversed(block_ids):
            if self.refs[block] <= 0:
                raise AssertionError(f"block {block} released more often than held")
            self.refs[block] -= 1
            if not self.refs[block]:
                del self.refs[block]

    def free_count(self) -> int:
        return self.free


def contents(tokens: Sequence[int], identity: Identity = Identity()) -> list[bytes]:
    """The bytes of each block: a function of identity and of all tokens up to the block's end."""
    chain = repr(identity).encode()
    out = []
    for at in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        chain += repr(list(tokens[at : at + BLOCK_TOKENS])).encode()
        chain = hashlib.shake_128(chain).digest(BLOCK_BYTES)
        out.append(chain)
    return out


class ScriptedWorker:
    """A worker whose copies run in the caller's thread, inside copy()."""

    def __init__(self, agent: AgentProcess, hello: HelloFields) -> None:
        self.device: dict[int, bytes] = {}
        self.extents = Extents()
        self.loads: dict[int, dict[str, Any]] = {}  # LOAD frames by job
        self._agent = agent
        self._hello = hello
        self._link: Link | None = None
        self._welcome: dict[str, Any] = {}

    def connect(self) -> None:
        """Waits for the session of its worker id and joins it."""

        def attempt() -> bool:
            try:
                link = Link(self._agent.socket)
            except OSError:
                return False
            corr = link.call(frames.HELLO, frames.encode_hello("worker", self._hello))
            if self._answer(link, corr) != frames.WELCOME:
                link.close()
                return False
            fields = RegisterFields(device_blocks=1 << 20, block_bytes=BLOCK_BYTES)
            corr = link.call(frames.REGISTER, frames.encode_register(fields))
            assert self._answer(link, corr) == frames.OK
            self._link = link
            return True

        wait_until("the worker joins its session", attempt, 20)

    def _answer(self, link: Link, corr: int) -> int:
        found: list[int] = []

        def look() -> bool:
            for frame in link.drain():
                if frame.corr == corr:
                    found.append(frame.type)
                    if frame.type == frames.WELCOME:
                        self._welcome = frame.body
                else:
                    self._take(frame)
            return bool(found)

        try:
            wait_until("an answer for the worker", look)
        except LinkClosed:
            return 0
        return found[0]

    def _take(self, frame: Any) -> None:
        if frame.type == frames.EXTENT_READY:
            self.extents.add(frame.body, frame.fd)
        elif frame.type == frames.LOAD:
            self.loads[frame.body["job"]] = frame.body

    def poll(self) -> None:
        """Takes the arrived frames."""
        try:
            for frame in self._link.drain(1024) if self._link else ():
                self._take(frame)
        except LinkClosed:
            self._link = None

    @property
    def connected(self) -> bool:
        self.poll()
        return self._link is not None

    def mapped(self) -> Mapped:
        """The worker's report of mapped extents."""
        welcome = self._welcome
        runs = pack_runs(self.extents.mapped()[1])
        return Mapped(1, welcome.get("agent_nonce", 0), welcome.get("session", 0), runs)

    def copy(self, work: Work) -> Done:
        """Makes all copies of a step."""
        self.poll()
        done = Done()
        for load in work.loads:
            done.add(load.job, self._load(load.slots, load.blocks))
        for store in work.stores:
            slots, blocks = unpack_slots(store.slots), unpack_u32(store.blocks)
            for slot, block in zip(slots, blocks, strict=True):
                data = self.device[block]
                ctypes.memmove(self.extents.address(slot.extent, slot.index), data, len(data))
            done.add(store.job, True)
        return done

    def _load(self, packed_slots: bytes, blocks: bytes) -> bool:
        slots = unpack_slots(packed_slots)
        if not slots or self.extents.generations_match(slots) != len(slots):
            return False
        for slot, block in zip(slots, unpack_u32(blocks), strict=True):
            address = self.extents.address(slot.extent, slot.index)
            self.device[block] = ctypes.string_at(address, BLOCK_BYTES)
        return self.extents.generations_match(slots) == len(slots)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self.extents.close()


class Rig:
    """A session, a worker and device blocks beside a real agent."""

    def __init__(self, agent: AgentProcess, worker_id: int = 7, **settings: Any) -> None:
        self.agent = agent
        self.blocks = Blocks()
        self.settings = Settings(socket=agent.socket, **settings)
        self.session = SchedulerSession(self.settings, self.blocks, BLOCK_TOKENS)
        hello = HelloFields(engine="test", worker_id=worker_id, namespace=NAMESPACE)
        worker_hello = HelloFields(engine="test", worker_id=worker_id)
        self.worker = ScriptedWorker(agent, worker_hello)
        self.session.start(hello)
        self._next_block = 1

    def connect(self) -> None:
        """Waits until session and worker are connected."""
        self.wait_connected()
        if not self.worker.connected:
            self.worker.connect()

    def wait_connected(self) -> None:
        def usable() -> bool:
            self.session.take_work()
            connection = self.session._attachment.connection
            # receive() notices the end of a connection.
            return connection is not None and connection.receive() and connection.usable

        wait_until("the session is connected", usable, 20)

    def device_blocks(self, n: int) -> list[int]:
        """The ids of n unused device blocks."""
        ids = list(range(self._next_block, self._next_block + n))
        self._next_block += n
        return ids

    def fill(self, tokens: Sequence[int], identity: Identity = Identity()) -> list[int]:
        """New device blocks with the contents of these tokens."""
        data = contents(tokens, identity)
        ids = self.device_blocks(len(data))
        self.worker.device.update(zip(ids, data, strict=True))
        return ids

    def hit(self, rid: str, generation: int = 0, local: int = 0) -> int:
        """The blocks of a hit. Calls hit() until the answer has arrived."""
        answers: list[int] = []

        def ask() -> bool:
            self.worker.poll()
            self.session.mapped(self.worker.mapped())
            hit = self.session.hit(rid, generation, local)
            if hit is not None:
                answers.append(hit.blocks)
            return hit is not None

        wait_until(f"hit of {rid}", ask)
        return answers[0]

    def step(self) -> Work:
        """Makes and reports the copies of one engine step."""
        work = self.session.take_work()
        if work:
            self.session.settle(self.worker.copy(work))
        return work

    def drain(self) -> None:
        """Steps until no copy is in flight and the agent has answered every frame."""

        def quiet() -> bool:
            self.step()
            connection = self.session._attachment.connection
            return not self.session.busy() and not (connection and connection.owes)

        wait_until("nothing is in flight", quiet)

    def store(self, rid: str, tokens: Sequence[int], identity: Identity = Identity()) -> None:
        """Runs a request that computes and stores all its blocks."""
        self.session.open(rid, 0, list(tokens), identity)
        self.hit(rid)
        ids = self.fill(tokens, identity)
        wait_until("all is offered", lambda: self.offer(rid, 0, ids))
        self.drain()
        self.session.finished(rid)

    def offer(self, rid: str, generation: int, ids: list[int]) -> bool:
        self.step()
        return self.session.computed(rid, generation, len(ids), [ids])

    def load(self, rid: str, tokens: Sequence[int], identity: Identity = Identity()) -> int:
        """Runs a request that loads its hit, and checks every byte. Returns the blocks."""
        self.session.open(rid, 0, list(tokens), identity)
        n = self.hit(rid)
        if n:
            ids = self.device_blocks(n)
            assert self.session.load(rid, 0, 0, [ids])
            self.drain()
            for i, (block, want) in enumerate(zip(ids, contents(tokens, identity))):
                assert self.worker.device.get(block) == want, f"block {i} of {rid} is wrong"
        self.session.finished(rid)
        return n

    def close(self) -> None:
        self.session.close()
        self.worker.close()
