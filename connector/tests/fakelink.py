"""Parts of the model with fakeagent: slots, sessions, a link, a packer, requests and copies."""

from __future__ import annotations

import collections
import dataclasses
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blockyard.groups import ALL_GROUPS, Groups
from blockyard.msgpack import decode
from blockyard.namespace import Identity
from blockyard.packed import unpack_slots, unpack_u32
from blockyard.packer import Pack, Packer
from blockyard.transport import Frame, LinkClosed, LinkFull

if TYPE_CHECKING:
    from tests.fakeagent import FakeAgent

PAGE = 2  # tokens per block


class Violation(AssertionError):
    """The connector has broken a rule of the protocol."""


@dataclasses.dataclass
class Memory:
    """A slot. state: free, granted, resident, or quarantined forever."""

    generation: int = 0
    state: str = "free"
    key: Any = None  # identity of the block
    content: Any = None
    pins: collections.Counter = dataclasses.field(default_factory=collections.Counter)


class Open:
    """An open request of a session, or an earlier generation with grants."""

    def __init__(
        self, generation: int, identity: tuple, tokens: list[int], groups: Groups | None = None
    ) -> None:
        self.generation = generation
        self.identity = identity
        self.tokens = tokens
        self.groups = groups
        self.pins: dict[Any, int] = {}  # group and block -> slot
        self.grants: dict[int, Any] = {}  # slot -> key
        self.broken = False

    def size(self, group: int) -> int:
        """Tokens of a block."""
        return PAGE if self.groups is None else self.groups[group].block_size

    def key(self, block: int, group: int = 0) -> tuple:
        tokens = self.tokens[: (block + 1) * self.size(group)]
        kind = () if self.groups is None else (f"group {group}",)
        return (*self.identity, *kind, *tokens)

    def fit(self, limit: int, has: Callable[[tuple], bool]) -> int:
        """The longest prefix that every group serves: tries each length."""
        assert self.groups is not None
        for tokens in range(min(limit, len(self.tokens)), 0, -1):
            if tokens % self.groups.align == 0 and all(
                has(self.key(block, number))
                for number, group in enumerate(self.groups)
                for block in group.needs(tokens)
            ):
                return tokens
        return 0


class Session:
    """A scheduler's session. inherited: the grants and pins that RESUME has taken over."""

    def __init__(self, number: int, nonce: int, weights: str) -> None:
        self.number = number
        self.nonce = nonce
        self.weights = weights
        self.requests: dict[int, Open] = {}
        self.superseded: dict[tuple[int, int], Open] = {}
        self.inherited: Open | None = None
        self.resumed = False
        self.bye = False

    def all(self) -> list[Open]:
        extra = [self.inherited] if self.inherited is not None else []
        return [*self.requests.values(), *self.superseded.values(), *extra]


class FakeLink:
    """A transport.Link with queues. The test chooses when a frame leaves a queue."""

    def __init__(self, agent: FakeAgent) -> None:
        self.agent = agent
        self.session: Session | None = None
        self.sent: deque[tuple[int, int, dict]] = deque()
        self.answers: deque[Frame] = deque()  # sent by the agent, not arrived yet
        self.arrived: deque[Frame] = deque()
        self.closed = False
        self._corr = 0

    def correlation(self) -> int:
        self._corr += 1
        return self._corr

    def send(self, frame_type: int, corr: int, body: bytes) -> None:
        if self.closed:
            raise LinkClosed("closed")
        if self.agent.full(frame_type):
            raise LinkFull("full")
        self.sent.append((frame_type, corr, decode(body)))

    def call(self, frame_type: int, body: bytes) -> int:
        corr = self.correlation()
        self.send(frame_type, corr, body)
        return corr

    def tell(self, frame_type: int, body: bytes) -> None:
        self.send(frame_type, 0, body)

    def drain_to(self, take: Callable[[Frame], object], limit: int = 64) -> int:
        n = 0
        while self.arrived and n < limit:
            take(self.arrived.popleft())
            n += 1
        if not n and self.closed:
            raise LinkClosed("closed")
        return n

    def drain(self, limit: int = 64) -> list[Frame]:
        """Lets the agent handle all sent frames, and returns the answers, as the keeper needs."""
        while self.sent and not self.closed:
            self.agent.handle(self)
        self.arrived.extend(self.answers)
        self.answers.clear()
        out: list[Frame] = []
        self.drain_to(out.append, limit)
        return out

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        if not self.closed:
            self.agent.cut(self)

    def answer(self, frame_type: int, corr: int, **body: Any) -> None:
        self.answers.append(Frame(frame_type, corr, body, -1))


class EngineRequest:
    """A request of the modelled engine."""

    def __init__(self, rid: str, tokens: list[int], identity: Identity, weights: str) -> None:
        self.rid = rid
        self.tokens = tokens
        self.identity = identity
        self.weights = weights  # the weights of its KV
        self.generation = 0
        self.blocks: list[int] = []
        self.loaded = 0
        self.jobs: set[int] = set()  # jobs of the last load
        self.loading: set[int] = set()  # jobs that have not ended
        self.running = False
        self.aborted = False
        self.asked: set[int] = set()  # generations with a begun load

    def key(self, block: int) -> tuple:
        tokens = self.tokens[: (block + 1) * PAGE]
        return (self.weights, self.identity.lora, self.identity.salt, *tokens)


class Copy:
    """One worker's part of a job."""

    def __init__(
        self, job: int, kind: str, slots: bytes, blocks: bytes, group: int = ALL_GROUPS
    ) -> None:
        self.job = job
        self.group = group
        self.kind = kind
        self.slots = unpack_slots(slots)
        self.blocks = unpack_u32(blocks)


class SteppedPacker(Packer):
    """The packer without its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: deque[Pack] = deque()
        self.packed: Pack | None = None  # packed, but its LOOKUPs are not sent yet

    def submit(self, pack: Pack) -> None:
        self.queue.append(pack)

    @property
    def busy(self) -> bool:
        return bool(self.queue or self.packed or self.done)

    def pack_one(self) -> None:
        """Sends the tokens of the next prompt, or the LOOKUPs of the last one."""
        packed, self.packed = self.packed, None
        if packed is not None:
            self._ask(packed)
        elif self.queue:
            self.packed = self.queue.popleft()
            self._pack(self.packed)

    def close(self) -> None:
        pass
