"""The leader's hub: the session with the agent, the channel to the workers, and their thread.

One lock guards the state, which the engine's hooks and the thread share. Neither side holds the
lock longer than a hook may take. The thread also works while the engine is idle.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from blockyard.fingerprint import Fingerprint
from blockyard.frames import HelloFields
from blockyard.scheduler import SchedulerSession
from blockyard.settings import Settings
from blockyard.trtllm import arguments
from blockyard.trtllm.arguments import Arguments
from blockyard.trtllm.crew import Crew, unpack_done
from blockyard.trtllm.dispatch import Dispatch
from blockyard.trtllm.geometry import BlockLayout
from blockyard.trtllm.ledger import HeldBlocks
from blockyard.work import Mapped

POLL_SECONDS = 1e-3  # interval of polls while grants or completions are due
IDLE_SECONDS = 1.0  # interval of polls otherwise

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class Hub:
    """Owns the session with the agent and the channel to the workers.

    The constructor starts the thread. The first worker that joins starts the session. `session` and
    `dispatch` exist from then on; use them under guarded(). layout: None before the session starts.
    ready: set from the session's start on. held: the device blocks that copies read.
    """

    session: SchedulerSession
    dispatch: Dispatch

    def __init__(self, args: Arguments, settings: Settings, weights: Fingerprint) -> None:
        self.layout: BlockLayout | None = None
        self.ready = threading.Event()
        self.counters: Counter[str] = Counter()
        self.held = HeldBlocks()
        self._args = args
        self._settings = settings
        self._weights = weights
        self._worker_id = settings.worker_id or arguments.fresh_worker_id()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._crew = Crew(args.world, self._welcome)
        self._thread = threading.Thread(target=self._serve, name="blockyard-leader", daemon=True)
        self._thread.start()
        atexit.register(self.shutdown)

    @property
    def name(self) -> str:
        """The name of the channel, with which workers join."""
        return self._crew.name

    @property
    def complete(self) -> bool:
        """Whether all workers have joined. Without all workers there is no hit and no store."""
        return self._crew.complete

    def wake(self) -> None:
        """Makes the thread look for new orders at once."""
        self._crew.wake()

    def guarded(self, where: str, act: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        """Calls act() under the lock and returns its result.

        An exception of act() is counted under `where`, and the result is `otherwise`.
        """
        try:
            with self._lock:
                return act()
        except Exception:
            self._count_failure(where)
            return otherwise

    def _count_failure(self, where: str) -> None:
        """Counts a failure. Logs the first failure of each hook with its traceback."""
        self.counters["failed_" + where] += 1
        if self.counters["failed_" + where] == 1:
            _log.exception("blockyard: %s failed; requests go on without a cache", where)

    # The thread.

    def _welcome(self, join: dict[str, Any]) -> dict[str, Any]:
        """The answer to a worker that joins: its identity and the offset of its share.

        ValueError when its layout differs from the layout of the earlier workers.
        """
        rank, blocks, layout = join["rank"], join["blocks"], BlockLayout(**join["form"])
        with self._lock:
            if self.layout is None:
                self._start(layout, blocks)
            elif layout != self.layout:
                raise ValueError(f"KV cache of rank {rank}: {layout}, others have {self.layout}")
            self.held.total = min(self.held.total, blocks)
        self.ready.set()
        return {
            "worker_id": self._worker_id,
            "dp_rank": self._args.dp_rank,
            "engine": f"tensorrt-llm {self._args.version}",
            "offset": 0 if layout.replicated else rank * layout.share_bytes,
        }

    def _start(self, layout: BlockLayout, blocks: int) -> None:
        salt = self._settings.namespace_salt
        space = arguments.namespace(self._args, layout, self._weights.text, salt)
        self.held.total = blocks
        # A store keeps no block from another request, so stores may read all blocks by default.
        limit = self._settings.max_inflight_blocks or blocks
        settings = dataclasses.replace(self._settings, max_inflight_blocks=limit)
        self.session = SchedulerSession(settings, self.held, self._args.block_tokens)
        self.dispatch = Dispatch(self.session, self.held, self._args.world)
        if not self._weights.shared:
            _log.warning("blockyard: no blocks shared with other engines: %s", self._weights.reason)
        self.session.start(
            HelloFields(
                engine=f"tensorrt-llm {self._args.version}",
                worker_id=self._worker_id,
                dp_rank=self._args.dp_rank,
                namespace=space.as_map(),
                want_evicted=self._settings.want_evicted,
                # One socket has the events of all ranks.
                **({} if self._args.dp_rank else arguments.events()),
            )
        )
        self.layout = layout

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self._exchange()
            except Exception:
                self._count_failure("serve")
                self._closing.wait(0.1)

    def _exchange(self) -> None:
        """Takes the workers' reports and sends the next order."""
        crew = self._crew
        for rank, message in crew.poll(POLL_SECONDS if self.active() else IDLE_SECONDS):
            with self._lock:
                self.dispatch.ended(rank, unpack_done(message["done"]))
                if "mapped" in message:
                    self.session.mapped(Mapped(rank, **message["mapped"]))
                if "knows" in message:
                    self.dispatch.knows(rank, message["knows"])
        if self.layout is None:
            return
        with self._lock:
            if (crew.lost or crew.left) and not self.dispatch.abandoned:
                if crew.lost:
                    _log.error("blockyard: no cache from now on: worker lost: %s", crew.lost)
                self.dispatch.abandon()
            self.dispatch.agree(crew.ranks)
            order = self.dispatch.next_order()
        if order is not None:
            crew.send(order)

    def active(self) -> bool:
        """Whether grants, completions or reports are due."""
        return self.layout is not None and self.dispatch.active()

    # The end.

    def stats(self) -> dict[str, int]:
        """Counters of the session and of the orders. Before the session: the hub's counters."""
        if self.layout is None:
            return dict(self.counters)
        return {**self.session.stats(), **self.dispatch.counters, **self.counters}

    def shutdown(self) -> None:
        """Says BYE to the agent and ends the channel. May be called again."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._crew.wake()
        self._thread.join(2.0)
        with self._lock:
            if self.layout is not None:
                self.session.close()
        self._crew.close()
        atexit.unregister(self.shutdown)
