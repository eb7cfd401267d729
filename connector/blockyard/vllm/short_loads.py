"""Short loads: loads within the step that computes the rest of the prompt.

vLLM runs such a load before the forward pass of the step. The request needs no step of its own for
the load, and every other request of the step waits for the copy. vLLM takes the loaded blocks for
computed ones when it plans the step, so a failed load needs care:

- The workers name its blocks in the same step (get_block_ids_with_load_errors). vLLM then computes
  the request again from its first loaded block on, or ends it, as its failure policy says.
- vLLM has the request's blocks in its prefix cache already, and under the policy `recompute` keeps
  them there. ShortLoads names them for removal, so that no other request hits them.
- A request of the same step must not hit them either. shares() recognizes it, and it waits a step.

A device copies unpinned memory several times as slowly as the measured copies of pinned memory. So
there is no short load while a worker is pinning memory. A hit has only extents that the workers
have reported, and each report says whether all of them are pinned.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

from blockyard.pace import Pace

#: A short load in a step's metadata: the request, and the device blocks to load.
Named = tuple[str, tuple[int, ...]]


class ShortLoad(NamedTuple):
    """A load within a step. first: its first block. ids: the request's device blocks from there on.

    count: how many of the blocks are loaded.
    """

    request: Any
    first: int
    count: int
    ids: tuple[int, ...]


class ShortLoads:
    """The short loads of the planned step and of the step in flight. Steps must not overlap.

    on: whether hits may get short loads. pinned: every extent that the workers have reported is
    pinned where its device needs that. begun, flying: loads of the planned step and of the step in
    flight.
    """

    def __init__(self, pace: Pace, tokens: int) -> None:
        """tokens: of a block."""
        self.on = False
        self.pinned = False
        self.loads = 0  # so far
        self.begun: list[ShortLoad] = []
        self.flying: list[ShortLoad] = []
        self._pace = pace
        self._tokens = tokens
        self._promised: dict[str, int] = {}  # the first block of each promised load, by request

    def fits(self, request: Any, local_tokens: int, blocks: int, alone: bool) -> int:
        """The tokens of a short load of a hit, 0 when the load needs steps of its own.

        alone: vLLM has no other request.
        """
        planned = sum(load.count for load in self.begun)
        if not (self.on and self.pinned and self._pace.fits_step(planned + blocks, alone)):
            return 0
        # The step must compute a token.
        return int(min(blocks * self._tokens, request.num_tokens - 1 - local_tokens))

    def promise(self, rid: str, first: int, tokens: int) -> tuple[int, bool]:
        """vLLM's form of the answer that a short load has `tokens` tokens from block `first` on."""
        self._promised[rid] = first
        return tokens, False

    def forget(self, rid: str) -> None:
        """Drops the promise to a request."""
        self._promised.pop(rid, None)

    def begin(self, request: Any, blocks: Any, tokens: int) -> bool:
        """Records the load of `tokens` tokens. False: it is not promised.

        blocks: the request's device blocks (KVCacheBlocks), those of this step included.
        """
        first = self._promised.pop(request.request_id, None)
        if first is None or tokens <= 0:
            return False
        ids = tuple(blocks.get_block_ids()[0][first:])
        count = self.blocks(tokens)
        self.loads += 1
        self.begun.append(ShortLoad(request, first, count, ids))
        return True

    def blocks(self, tokens: int) -> int:
        """How many blocks a short load of `tokens` tokens has. The last one may be a partial one:
        vLLM itself computes the last token of a prompt."""
        return -(-tokens // self._tokens)

    def shares(self, request: Any, local_tokens: int) -> bool:
        """Whether vLLM's own hit of a request may have blocks that this step loads.

        Equal tokens in one block are enough for the answer yes.
        """
        for load in self.begun:
            begin, end = load.first * self._tokens, (load.first + 1) * self._tokens
            ours, theirs = load.request.all_token_ids, request.all_token_ids
            if local_tokens > begin and list(ours[begin:end]) == list(theirs[begin:end]):
                return True
        return False

    def take(self) -> tuple[Named, ...]:
        """The loads of the planned step, which is in flight from now on."""
        self.flying, self.begun = self.begun, []
        return tuple((load.request.request_id, load.ids[: load.count]) for load in self.flying)

    def end(self, invalid: Set[int] | None) -> list[ShortLoad]:
        """Ends the loads of the step in flight. Returns the failed ones.

        invalid: device blocks that were not loaded, of all workers.
        """
        loads, self.flying = self.flying, []
        if not invalid:
            return []
        return [load for load in loads if not invalid.isdisjoint(load.ids[: load.count])]
