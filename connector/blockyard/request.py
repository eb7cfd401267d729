"""The state of one request of the engine on the scheduler side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .namespace import Identity

if TYPE_CHECKING:
    from .connection import Connection
    from .fits import Fit
    from .handover import Wait
    from .packer import Pack

# The lookup state of one generation of a request. MISSED and PASSED are final: the generation loads
# no more blocks. Its blocks may still be stored.
PACKING = 0  # the packer sends its tokens to the agent
ASKED = 1  # LOOKUPs are sent
KNOWN = 2  # a prefix is resident and pinned
LOADING = 3  # jobs copy that prefix, or a part of it
LOADED = 4
MISSED = 5  # no block to load, or a load has failed
PASSED = 6  # the engine computes the found blocks itself

STATES = ("PACKING", "ASKED", "KNOWN", "LOADING", "LOADED", "MISSED", "PASSED")

_numbers = itertools.count(1)


class Hit(NamedTuple):
    """Loadable blocks beyond the engine's own blocks.

    sources: the tier of each block (1 host, 2 disk). slots: the packed slots, pinned until load()
    has ended or the request releases them.
    """

    blocks: int
    sources: bytes
    slots: bytes = b""


MISS = Hit(0, b"")


class Part(NamedTuple):
    """The answer to one LOOKUP: the first `ready` of `count` blocks from `first` on are pinned."""

    first: int
    count: int
    ready: int
    coming: int
    slots: bytes
    sources: bytes


class Request:
    """One request as the agent knows it: a number, and one generation at a time.

    A reused request id gets a new Request. So does a preempted request with a load in flight,
    because the next OPEN of its number would drop the pins of that load.
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
        "unpackable",
        "finished",
        "hand_over",
        "fit",
        "fits",
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
        self.connection: Connection | None = None  # None: the agent does not know the request
        self.opened = -1  # the generation that the agent has, -1 for none
        self.unsettled = 0  # stores offered or in flight, of all generations
        self.finished = False  # the engine has ended the request
        self.unpackable = False  # has a token that no frame carries; the sender sets it
        self.hand_over: Wait | None = None  # the wait for another engine's blocks
        self.begin(generation)

    def begin(self, generation: int) -> None:
        """Begins a generation and clears the lookup state. Earlier stores continue."""
        self.generation = generation
        self.state = MISSED
        self.sent = 0  # tokens that the agent has
        self.total = 0  # complete blocks in the sent tokens at the time of LOOKUP
        self.known = 0  # leading blocks that are pinned
        self.slots = b""  # their slots, packed
        self.sources = b""  # their tiers
        self.parts: list[Part] = []  # answers of the current round of LOOKUPs
        self.unanswered = 0  # LOOKUPs without an answer
        self.waits = False  # this round of LOOKUPs may wait for the disk
        self.asked_at = 0.0  # time of the LOOKUPs, or of the submission to the packer
        self.deadline = 0.0  # time limit for the answers
        self.offered = 0  # leading blocks that are stored, offered or refused
        self.loads = 0  # load jobs in flight
        self.load_failed = False
        self.promised = -1  # end of the blocks that hit() has returned
        self.readable = range(0)  # known blocks that all workers can read
        self.mapping_until = 0.0  # time limit for workers to map the blocks, 0 before a wait
        self.packing: Pack | None = None  # set while only the packer may send its tokens
        self.polled = False  # hit() has polled for an answer once
        self.delayed = False  # OPEN waits for a usable connection
        self.fit: Fit | None = None  # with KV groups: the prefix that is asked for or pinned
        self.fits = 0  # FITs in this lookup
        self.broken = False  # the agent has refused a frame of the request, or lacks its tokens

    def __repr__(self) -> str:
        return (
            f"Request({self.rid!r}, number={self.number}, generation={self.generation}, "
            f"{STATES[self.state]}, known={self.known}/{self.total})"
        )
