"""Makes the connector's two roles from vLLM's configuration, or turns the connector off."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base

from blockyard.frames import RegisterFields
from blockyard.groupsession import GroupSession
from blockyard.mover import Page, Pages
from blockyard.scheduler import SchedulerSession
from blockyard.settings import Settings
from blockyard.vllm import facts
from blockyard.vllm.geometry import Share, block_tokens, why_unsupported
from blockyard.vllm.hybrid import HybridScheduler
from blockyard.vllm.kvgroups import groups_of, is_hybrid, why_not_served
from blockyard.vllm.layout import note_runs
from blockyard.vllm.scheduler import STEP_TOKENS, VllmScheduler
from blockyard.vllm.worker import VllmWorker, gather_stages, identity_fields, worker_ranks
from blockyard.worker import WorkerIdentity, WorkerSession

log = logging.getLogger("blockyard.vllm")


def show_log(settings: Settings) -> None:
    """Sends the connector's log lines to vLLM's handlers."""
    ours, theirs = logging.getLogger("blockyard"), logging.getLogger("vllm")
    if not ours.handlers and theirs.handlers:
        for handler in theirs.handlers:
            ours.addHandler(handler)
        ours.propagate = False
        ours.setLevel(theirs.level)
    if settings.log_level:
        ours.setLevel(settings.log_level.upper())


def _why_off(vllm_config: Any, kv_cache_config: Any, settings: Settings) -> str:
    if not hasattr(base, "KVConnectorTransferResults"):
        return "this vLLM takes no reports of failed loads by request (0.31 and later do)"
    reason = facts.why_off(vllm_config, settings) or why_unsupported(kv_cache_config)
    if not reason and is_hybrid(kv_cache_config):
        reason = why_not_served(vllm_config, kv_cache_config)
    return reason


def make_scheduler(vllm_config: Any, kv_cache_config: Any, settings: Settings) -> VllmScheduler:
    """The scheduler role. Its session starts after the handshakes of all workers.

    Without a session, when the connector cannot serve the model. The role then answers every hook
    at once. Its class still declares SupportsHMA: vLLM chooses the class before it knows the KV
    groups, and would manage a hybrid model's blocks as full attention, or fail. NotServedError with
    `require`.
    """
    groups = len(kv_cache_config.kv_cache_groups)
    reason = _why_off(vllm_config, kv_cache_config, settings)
    if reason:
        settings.decline(reason)
        log.warning("Blockyard stays off, all requests run without it: %s", reason)
        return VllmScheduler(settings, None, 1, groups)
    transfer = vllm_config.kv_transfer_config
    if getattr(transfer, "kv_role", "kv_both") == "kv_producer" and settings.load:
        # Only for consumer roles does vLLM keep loads out of blocks that a step in flight writes.
        log.warning('kv_role is "kv_producer": blocks are stored and never loaded')
        settings = replace(settings, load=False)
    if getattr(transfer, "kv_load_failure_policy", "fail") != "recompute":
        log.warning(
            'kv_load_failure_policy is not "recompute": a load that fails ends its request with an'
            " error. Loads run from memory that this engine maps, so an agent's death fails none,"
            ' but "recompute" is the better setting'
        )
    step_tokens = facts.batched_tokens_of(vllm_config) or STEP_TOKENS
    ranks = facts.parallel(vllm_config, "data_parallel_size")
    if is_hybrid(kv_cache_config):
        # The sizes of blocks follow with the workers' handshakes. The session needs none.
        known = groups_of(vllm_config, kv_cache_config, [1] * groups)
        return HybridScheduler(settings, GroupSession(settings, None, known), step_tokens, ranks)
    tokens = block_tokens(
        kv_cache_config, facts.parallel(vllm_config, "decode_context_parallel_size")
    )
    session = SchedulerSession(settings, None, tokens)
    side = VllmScheduler(settings, session, tokens, groups, step_tokens, ranks)
    side.short.on = settings.short_loads and facts.short_loads_work(vllm_config, kv_cache_config)
    return side


def make_worker(vllm_config: Any, kv_cache_config: Any, settings: Settings) -> VllmWorker:
    """The worker role. It connects when vLLM has allocated its KV tensors.

    NotServedError with `require`, when the connector cannot serve the model.
    """
    reason = _why_off(vllm_config, kv_cache_config, settings)
    if reason:
        settings.decline(reason)
    return VllmWorker(
        settings,
        vllm_config,
        kv_cache_config,
        reason,
        functools.partial(_open_session, vllm_config, settings),
        functools.partial(worker_ranks, vllm_config),
        gather_stages,
    )


def _open_session(
    vllm_config: Any,
    settings: Settings,
    device: str,
    specs: Sequence[Page],
    register: RegisterFields,
    share: Share,
    grouped: bool,
) -> WorkerSession:
    """A started WorkerSession for these pages."""
    pages = Pages(specs, register.device_blocks, device, share.offset, grouped)
    note_runs(settings, pages)
    session = WorkerSession(
        settings,
        WorkerIdentity(**identity_fields(vllm_config, settings)),
        early_loads=not facts.steps_overlap(vllm_config),
    )
    session.start(register, pages)
    return session
