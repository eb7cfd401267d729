"""Collects the workers' handshakes and starts the scheduler's session."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from typing import Any

from blockyard.frames import HelloFields
from blockyard.namespace import Namespace, NamespaceError
from blockyard.settings import NotServedError, Settings
from blockyard.vllm import facts
from blockyard.vllm.consolidated import stream_of
from blockyard.vllm.geometry import block_tokens
from blockyard.vllm.guard import Faults
from blockyard.vllm.kvgroups import groups_of, is_hybrid
from blockyard.vllm.records import Handshake

log = logging.getLogger("blockyard.vllm")

# How long an engine without requests keeps stepping to receive the missing handshakes.
HANDSHAKE_SECONDS = 10.0
START_SECONDS = 1.0
START_POLL_SECONDS = 0.002


class Assembly:
    """Collects one Handshake of every worker, then starts the scheduler's session.

    vLLM delivers handshakes before the first step. Inside a MultiConnector, the report of the first
    step delivers them.
    """

    def __init__(
        self, vllm_config: Any, kv_cache_config: Any, settings: Settings, scheduler: Any
    ) -> None:
        self._config = vllm_config
        self._kv = kv_cache_config
        self._settings = settings
        self._scheduler = scheduler
        self._faults = Faults()
        self._shares: dict[tuple[int, int], Handshake] = {}
        self._wanted = facts.parallel(vllm_config, "tensor_parallel_size") * facts.parallel(
            vllm_config, "pipeline_parallel_size"
        )
        self._settled = scheduler.session is None
        self._until = 0.0

    def add(self, handshakes: Iterable[Any]) -> bool:
        """Takes handshakes and ignores those of other connectors. True when none is missing now."""
        if self._settled:
            return False
        for handshake in handshakes:
            if isinstance(handshake, Handshake):
                self._shares[handshake.pp_rank, handshake.tp_rank] = handshake
        if len(self._shares) < self._wanted:
            return False
        self._settled = True
        try:
            self._start([self._shares[key] for key in sorted(self._shares)])
        except NotServedError:
            raise
        except Exception as err:
            self._faults.note("handshake", err)
            self._decline(str(err))
        return True

    def await_agent(self) -> None:
        """Waits until the session is connected, START_SECONDS at most, while the engine starts.

        The engine's first request then finds the blocks of an earlier engine. Without the agent's
        socket the call returns at once. The engine's main loop must not call it.
        """
        deadline = time.monotonic() + START_SECONDS
        try:
            while not self._scheduler.off and os.path.exists(self._settings.socket):
                session = self._scheduler.session
                session.take_work()  # the session adopts its connection
                if session.stats()["connected"] or time.monotonic() > deadline:
                    return
                time.sleep(START_POLL_SECONDS)
        except Exception as err:
            self._faults.note("await_agent", err)

    def _decline(self, reason: str) -> None:
        """Turns the connector off for this engine. NotServedError with `require`."""
        self._settings.decline(reason)
        self._scheduler.turn_off(reason)

    def waiting(self) -> bool:
        """Whether the engine must step so that workers can report. False after the time limit."""
        if self._settled:
            return False
        now = time.monotonic()
        if not self._until:
            self._until = now + HANDSHAKE_SECONDS
        if now < self._until:
            return True
        self._settled = True
        self._decline(
            f"{len(self._shares)} of {self._wanted} workers reported within {HANDSHAKE_SECONDS} s"
        )
        return False

    def _start(self, shares: list[Handshake]) -> None:
        problem = next((share.problem for share in shares if share.problem), "")
        if not problem and len({share.host for share in shares}) > 1:
            problem = "its workers are on several nodes"
        if problem:
            self._decline(problem)
            return
        weights = facts.weights_of(self._config, self._settings)
        if not weights.shared:
            log.warning(
                "the weights cannot be identified: %s; no other engine shares the blocks, and a"
                " restarted engine cannot load them, unless the setting `weights` identifies them",
                weights.reason,
            )
        try:
            namespace = self._namespace(shares, weights.text)
        except (NamespaceError, ValueError) as err:
            self._decline(str(err))
            return
        log.info("blocks of %d bytes, namespace %s", namespace.block_bytes, namespace.as_map())
        hello = HelloFields(
            engine=f"vllm {facts.engine_version()}",
            worker_id=facts.worker_id_of(self._config, self._settings),
            dp_rank=facts.dp_rank_of(self._config),
            incarnation=time.time_ns(),
            namespace=namespace.as_map(),
            want_evicted=self._settings.want_evicted,
            serving_endpoint=self._settings.serving_endpoint,
            ranks=facts.parallel(self._config, "data_parallel_size"),
            device_blocks=self._kv.num_blocks,
            max_num_batched_tokens=facts.batched_tokens_of(self._config),
            **self._events(),
        )
        self._scheduler.start(hello, len(shares))

    def _namespace(self, shares: list[Handshake], weights: str) -> Namespace:
        formats = [share.format for share in shares]
        total = shares[0].total_bytes
        if not is_hybrid(self._kv):
            dcp = facts.parallel(self._config, "decode_context_parallel_size")
            tokens = block_tokens(self._kv, dcp)
            return facts.namespace_of(self._config, self._kv, weights, total, tokens, formats)
        ends = [max(sizes) for sizes in zip(*(share.group_bytes for share in shares), strict=True)]
        pp = facts.parallel(self._config, "pipeline_parallel_size")
        groups = groups_of(self._config, self._kv, ends, pp)
        return facts.namespace_of(
            self._config, self._kv, weights, total, groups.page, formats, groups
        )

    def _events(self) -> dict[str, Any]:
        """HelloFields for this rank's events; empty when the rank publishes none."""
        events: dict[str, Any] = dict(facts.events_of(self._config))
        if events:
            events["lists_cached"] = True
            events.update(stream_of(self._config))
        return events
