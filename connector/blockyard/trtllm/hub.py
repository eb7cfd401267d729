"""The leader's hub: its session with the agent, its channel to the workers, and their thread.

Hooks of the engine and the thread share the state under one lock, which neither holds for longer
than a hook may take. The thread is what goes on while the engine is idle.
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
from blockyard.trtllm.geometry import Form
from blockyard.trtllm.ledger import HeldBlocks
from blockyard.work import Mapped

POLL_SECONDS = 1e-3  # how often grants and completions are looked for while some are due
IDLE_SECONDS = 1.0

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class Hub:
    """Starts with the constructor; the session with the agent follows when a worker has joined.

    session and dispatch are there from then on, and are used under guarded().
    """

    session: SchedulerSession
    dispatch: Dispatch

    def __init__(self, args: Arguments, settings: Settings, weights: Fingerprint) -> None:
        self.form: Form | None = None
        self.ready = threading.Event()  # a worker has joined
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
        """Where workers join."""
        return self._crew.name

    @property
    def complete(self) -> bool:
        """Whether all workers are there, so that something may be promised or offered."""
        return self._crew.complete

    def wake(self) -> None:
        """There is something to order."""
        self._crew.wake()

    def guarded(self, where: str, act: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        """What act answers, under the lock; `otherwise` when it raises, which is counted."""
        try:
            with self._lock:
                return act()
        except Exception:
            self._count_failure(where)
            return otherwise

    def _count_failure(self, where: str) -> None:
        """Logs the first failure of each place in full, and counts all of them."""
        self.counters["failed_" + where] += 1
        if self.counters["failed_" + where] == 1:
            _log.exception("blockyard: %s failed; requests go on without a cache", where)

    # The thread.

    def _welcome(self, join: dict[str, Any]) -> dict[str, Any]:
        """Checks a worker against those before it, and tells it its place. ValueError refuses
        it."""
        rank, blocks, form = join["rank"], join["blocks"], Form(**join["form"])
        with self._lock:
            if self.form is None:
                self._start(form, blocks)
            elif form != self.form:
                raise ValueError(f"KV cache of rank {rank}: {form}, but others have {self.form}")
            self.held.total = min(self.held.total, blocks)
        self.ready.set()
        return {
            "worker_id": self._worker_id,
            "dp_rank": self._args.dp_rank,
            "engine": f"tensorrt-llm {self._args.version}",
            "offset": 0 if form.replicated else rank * form.share_bytes,
        }

    def _start(self, form: Form, blocks: int) -> None:
        salt = self._settings.namespace_salt
        space = arguments.namespace(self._args, form, self._weights.text, salt)
        self.held.total = blocks
        # Stores keep no block from another request, so by default they may read all of them.
        limit = self._settings.max_inflight_blocks or blocks
        settings = dataclasses.replace(self._settings, max_inflight_blocks=limit)
        self.session = SchedulerSession(settings, self.held, self._args.block_tokens)
        self.dispatch = Dispatch(self.session, self.held, self._args.world)
        if not self._weights.shared:
            _log.warning("blockyard: shares nothing with other engines: %s", self._weights.reason)
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
        self.form = form

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self._turn()
            except Exception:
                self._count_failure("serve")
                self._closing.wait(0.1)

    def _turn(self) -> None:
        """Takes what workers say, and sends what they are to do."""
        crew = self._crew
        for rank, message in crew.poll(POLL_SECONDS if self.active() else IDLE_SECONDS):
            with self._lock:
                self.dispatch.ended(rank, unpack_done(message["done"]))
                if "mapped" in message:
                    self.session.mapped(Mapped(rank, **message["mapped"]))
                if "knows" in message:
                    self.dispatch.knows(rank, message["knows"])
        if self.form is None:
            return
        with self._lock:
            if (crew.lost or crew.left) and not self.dispatch.abandoned:
                if crew.lost:
                    _log.error("blockyard: no cache from now on: lost %s", crew.lost)
                self.dispatch.abandon()
            self.dispatch.agree(crew.ranks)
            order = self.dispatch.next_order()
        if order is not None:
            crew.send(order)

    def active(self) -> bool:
        """Whether grants, completions or reports are due."""
        return self.form is not None and self.dispatch.active()

    # The end.

    def stats(self) -> dict[str, int]:
        """Counters of the session and of the orders; none before a worker has joined."""
        if self.form is None:
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
            if self.form is not None:
                self.session.close()
        self._crew.close()
        atexit.unregister(self.shutdown)
