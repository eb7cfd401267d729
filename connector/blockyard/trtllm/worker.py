"""BlockyardWorker: the side of the TensorRT-LLM connector that copies.

The leader sends orders over its channel (crew.py), and the worker's thread returns results there.
So copies run while the engine is idle. The engine's own calls bring the leader's name and the
launched steps, and ask for ended requests.

Ranks launch the same step at different times. A store reads KV that steps have written, and its
order names the newest of these steps. The worker begins the store after it has launched that step
itself, behind the event recorded at the launch.

The engine counts a promised load as done, and has no report of a failed load. So the worker reports
a request as loaded only when all bytes have arrived. A failed load is repeated for some seconds.
After the last failure get_finished() raises, which ends the engine. Any other answer would give
wrong tokens or leave the request waiting forever.

get_finished() raises in the same call on all ranks. After every call the engine gathers the answers
of all ranks, and one rank that raised early would leave the others waiting. So a rank with news of
a failed load holds its next call until all ranks agree on the last call that returns.
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

POLL_SECONDS = 1e-3  # interval of polls while copies are in flight
IDLE_SECONDS = 1.0  # interval of polls otherwise
AGREE_SECONDS = 5.0  # limit for the ranks to agree; then each rank raises by itself

_log = logging.getLogger(__name__)


class LoadFailed(RuntimeError):
    """Blocks that the engine counts as computed cannot be loaded. The engine must end."""


class BlockyardWorker(KvCacheConnectorWorker):
    """Copies between this rank's KV cache and the agent's memory. Every rank has one."""

    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self._settings = arguments.settings()
        self._llm_args = llm_args
        self._lock = threading.Lock()
        self._order_taken = threading.Condition(self._lock)
        self._waker = Waker()
        self._closing = False
        self._leader = ""
        self._step = 0
        self._copies: Copies | None = None
        self._thread: threading.Thread | None = None
        # Requests of get_finished() that are not reported as saved or loaded yet.
        self._saving: set[int] = set()
        self._loading: set[int] = set()
        self._calls = 0  # calls of get_finished() that have returned or are about to return
        self._failure_reported = False  # the leader has this rank's report of a failed load

    # Registration of the KV cache.

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        """Registers the pool tensor of the V1 manager."""
        self._register(lambda: of_tensor(kv_cache_tensor))

    def register_kv_cache_layout(self, layout: Any) -> None:
        """Registers the regions of the V2 manager."""
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
            self._settings.decline(f"{err} is not supported")
            _log.warning("blockyard: no cache: %s is not supported", err)
            return
        self._copies = Copies(self._settings, pool, args.rank, self._waker.wake)
        self._thread = threading.Thread(target=self._serve, name="blockyard-worker", daemon=True)
        self._thread.start()
        atexit.register(self.shutdown)

    # The engine's calls in each step.

    def bind_connector_meta(self, metadata: object) -> None:
        """Takes the leader's name and the number of the next step."""
        super().bind_connector_meta(metadata)
        if isinstance(metadata, Metadata):
            self._step = metadata.step
            if not self._leader:
                self._leader = metadata.crew
                self._waker.wake()

    def start_load_kv(self, stream: Any) -> None:
        """Does nothing: the leader has ordered the loads earlier."""

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Does nothing: the engine schedules a request only after its load."""

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Does nothing: stores copy whole blocks after their step."""

    def register_forward_pass_callable(self) -> Callable[[], None]:
        """The function that the engine calls at the end of a forward pass, on its stream."""
        return self._launched

    def wait_for_save(self, stream: Any) -> None:
        """Records that the step is launched. Does not wait, because the engine keeps the blocks."""
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
        """The saved and the loaded requests among the arguments of this and earlier calls.

        Each request is reported once. LoadFailed when a load has failed on any rank.
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
        """Raises LoadFailed in the same call on all ranks. Waits until the ranks have agreed."""

        def agreed() -> bool:
            return copies.last_call is not None or copies.orphaned

        if copies.failed and not self._order_taken.wait_for(agreed, AGREE_SECONDS):
            copies.reason += f"; the ranks did not agree on a last step in {AGREE_SECONDS} s"
        over = copies.failed and (copies.last_call is None or self._calls >= copies.last_call)
        if over or copies.lost_loads(self._loading):
            raise LoadFailed(
                "blockyard: blocks that the engine counts as computed cannot be loaded: "
                f"{copies.reason}; to go on would give wrong tokens"
            )

    # The worker's thread.

    def _serve(self) -> None:
        copies = self._copies
        assert copies is not None
        channel = self._join(copies)
        while channel is not None and not self._closing:
            try:
                self._exchange(channel, copies)
            except Exception as err:
                # After any error this rank cannot follow orders. No other part reports the error.
                if not self._closing:
                    _log.exception("blockyard: no cache from now on: leader lost")
                with self._lock:
                    copies.orphan(f"leader lost: {err}")
                    self._order_taken.notify_all()
                break
        if channel is not None:
            self._leave(channel)

    def _leave(self, channel: Channel) -> None:
        try:
            if self._closing:
                channel.send(BYE)
        except CrewError:
            pass  # the leader has ended first
        channel.close()

    def _join(self, copies: Copies) -> Channel | None:
        """Waits for the leader's name and joins the leader. None when the leader refuses."""
        while not self._closing:
            name = self._leader or here()
            if not name:
                if readable([self._waker.fileno()], IDLE_SECONDS):
                    self._waker.clear()
                continue
            layout = dataclasses.asdict(copies.pool.layout)
            hello = {"rank": copies.rank, "blocks": copies.pool.blocks, "form": layout}
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

    def _exchange(self, channel: Channel, copies: Copies) -> None:
        wait = POLL_SECONDS if copies.active() else IDLE_SECONDS
        ready = readable([channel.fileno(), self._waker.fileno()], wait)
        if self._waker.fileno() in ready:
            self._waker.clear()
        orders = channel.receive() if channel.fileno() in ready else []
        with self._lock:
            for order in orders:
                copies.take(order)
            report = self._report(copies)
            if orders:
                self._order_taken.notify_all()
        if report:
            channel.send(report)

    def _report(self, copies: Copies) -> dict[str, Any]:
        """The next report for the leader, or an empty one."""
        report: dict[str, Any] = {}
        ended, mapped = copies.poll(), copies.mapped()
        if mapped is not None:
            report["mapped"] = mapped
        if copies.failed and not self._failure_reported:
            self._failure_reported = True
            report["knows"] = self._calls
        if ended or report:
            report["done"] = pack_done(ended)
        return report

    def stats(self) -> dict[str, int]:
        """Counters of this worker's copies."""
        return self._copies.stats() if self._copies is not None else {}

    def shutdown(self) -> None:
        """Ends the copies in flight and the connection. May be called again."""
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
    """The current device of this process, which has the pools."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{torch.cuda.current_device()}"
