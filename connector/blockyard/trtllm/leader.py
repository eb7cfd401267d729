"""BlockyardLeader: the scheduler side for TensorRT-LLM.

The engine asks once for a request's hit. It counts the tokens of the hit as computed before their
load, and has no report of a failed load. So:

- The leader answers within a millisecond for each 8,192 tokens of the prompt, or reports no hit.
- A hit has only blocks in host memory that are pinned for this request. Every worker loads the
  blocks from its own mapping, which outlives the agent.
- A worker repeats a failed load. When all tries fail, the workers of all ranks end the engine's
  step with an error. A failed load reported as loaded would give wrong tokens. A load without any
  report would leave the request waiting forever.

Stores hold no references in the engine. With the V1 manager a request keeps its blocks while it
runs, so the leader offers blocks as they fill. The V2 manager may take blocks from a running
request, so the leader offers all blocks at the request's end. The engine then keeps the blocks
until the workers report the request as saved.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from blockyard.namespace import Identity
from blockyard.packed import SLOT_BYTES
from blockyard.scheduler import Hit
from blockyard.trtllm import arguments
from blockyard.trtllm.crew import Metadata
from blockyard.trtllm.geometry import Unsupported
from blockyard.trtllm.hub import Hub
from blockyard.trtllm.interface import KvCacheConnectorScheduler
from blockyard.trtllm.ledger import Request, salt_of, skip_reason, whole_pages

# Limit for the answer to a lookup: ANSWER_SECONDS for each ANSWER_TOKENS of the prompt.
ANSWER_SECONDS = 1e-3
ANSWER_TOKENS = 8192
PAUSE_SECONDS = 2e-5
READY_SECONDS = 10.0  # limit for the first worker to join at the start

_log = logging.getLogger(__name__)


def engine_version() -> str:
    """TensorRT-LLM's version, or "unknown"."""
    module = importlib.import_module("tensorrt_llm")
    return str(getattr(module, "__version__", "unknown"))


class BlockyardLeader(KvCacheConnectorScheduler):
    """Decides which blocks are loaded and stored.

    Runs on rank 0, and on every rank under attention data parallelism. An exception in a hook is
    logged and counted, and the request runs without a cache.
    """

    supports_attention_dp = True

    def __init__(self, llm_args: Any, *_: Any, **__: Any) -> None:
        super().__init__(llm_args)
        self.counters: Counter[str] = Counter()
        self._requests: dict[int, Request] = {}
        self._generations: dict[int, int] = {}
        self._step = 0
        self._hub: Hub | None = None
        self._settings = arguments.settings()
        try:
            args = arguments.read(llm_args, engine_version())
        except Unsupported as err:
            self._settings.decline(f"{err} is not supported")
            _log.warning("blockyard: no cache: %s is not supported", err)
            return
        if not self._settings.enabled:
            _log.info("blockyard: no cache: disabled by BLOCKYARD_ENABLED")
            return
        self._block_tokens = args.block_tokens
        weights = arguments.weights(llm_args, args, self._settings.weights)
        self._hub = Hub(args, self._settings, weights)

    def wait_for_initialization(self) -> None:
        """Waits for the first worker, READY_SECONDS at most. Does not wait for the agent."""
        if self._hub is not None and not self._hub.ready.wait(READY_SECONDS):
            _log.warning(
                "blockyard: no worker has registered its KV cache after %g s; no cache until then",
                READY_SECONDS,
            )

    # The engine's hooks, in the order of a request's life.

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Loadable tokens beyond num_computed_tokens, and whether there are any."""
        hub = self._hub
        if hub is None or not hub.complete:
            return 0, False
        return hub.guarded(
            "get_num_new_matched_tokens",
            lambda: self._matched(hub, request, num_computed_tokens),
            (0, False),
        )

    def _matched(self, hub: Hub, request: Any, num_computed: int) -> tuple[int, bool]:
        state = self._admit(hub, request)
        if state is None:
            return 0, False
        local, part = divmod(num_computed, self._block_tokens)
        if part:
            # The engine counts the computed part of that block, which a load would overwrite.
            self.counters["partial_reuse"] += 1
            return 0, False
        hit = self._answer(hub, state, local)
        # The engine must compute at least one token.
        blocks = min(hit.blocks, (len(state.tokens) - 1) // self._block_tokens - local)
        if blocks < (self._settings.min_load_blocks or 1) or not self._settings.load:
            hub.session.release_hit(state.rid, state.generation)
            return 0, False
        state.hit_range = (local, local + blocks)
        state.hit_slots = hit.slots
        state.hit_start = local
        state.hit_reported = True
        return blocks * self._block_tokens, True

    def _admit(self, hub: Hub, request: Any) -> Request | None:
        """Opens the request at the agent. None when the request runs without a cache."""
        reason = skip_reason(request)
        if reason:
            self.counters["skipped_" + reason] += 1
            return None
        if hub.dispatch.distrusts:
            return None
        number = int(request.request_id)
        if number in self._requests:  # this release does not call request_reset()
            self._restart(hub, self._requests[number])
        state = Request(number, self._generations.get(number, 0), Identity(salt=salt_of(request)))
        state.grow(request.get_tokens(0))
        self._requests[number] = state
        hub.session.open(state.rid, state.generation, state.tokens, state.identity)
        return state

    def _answer(self, hub: Hub, state: Request, local: int) -> Hit:
        """The hit behind `local` blocks. Without an answer in time: no hit, counted."""
        wait = ANSWER_SECONDS * (1 + len(state.tokens) // ANSWER_TOKENS)
        until = time.monotonic() + wait
        while True:
            hit = hub.session.hit(state.rid, state.generation, local, rest=PAUSE_SECONDS)
            if hit is not None:
                return hit
            if time.monotonic() >= until:
                self.counters["late_lookups"] += 1
                return Hit(0, b"")
            time.sleep(PAUSE_SECONDS)  # lets the packer's thread run

    def cancel_load(self, request: Any, start: int, end: int) -> None:
        """Removes tokens start..end-1 from the reported hit."""
        state = self._requests.get(request.request_id)
        if state is not None and self._hub is not None:
            self._hub.guarded(
                "cancel_load", lambda: state.cut(start, end, self._block_tokens), None
            )

    def update_state_after_alloc(self, request: Any, block_ids: Sequence[int]) -> None:
        """Begins the load of the reported hit into the allocated blocks."""
        self.update_state_after_alloc_by_layer_group(request, [block_ids])

    def update_state_after_alloc_by_layer_group(
        self, request: Any, block_ids_by_layer_group: Sequence[Sequence[int]]
    ) -> None:
        """update_state_after_alloc() with a list for each layer group."""
        hub, state = self._hub, self._requests.get(request.request_id)
        if hub is None or state is None or not state.hit_reported:
            return
        state.hit_reported = False
        begun = hub.guarded(
            "update_state_after_alloc",
            lambda: self._load(hub, state, block_ids_by_layer_group),
            False,
        )
        if not begun:
            hub.guarded("fail_load", lambda: hub.dispatch.fail_load(state.id), None)
        hub.wake()

    def _load(self, hub: Hub, state: Request, groups: Sequence[Sequence[int]]) -> bool:
        """Begins the load. False when the load failed. True without a block to load too."""
        first, last = state.hit_range or (0, 0)
        last = whole_pages(groups, first, last)
        if first >= last:
            hub.session.release_hit(state.rid, state.generation)
            hub.dispatch.nothing_to_load(state.id)
            return True
        parts = [list(group[first:last]) for group in groups]
        hub.dispatch.begin_load(state.id)
        if hub.session.load(state.rid, state.generation, first, parts):
            return True
        # The agent has ended since its answer. Its memory is still mapped. The generation of a
        # reused slot has changed, and the worker compares generations.
        start, end = (SLOT_BYTES * (block - state.hit_start) for block in (first, last))
        if len(state.hit_slots) < end:
            return False
        self.counters["unclaimed_loads"] += 1
        hub.dispatch.load_unclaimed(state.id, state.hit_slots[start:end], parts)
        return True

    def build_connector_meta(self, scheduler_output: Any) -> Metadata | None:
        """The step's metadata for the workers. Also records the step's tokens and blocks."""
        hub = self._hub
        if hub is None:
            return None
        self._step += 1
        if hub.layout is not None:
            hub.guarded("build_connector_meta", lambda: self._follow(hub, scheduler_output), None)
        return Metadata(hub.name, self._step)

    def _follow(self, hub: Hub, output: Any) -> None:
        hub.dispatch.step = self._step
        for data in output.new_requests:
            state = self._requests.get(data.request_id)
            if state is None:
                continue
            if salt_of(data) not in ("", state.identity.salt):
                self._forget(hub, state)
                self.counters["skipped_salt"] += 1
                continue
            state.grow(data.new_tokens)
            state.step(data)
            self._offer_settled(hub, state)
        for data in output.cached_requests:
            state = self._requests.get(data.request_id)
            if state is not None:
                state.tokens.extend(data.new_tokens)
                state.step(data)
                self._offer_settled(hub, state)

    def _offer_settled(self, hub: Hub, state: Request) -> None:
        """Offers blocks that earlier steps have filled, if the request cannot lose its blocks."""
        assert hub.layout is not None
        if hub.layout.stable and state.settled // self._block_tokens > state.offered:
            self._offer(hub, state, state.settled, state.pages)
            hub.wake()

    def _offer(self, hub: Hub, state: Request, tokens: int, pages: Sequence[Sequence[int]]) -> None:
        """Offers the full blocks of the first `tokens` tokens."""
        if not self._settings.store or hub.dispatch.distrusts or not hub.complete:
            return
        blocks = min(tokens, len(state.tokens)) // self._block_tokens
        blocks = whole_pages(pages, state.offered, blocks) if pages else 0
        if blocks > state.offered:
            state.offered = blocks
            hub.session.computed(state.rid, state.generation, blocks, pages)

    def request_finished(self, request: Any, cache_block_ids: Sequence[int]) -> bool:
        """Ends a request. True while copies use its blocks.

        Then the engine keeps the blocks until the workers report the request as saved.
        """
        return self.request_finished_by_layer_group(request, [cache_block_ids])

    def request_finished_by_layer_group(
        self, request: Any, cache_block_ids_by_layer_group: Sequence[Sequence[int]]
    ) -> bool:
        """request_finished() with a list for each layer group."""
        hub, state = self._hub, self._requests.get(request.request_id)
        self._generations.pop(request.request_id, None)
        if hub is None or state is None:
            return False
        groups = cache_block_ids_by_layer_group
        hub.guarded("request_finished", lambda: self._finish(hub, request, state, groups), None)
        # Copies in flight use the blocks even when _finish() has failed.
        blocks = {block for group in (*groups, *state.pages) for block in group}
        pending = hub.guarded("finish", lambda: hub.dispatch.finish(state.id, blocks), False)
        hub.wake()
        return pending

    def _finish(
        self, hub: Hub, request: Any, state: Request, groups: Sequence[Sequence[int]]
    ) -> None:
        self._requests.pop(state.id, None)
        try:
            state.grow(request.get_tokens(0))
            # The last token has no KV. A request aborted in its prompt has only the KV of its
            # scheduled tokens.
            self._offer(hub, state, min(len(state.tokens) - 1, state.computed), groups)
        finally:
            hub.session.finished(state.rid)

    def request_reset(self, request: Any) -> None:
        """Forgets a request whose blocks the engine has taken. The engine runs the request again,
        and asks for its hit again."""
        hub, state = self._hub, self._requests.get(request.request_id)
        if hub is not None and state is not None:
            hub.guarded("request_reset", lambda: self._restart(hub, state), None)
            hub.wake()

    def _restart(self, hub: Hub, state: Request) -> None:
        self._generations[state.id] = state.generation + 1
        hub.dispatch.blocks_are_gone()
        self._forget(hub, state)

    def _forget(self, hub: Hub, state: Request) -> None:
        self._requests.pop(state.id, None)
        hub.session.finished(state.rid)

    # The end.

    def stats(self) -> dict[str, int]:
        """Counters of this leader and of its session."""
        return {**(self._hub.stats() if self._hub is not None else {}), **self.counters}

    def shutdown(self) -> None:
        """Ends the session and the channel. May be called again."""
        if self._hub is not None:
            self._hub.shutdown()
