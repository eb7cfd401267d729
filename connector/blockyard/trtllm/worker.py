"""BlockyardWorker: the side for TensorRT-LLM that copies.

Orders come from the leader over a channel of its own (crew.py), so that copies run while the
engine is idle, and their ends go back there. The engine's own calls do three things: they bring
the leader's name, they say which steps were launched, and they ask what has ended.

A store reads what steps have written. The order names the newest of them, and the worker begins
when it has launched that step itself, behind an event that it recorded then: ranks are not
equally far.

The engine takes a load for done that it was promised, and has no word for one that failed. So a
request is reported as loaded when all of its bytes are there, and not before. A load that fails
is tried again for some seconds; then get_finished() raises, which ends the engine: any other
answer would give wrong tokens or leave the request waiting for ever. It raises on all ranks, and
in the same call of each: behind every call the engine gathers the answers of all ranks, and one
that raised alone would leave the others waiting there. So a rank that hears of a failed load
holds its next call until all ranks have agreed on the last one that returns.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from blockyard.trtllm import arguments
from blockyard.trtllm.copies import Copies
from blockyard.trtllm.crew import (
    BYE,
    Channel,
    CrewError,
    Metadata,
    Waker,
    here,
    join,
    pack_done,
    readable,
)
from blockyard.trtllm.geometry import Pool, Unsupported, of_layout, of_tensor
from blockyard.trtllm.interface import KvCacheConnectorWorker

POLL_SECONDS = 1e-3  # how often ends of copies are looked for while some are under way
IDLE_SECONDS = 1.0
AGREE_SECONDS = 5.0  # that the ranks have to agree, before each raises by itself

_log = logging.getLogger(__name__)


class LoadFailed(RuntimeError):
    """Blocks that the engine counts as computed could not be loaded. It cannot go on with them."""


class BlockyardWorker(KvCacheConnectorWorker):
    """Copies between this rank's KV cache and the agent's memory. On every rank."""

    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self._settings = arguments.settings()
        self._llm_args = llm_args
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)  # the leader has said something
        self._waker = Waker()
        self._closing = False
        self._leader = ""
        self._step = 0
        self._copies: Copies | None = None
        self._thread: threading.Thread | None = None
        self._saving: set[int] = set()  # what the engine has asked about and not heard of yet
        self._loading: set[int] = set()
        self._calls = 0  # of get_finished() that have returned, or are about to
        self._knows = False  # the leader was told that this rank knows of a failed load

    # What the engine registers.

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        """The pool tensor of the V1 manager."""
        self._register(lambda: of_tensor(kv_cache_tensor))

    def register_kv_cache_layout(self, layout: Any) -> None:
        """The pools of the V2 manager, as byte ranges."""
        self._register(lambda: of_layout(layout, _device(), self._kv_dtype()))

    def _kv_dtype(self) -> str:
        return str(getattr(self._llm_args.kv_cache_config, "dtype", "auto"))

    def _register(self, describe: Callable[[], Pool]) -> None:
        if not self._settings.enabled:
            return
        try:
            args = arguments.read(self._llm_args, "")
            pool = describe()
        except Unsupported as err:
            _log.warning("blockyard: no cache: %s is not supported", err)
            return
        self._copies = Copies(self._settings, pool, args.rank, self._waker.wake)
        self._thread = threading.Thread(target=self._serve, name="blockyard-worker", daemon=True)
        self._thread.start()
        atexit.register(self.shutdown)

    # What the engine calls in each step.

    def bind_connector_meta(self, metadata: object) -> None:
        """Takes the leader's name and the number of the step that comes."""
        super().bind_connector_meta(metadata)
        if isinstance(metadata, Metadata):
            self._step = metadata.step
            if not self._leader:
                self._leader = metadata.crew
                self._waker.wake()

    def start_load_kv(self, stream: Any) -> None:
        """Nothing: loads began when the leader ordered them."""

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Nothing: a request is not scheduled before all of it is loaded."""

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Nothing: whole blocks are stored, after their step."""

    def register_forward_pass_callable(self) -> Callable[[], None]:
        """Called at the end of a forward pass, on its stream: the place for the event."""
        return self._launched

    def wait_for_save(self, stream: Any) -> None:
        """The step has been launched. Does not wait: the engine keeps the blocks."""
        self._launched()

    def _launched(self) -> None:
        copies = self._copies
        if copies is None:
            return
        with self._lock:
            waiting = copies.launched(self._step)
        if waiting:
            self._waker.wake()

    def get_finished(
        self, finished_gen_req_ids: Sequence[int], started_loading_req_ids: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Requests that are saved, and requests that are loaded, of those asked about so far.

        LoadFailed when a load cannot be had (see above).
        """
        copies = self._copies
        if copies is None:
            return list(finished_gen_req_ids), list(started_loading_req_ids)
        self._launched()
        with self._lock:
            self._saving.update(finished_gen_req_ids)
            self._loading.update(started_loading_req_ids)
            self._raise_if_failed(copies)
            self._calls += 1
            saved = copies.saved(self._saving)
            loaded = copies.loaded(self._loading)
            self._saving -= saved
            self._loading -= loaded
        return sorted(saved), sorted(loaded)

    def _raise_if_failed(self, copies: Copies) -> None:
        """LoadFailed in the call in which all ranks raise it. Waits until that is known."""

        def known() -> bool:
            return copies.last_call is not None or copies.orphaned

        if copies.failed and not self._news.wait_for(known, AGREE_SECONDS):
            copies.reason += "; the ranks could not agree when to end"
        over = copies.failed and (copies.last_call is None or self._calls >= copies.last_call)
        if over or copies.given_up(self._loading):
            raise LoadFailed(
                "blockyard: KV that was promised cannot be loaded: "
                f"{copies.reason}; going on would give wrong tokens"
            )

    # The channel to the leader, on a thread of its own.

    def _serve(self) -> None:
        copies = self._copies
        assert copies is not None
        channel = self._join(copies)
        while channel is not None and not self._closing:
            try:
                self._turn(channel, copies)
            except Exception as err:
                # Whatever it was, this rank can no longer follow orders, and nobody else would say.
                if not self._closing:
                    _log.exception("blockyard: no cache from now on: the leader is lost")
                with self._lock:
                    copies.orphan(f"the leader is lost: {err}")
                    self._news.notify_all()
                break
        if channel is not None:
            self._leave(channel)

    def _leave(self, channel: Channel) -> None:
        try:
            if self._closing:
                channel.send(BYE)
        except CrewError:
            pass  # it is the leader that has gone
        channel.close()

    def _join(self, copies: Copies) -> Channel | None:
        """Waits for the leader's name and joins it; None when that fails for good."""
        while not self._closing:
            name = self._leader or here()
            if not name:
                if readable([self._waker.fileno()], IDLE_SECONDS):
                    self._waker.clear()
                continue
            form = dataclasses.asdict(copies.pool.form)
            hello = {"rank": copies.rank, "blocks": copies.pool.blocks, "form": form}
            try:
                channel, messages = join(name, hello)
                copies.start(messages[0])
                for order in messages[1:]:
                    copies.take(order)
                return channel
            except Exception as err:
                _log.error("blockyard: no cache: %s", err)
                return None
        return None

    def _turn(self, channel: Channel, copies: Copies) -> None:
        wait = POLL_SECONDS if copies.active() else IDLE_SECONDS
        ready = readable([channel.fileno(), self._waker.fileno()], wait)
        if self._waker.fileno() in ready:
            self._waker.clear()
        orders = channel.receive() if channel.fileno() in ready else []
        with self._lock:
            for order in orders:
                copies.take(order)
            said = self._said(copies)
            if orders:
                self._news.notify_all()
        if said:
            channel.send(said)

    def _said(self, copies: Copies) -> dict[str, Any]:
        """What the leader is to hear; empty for nothing."""
        said: dict[str, Any] = {}
        ended, mapped = copies.turn(), copies.mapped()
        if mapped is not None:
            said["mapped"] = mapped
        if copies.failed and not self._knows:
            self._knows = True
            said["knows"] = self._calls
        if ended or said:
            said["done"] = pack_done(ended)
        return said

    def stats(self) -> dict[str, int]:
        """Counters of this worker's copies."""
        return self._copies.stats() if self._copies is not None else {}

    def shutdown(self) -> None:
        """Ends the copies that are under way and the connection. May be called again."""
        if self._closing:
            return
        self._closing = True
        self._waker.wake()
        if self._thread is not None:
            self._thread.join(2.0)
            atexit.unregister(self.shutdown)
        if self._copies is not None:
            self._copies.close()
        self._waker.close()


def _device() -> str:
    """The device of this rank, as the engine has set it; the pools lie there."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{torch.cuda.current_device()}"
