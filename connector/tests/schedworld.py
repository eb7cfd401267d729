"""A random model of an engine, its workers and an agent around a real scheduler session.

The engine has its own block table and checks every loaded block.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any
from unittest import mock

from blockyard.frames import HelloFields
from blockyard.namespace import Identity
from blockyard.packed import unpack_slots
from blockyard.readable import pack_runs
from blockyard.scheduler import SchedulerSession
from blockyard.settings import Settings
from blockyard.transport import LinkClosed, LinkFull
from blockyard.work import Done, Mapped
from tests.fakeagent import FakeAgent
from tests.fakelink import PAGE, Copy, EngineRequest, SteppedPacker, Violation
from tests.schedrig import NAMESPACE, Blocks

SLOTS = 64
DEVICE_BLOCKS = 48
WORKERS = 2


class World:
    """Engine, workers, agent and the session between them."""

    namespace: dict[str, Any] = NAMESPACE  # type: ignore[assignment]

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.agent = FakeAgent(self.rng, SLOTS, lambda slot: self.in_use[slot] > 0)
        self.agent.workers = WORKERS
        self.in_use: Counter[int] = Counter()
        self.clock = 0.0
        self.blocks = Blocks(DEVICE_BLOCKS)
        self.device: dict[int, object] = {}
        self.requests: dict[str, EngineRequest] = {}
        self.copies: list[Copy] = []
        self.parts: Counter[int] = Counter()  # job -> workers that have not reported
        self.slots_of: dict[int, list[int]] = {}
        self.loads: dict[int, EngineRequest] = {}
        self.failed: set[int] = set()
        self.done = Done()
        self.weights = str(NAMESPACE["weights"])
        self.mapped: dict[int, int] = {}  # worker -> session whose memory the worker has mapped
        self.seen: Counter[str] = Counter()
        self._rids = 0
        settings = Settings(socket="/fake", stats=False, lookup_wait_ms=100, max_inflight_blocks=12)
        with mock.patch("blockyard.scheduler.Packer", SteppedPacker):
            self.session = self.make_session(settings)
        self.keeper = self.session._keeper
        self.packer: SteppedPacker = self.session._packer  # type: ignore[assignment]
        self.connection = None
        hello = HelloFields(engine="model", worker_id=1, namespace=self.namespace)
        with mock.patch.object(self.keeper, "start", lambda h: setattr(self.keeper, "_hello", h)):
            self.session.start(hello, workers=WORKERS)

    def make_session(self, settings: Settings) -> SchedulerSession:
        return SchedulerSession(settings, self.blocks, PAGE)

    def now(self) -> float:
        return self.clock

    # The engine.

    def arrive(self) -> None:
        if len(self.requests) >= 8:
            return
        self._rids += 1
        rid = f"r{self.rng.randrange(12)}"  # few ids, so that they repeat
        if rid in self.requests:
            return
        stem = [self.rng.randrange(2)] * PAGE * self.rng.randrange(1, 6)
        tail = [self.rng.randrange(2) for _ in range(self.rng.randrange(5))]
        identity = Identity(salt=self.rng.choice(["", "", "s"]))
        r = EngineRequest(rid, stem + tail, identity, self.weights)
        self.requests[rid] = r
        self.session.open(rid, 0, r.tokens, identity, lookup=self.rng.random() < 0.95)

    def pick(self) -> EngineRequest | None:
        return self.rng.choice(list(self.requests.values())) if self.requests else None

    def take_blocks(self, n: int) -> list[int] | None:
        owned = {b for r in self.requests.values() for b in r.blocks}
        free = [b for b in range(DEVICE_BLOCKS) if b not in owned and not self.blocks.refs[b]]
        if len(free) < n:
            return None
        taken = self.rng.sample(free, n)
        for block in taken:
            self.device[block] = None  # overwrites the old content
        return taken

    def schedule(self) -> None:
        """Schedules a waiting request, which asks for a hit, and loads or runs."""
        r = self.pick()
        if r is None or r.running or r.loading or r.aborted:
            return
        hit = self.session.hit(r.rid, r.generation, 0, spin=0)
        again = self.session.hit(r.rid, r.generation, 0, spin=0)
        if hit is not None and again is not None and again.blocks < hit.blocks:
            raise Violation("the second answer has a smaller hit")
        if hit is None:
            return
        if hit.blocks and not self.readable():
            raise Violation("a hit that not all workers can read")
        if hit.blocks and r.generation in r.asked:
            raise Violation("a hit after a load of the same generation")
        need = self.take_blocks(len(r.tokens) // PAGE)
        if need is None:
            return
        r.weights = self.weights
        if hit.blocks and self.rng.random() < 0.9:
            self.begin_load(r, need, hit.blocks)
            return
        if hit.blocks:
            self.session.release_hit(r.rid, r.generation)
        self.run(r, need)

    def readable(self) -> bool:
        """Whether all workers have reported the session's memory as mapped."""
        c = self.session._attachment.connection
        return c is not None and all(self.mapped.get(w) == c.session for w in range(WORKERS))

    def map(self) -> None:
        """Lets a worker join the current session and report its mapped memory."""
        c = self.connection
        if c is not None:
            worker = self.rng.randrange(WORKERS)
            self.mapped[worker] = c.session
            self.session.mapped(Mapped(worker, c.nonce, c.session, pack_runs([0])))

    def begin_load(self, r: EngineRequest, need: list[int], n: int) -> None:
        r.asked.add(r.generation)
        first = self.rng.randrange(n)
        before = set(self.session._jobs.flying)
        ok = self.session.load(r.rid, r.generation, first, [need[first:n]])
        r.blocks, r.loaded = need, n
        for block, position in zip(need[:first], range(first), strict=True):
            self.device[block] = r.key(position)  # the engine's own hits
        r.jobs = set(self.session._jobs.flying) - before
        r.loading = set(r.jobs)
        self.seen["load" if ok else "load refused"] += 1
        for number in r.loading:
            self.loads[number] = r
            job = self.session._jobs.flying[number]
            self.parts[number] = WORKERS
            self.slots_of[number] = [s.index for s in unpack_slots(job.slots)]
            self.in_use.update(self.slots_of[number])

    def run(self, r: EngineRequest, need: list[int]) -> None:
        r.blocks = need
        r.running = True
        self.compute(r)

    def compute(self, r: EngineRequest) -> None:
        for position in range(len(r.tokens) // PAGE):
            if position < len(r.blocks):
                self.device[r.blocks[position]] = r.key(position)

    def decode(self) -> None:
        r = self.pick()
        if r is None or not r.running or len(r.tokens) > 30:
            return
        r.tokens.append(self.rng.randrange(2))
        if len(r.tokens) // PAGE > len(r.blocks):
            fresh = self.take_blocks(1)
            if fresh is None:
                r.tokens.pop()
                return
            r.blocks.extend(fresh)
        self.compute(r)

    def offer(self) -> None:
        r = self.pick()
        if r is not None and r.running:
            self.session.computed(r.rid, r.generation, len(r.blocks), [r.blocks])

    def preempt(self) -> None:
        r = self.pick()
        if r is not None and r.running:
            r.running, r.blocks, r.loaded = False, [], 0
            r.generation += 1

    def finish(self) -> None:
        r = self.pick()
        if r is not None and not r.aborted:
            self.end(r)

    def end(self, r: EngineRequest) -> None:
        """Ends a request. After an abort its blocks stay until the load is reported."""
        self.session.finished(r.rid)
        del self.requests[r.rid]
        if r.loading:
            r.aborted = True
            self._rids += 1
            r.rid = f"aborted-{self._rids}"
            self.requests[r.rid] = r

    # Workers.

    def step(self) -> None:
        """Runs one step: takes the session's work and delivers the workers' reports."""
        work = self.session.take_work()
        for load in work.loads:
            for _ in range(WORKERS):
                self.copies.append(Copy(load.job, "load", load.slots, load.blocks, load.group))
        for store in work.stores:
            self.parts[store.job] = WORKERS
            self.slots_of[store.job] = [s.index for s in unpack_slots(store.slots)]
            self.in_use.update(self.slots_of[store.job])
            for _ in range(WORKERS):
                self.copies.append(Copy(store.job, "store", *store[1:]))
            for slot in unpack_slots(store.slots):
                memory = self.agent.slots[slot.index]
                # A slot of a lost session is quarantined until this engine exits.
                held = memory.state in ("granted", "quarantined")
                if not held or memory.generation != slot.generation:
                    raise Violation(f"{slot} is copied into, but it is {memory}")
        self.report()

    def report(self) -> None:
        done, self.done = self.done, Done()
        self.session.settle(done)
        self.session.settle(None)

    def work(self) -> None:
        """Lets a worker end its part of a random job."""
        if not self.copies:
            return
        copy = self.copies.pop(self.rng.randrange(len(self.copies)))
        ok = self.rng.random() > 0.05
        if copy.kind == "load":
            ok = ok and bool(copy.slots) and self.read(copy)
        elif ok:
            for slot, block in zip(copy.slots, copy.blocks, strict=True):
                memory = self.agent.slots[slot.index]
                if memory.generation != slot.generation:
                    raise Violation(f"{slot} is written, but it is {memory}")
                memory.content = self.device[block]
        if not ok:
            self.failed.add(copy.job)
        self.parts[copy.job] -= 1
        if not self.parts[copy.job]:
            self.ended(copy)
        self.done.add(copy.job, ok)

    def read(self, copy: Copy) -> bool:
        for slot, block in zip(copy.slots, copy.blocks, strict=True):
            memory = self.agent.slots[slot.index]
            if memory.generation != slot.generation or memory.content is None:
                return False
            self.device[block] = memory.content
        return True

    def ended(self, copy: Copy) -> None:
        """Ends a job after all workers have copied."""
        self.in_use.subtract(self.slots_of.pop(copy.job))
        r = self.loads.pop(copy.job, None)
        if r is None:
            return
        r.loading.discard(copy.job)
        if r.loading:
            return
        if r.aborted:
            del self.requests[r.rid]
            return
        if r.jobs & self.failed:
            r.blocks, r.loaded = [], 0  # the engine schedules the request again
            return
        self.seen["loaded"] += 1
        for position in range(r.loaded):
            if self.device[r.blocks[position]] != r.key(position):
                raise Violation(f"block {position} of {r.rid} was loaded with wrong bytes")
        self.run(r, r.blocks)

    # The agent and the connection.

    def handle(self) -> None:
        for link in self.agent.links:
            if link.sent and not link.closed:
                self.agent.handle(link)

    def deliver(self) -> None:
        for link in self.agent.links:
            if link.answers:
                link.arrived.append(link.answers.popleft())

    def connect(self) -> None:
        if self.connection is not None:
            return
        with mock.patch("blockyard.keeper.Link", self.agent.connect):
            try:
                self.connection = self.keeper._connect()
                self.seen["connected"] += 1
            except (OSError, LinkClosed, LinkFull):
                pass

    def keep(self) -> None:
        """Lets the keeper send the outbox and receive."""
        if self.connection is not None:
            self.connection.flush()
            if self.rng.random() < 0.7:
                self.connection.receive()

    def notice(self) -> None:
        """Lets the keeper notice the end of its connection."""
        c = self.connection
        if c is None:
            return
        if c.draining and not c.farewell:
            self.keeper._farewell(c)
        if c.farewell and not c.link.closed:
            c.link.drain()
        if c.farewell or c.link.closed:
            with mock.patch.object(c, "receive", lambda: False):
                self.keeper._part(c)
            self.connection = None

    def die(self) -> None:
        copying = any(self.in_use.values())
        if self.agent.alive and self.rng.random() < (0.3 if copying else 0.03):
            self.agent.die()
            self.seen["died"] += 1
        elif not self.agent.alive:
            self.agent.start()

    def cut(self) -> None:
        if self.rng.random() < 0.05:
            for link in list(self.agent.links):
                self.agent.cut(link)
            self.seen["cut"] += 1

    def drain(self) -> None:
        if self.connection is not None and self.rng.random() < 0.1:
            self.connection.draining = True
            self.seen["drained"] += 1

    def reset(self) -> None:
        if self.rng.random() < 0.06:
            self.session.reset()
            self.seen["reset"] += 1
            hello = self.session._keeper._hello
            assert hello is not None and hello.namespace is not None
            self.weights = str(hello.namespace["weights"])

    def tick(self) -> None:
        self.clock += self.rng.choice([0.0, 0.01, 0.01, 0.01, 0.1, 0.3, 1.5])

    ACTIONS = (
        ("arrive", 8),
        ("schedule", 20),
        ("decode", 4),
        ("offer", 12),
        ("preempt", 2),
        ("finish", 5),
        ("step", 16),
        ("work", 16),
        ("handle", 30),
        ("deliver", 30),
        ("connect", 4),
        ("keep", 20),
        ("notice", 4),
        ("die", 2),
        ("cut", 1),
        ("drain", 1),
        ("reset", 1),
        ("tick", 2),
        ("pack", 6),
        ("map", 12),
    )

    def pack(self) -> None:
        self.packer.pack_one()

    def random_step(self) -> None:
        names, weights = zip(*self.ACTIONS, strict=True)
        getattr(self, self.rng.choices(names, weights)[0])()

    def settle_down(self) -> None:
        """Ends all requests. Afterwards nothing may be in flight, held or pinned."""
        self.agent.faults = self.agent.fullness = 0.0
        for r in list(self.requests.values()):
            if not r.aborted:
                self.end(r)
        for _ in range(2000):
            for action in (self.step, self.work, self.keep, self.handle, self.deliver, self.pack):
                action()
            self.notice()
            quiet = not (self.session.busy() or self.copies or self.packer.busy)
            owes = self.connection is not None and self.connection.owes
            under_way = any(link.sent or link.answers for link in self.agent.links)
            if quiet and not owes and not under_way:
                break
        self.step()
