"""State of one request of the engine on the scheduler side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .namespace import Identity

if TYPE_CHECKING:
    from .connection import Connection
    from .packer import Pack

# What is known of the blocks of one generation of a request. MISSED and PASSED are final for the
# generation: nothing of it is loaded any more, while its blocks may still be stored.
PACKING = 0  # its tokens are on their way to the agent
ASKED = 1  # the agent was asked what is resident
KNOWN = 2  # a prefix is resident and pinned
LOADING = 3  # jobs copy that prefix, or a part of it
LOADED = 4
MISSED = 5  # nothing to load, or a load has failed
PASSED = 6  # the engine went on without what was found

STATES = ("PACKING", "ASKED", "KNOWN", "LOADING", "LOADED", "MISSED", "PASSED")

_numbers = itertools.count(1)


class Hit(NamedTuple):
    """Blocks beyond the engine's own that can be loaded.

    sources has the tier of each (1 host, 2 disk), slots the packed slot of each, pinned until
    load() has ended or the request lets them go.
    """

    blocks: int
    sources: bytes
    slots: bytes = b""


MISS = Hit(0, b"")


class Part(NamedTuple):
    """The answer to one LOOKUP: `ready` of the `count` blocks from `first` on are pinned."""

    first: int
    count: int
    ready: int
    coming: int
    slots: bytes
    sources: bytes


class Request:
    """One request as the agent knows it: a number, and one generation at a time.

    An engine that uses a request id again gets a new Request, and so does a preempted request of
    which a copy may still read pinned slots: the next OPEN of a number drops its pins.
    """

    __slots__ = (
        "rid",
        "number",
        "generation",
        "opened",
        "tokens",
        "identity",
        "lookup",
        "store",
        "connection",
        "state",
        "sent",
        "total",
        "known",
        "slots",
        "sources",
        "parts",
        "unanswered",
        "waits",
        "asked_at",
        "deadline",
        "offered",
        "loads",
        "load_failed",
        "promised",
        "readable",
        "mapping_until",
        "unsettled",
        "packing",
        "polled",
        "delayed",
        "broken",
        "finished",
    )

    def __init__(
        self,
        rid: str,
        generation: int,
        tokens: Sequence[int],
        identity: Identity,
        lookup: bool,
        store: bool,
    ) -> None:
        self.rid = rid
        self.number = next(_numbers)
        self.tokens = tokens  # the engine's own list: it grows with every decoded token
        self.identity = identity
        self.lookup = lookup
        self.store = store
        self.connection: Connection | None = None  # None: the agent does not know of it
        self.opened = -1  # the generation that the agent has, -1 for none
        self.unsettled = 0  # stores that are offered or being copied, of all generations
        self.finished = False  # the engine has no more to say about it
        self.begin(generation)

    def begin(self, generation: int) -> None:
        """Forgets what was known of an earlier generation. Stores of it go on."""
        self.generation = generation
        self.state = MISSED
        self.sent = 0  # tokens that the agent has
        self.total = 0  # complete blocks in them when it was asked
        self.known = 0  # leading blocks that are pinned
        self.slots = b""  # their slots, packed
        self.sources = b""  # their tiers
        self.parts: list[Part] = []  # answers, until all LOOKUPs of a round are answered
        self.unanswered = 0  # LOOKUPs
        self.waits = False  # this round of LOOKUPs may wait for the disk
        self.asked_at = 0.0  # also: when the packer got it
        self.deadline = 0.0  # when an answer is not waited for any longer
        self.offered = 0  # leading blocks that are in the agent, offered, or not wanted there
        self.loads = 0  # load jobs in flight
        self.load_failed = False
        self.promised = -1  # end of the blocks that the engine was told of
        self.readable = range(0)  # known blocks that all workers can read
        self.mapping_until = 0.0  # when they are not waited for any longer, 0 before that
        self.packing: Pack | None = None  # the packer sends its tokens: nobody else may
        self.polled = False  # hit() has waited for an answer once
        self.delayed = False  # it is opened when the connection is usable
        self.broken = False  # the agent has refused a frame about it, or was not told of it

    def __repr__(self) -> str:
        return (
            f"Request({self.rid!r}, number={self.number}, generation={self.generation}, "
            f"{STATES[self.state]}, known={self.known}/{self.total})"
        )
