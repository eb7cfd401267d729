"""The random model of schedworld with KV groups: the engine keeps little of the sparse ones."""

from __future__ import annotations

from typing import Any

from blockyard.groups import FULL, SLIDING, STATE, Group, Groups
from blockyard.groupsession import GroupSession
from blockyard.packed import unpack_slots
from blockyard.settings import Settings
from tests.fakeagent import FakeAgent
from tests.fakelink import PAGE, Copy, EngineRequest, Violation
from tests.schedrig import NAMESPACE
from tests.schedworld import SLOTS, WORKERS, World

GROUPS = Groups(
    [
        Group(SLIDING, 5, 2, 64, 1),
        Group(FULL, 0, 2, 64, 1),
        Group(STATE, 0, 4, 128, 1),
    ]
)
NULL = -1  # a block of a sparse group that the engine does not keep


class GroupWorld(World):
    """A World whose session is a GroupSession."""

    namespace: dict[str, Any] = {**NAMESPACE, "groups": GROUPS.as_maps()}

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.tables: dict[EngineRequest, list[list[int]]] = {}
        self.held: list[tuple[str, int, int, int, list[int]]] = []
        self.targets: dict[EngineRequest, list[tuple[int, int, list[int]]]] = {}

    def make_session(self, settings: Settings) -> GroupSession:
        self.agent = FakeAgent(self.rng, SLOTS, lambda slot: self.in_use[slot] > 0, GROUPS)
        self.agent.workers = WORKERS
        return GroupSession(settings, self.blocks, GROUPS)

    def key(self, r: EngineRequest, group: int, block: int) -> tuple:
        tokens = r.tokens[: (block + 1) * GROUPS[group].block_size]
        return (r.weights, r.identity.lora, r.identity.salt, f"group {group}", *tokens)

    # The engine.

    def schedule(self) -> None:
        r = self.pick()
        if r is None or r.running or r.loading or r.aborted:
            return
        hit = self.session.hit(r.rid, r.generation, 0, spin=0)
        again = self.session.hit(r.rid, r.generation, 0, spin=0)
        if hit is None:
            return
        tokens = hit.blocks * PAGE
        if again is None or again.blocks < hit.blocks:
            raise Violation("the second answer has a smaller hit")
        if tokens % GROUPS.align or tokens >= len(r.tokens):
            raise Violation(f"a hit of {tokens} of {len(r.tokens)} tokens")
        if tokens and not self.readable():
            raise Violation("a hit that not all workers can read")
        if tokens and r.generation in r.asked:
            raise Violation("a hit after a load of the same generation")
        r.weights = self.weights
        if tokens and self.rng.random() < 0.9:
            self.begin_group_load(r, tokens)
            return
        if tokens:
            self.session.release_hit(r.rid, r.generation)
        self.allocate(r)

    def begin_group_load(self, r: EngineRequest, tokens: int) -> None:
        """Loads a prefix behind the engine's own hit, into blocks inside of the windows."""
        local = self.rng.randrange(0, tokens, GROUPS.align)
        tables, targets = [], []
        need = self.take_blocks(sum(len(group.needs(tokens)) for group in GROUPS))
        if need is None:
            return
        r.blocks = list(need)
        for number, group in enumerate(GROUPS):
            needs = group.needs(tokens)
            ids = [need.pop() for _ in needs]
            tables.append([NULL] * needs.start + ids)
            first = max(needs.start, local // group.block_size)
            for block in range(needs.start, first):  # the engine's own
                self.device[tables[-1][block]] = self.key(r, number, block)
            targets.append((number, first, tables[-1][first:]))
        r.asked.add(r.generation)
        self.tables[r], self.targets[r] = tables, targets
        before = set(self.session._jobs.flying)
        ok = self.session.load_groups(r.rid, r.generation, targets)  # type: ignore[attr-defined]
        self.seen["load" if ok else "load refused"] += 1
        r.loaded = tokens
        r.jobs = set(self.session._jobs.flying) - before
        r.loading = set(r.jobs)
        for number in r.loading:
            self.loads[number] = r
            self.parts[number] = WORKERS
            job = self.session._jobs.flying[number]
            self.slots_of[number] = [s.index for s in unpack_slots(job.slots)]
            self.in_use.update(self.slots_of[number])

    def ended(self, copy: Copy) -> None:
        r = self.loads.get(copy.job)
        loaded = r.loaded if r is not None else 0
        if r is not None:
            r.loaded = 0  # the lockstep check of World has nothing to compare
        super().ended(copy)
        if r is None or r.loading or r.aborted or r.jobs & self.failed:
            if r is not None and r.loading:
                r.loaded = loaded
            return
        for number, first, ids in self.targets[r]:
            for block, at in enumerate(ids, first):
                if self.checked[at] != self.key(r, number, block):
                    raise Violation(f"block {block} of group {number} of {r.rid} has wrong bytes")
        self.seen["loaded tokens"] += loaded

    def run(self, r: EngineRequest, need: list[int]) -> None:
        """Runs a request after its load."""
        self.checked = dict(self.device)
        self.allocate(r)

    def allocate(self, r: EngineRequest) -> None:
        """Computes the prompt: all blocks of the full group, few of the others."""
        r.blocks = []
        counts = [len(r.tokens) // group.block_size for group in GROUPS]
        need = self.take_blocks(sum(counts))
        if need is None:
            self.tables.pop(r, None)
            return
        r.running = True
        self.tables[r] = [[need.pop() for _ in range(count)] for count in counts]
        for number, table in enumerate(self.tables[r]):
            for block, at in enumerate(table):
                self.device[at] = self.key(r, number, block)
        self.hold(r)
        for number, group in enumerate(GROUPS):
            if group.kind != FULL:
                self.tables[r][number] = []  # freed within steps
        r.blocks = [at for table in self.tables[r] for at in table]

    def hold(self, r: EngineRequest) -> None:
        """References the window and the state at the end of the prompt."""
        boundary = (len(r.tokens) - 1) // GROUPS.align * GROUPS.align
        for number, group in enumerate(GROUPS):
            needs = group.needs(boundary)
            if group.kind != FULL and needs:
                ids = self.tables[r][number][needs.start : needs.stop]
                if self.session.reserve(ids):  # type: ignore[attr-defined]
                    self.held.append((r.rid, r.generation, number, needs.start, ids))
                else:
                    self.seen["not held"] += 1

    def decode(self) -> None:
        r = self.pick()
        if r is not None and r.running and len(r.tokens) < 30:
            r.tokens.append(self.rng.randrange(2))

    def offer(self) -> None:
        if self.held:
            item = self.held.pop(0)
            if self.rng.random() < 0.9:
                self.session.offer_group(*item)  # type: ignore[attr-defined]
            else:
                self.session.drop(item[-1])  # type: ignore[attr-defined]
        r = self.pick()
        if r is None or not r.running:
            return
        ids = list(self.tables[r][1])
        session: Any = self.session
        if session.takes(r.rid, r.generation) and ids and session.reserve(ids):
            session.offer_group(r.rid, r.generation, 1, 0, ids)

    def end(self, r: EngineRequest) -> None:
        """Ends a request. Its held blocks are offered first: another request may get its id."""
        for item in [item for item in self.held if item[0] == r.rid]:
            self.held.remove(item)
            self.session.offer_group(*item)  # type: ignore[attr-defined]
        super().end(r)
