"""All cases, in the order in which they run."""

from __future__ import annotations

from e2e import cases_drafts, cases_groups, cases_tiers, cases_tight
from e2e.cases_events import events_to_router
from e2e.cases_faults import (
    agent_kill_restart,
    first_block_fails,
    first_block_fails_request,
    flipped_byte_disk,
    flipped_byte_host,
)
from e2e.cases_hybrid import hybrid_inert, hybrid_required
from e2e.cases_idle import idle_engine
from e2e.cases_isolation import lora_isolation, other_weights, salt_isolation
from e2e.cases_lists import events_list
from e2e.cases_metrics import own_metrics, short_hits
from e2e.cases_reload import chunked_prefill, disk_only, engine_restart, reset_reload, two_engines
from e2e.cases_scheduling import (
    abort_mid_load,
    preemption,
    speculative_decoding,
    store_races_reuse,
    two_dp_ranks,
    two_tp_ranks,
)
from e2e.cases_short import short_load_fails, short_loads
from e2e.runner import Case
from e2e.shapes import CHUNKS, GEMMA, GPT_OSS, QWEN

# The cases of a hybrid model, in their order. The last ones kill agent and engine.
_OF_A_SHAPE = (
    cases_groups.reload,
    cases_groups.damage,
    cases_groups.flipped,
    cases_groups.disk_only,
    cases_groups.partial,
    cases_groups.chunked_prefill,
    cases_groups.load_fails,
    cases_groups.conversation,
    cases_tiers.own_metrics,
    cases_tiers.vllm_tier,
    cases_groups.abort_mid_load,
    cases_groups.late_stores,
    cases_groups.store_races_reuse,
    cases_groups.preemption,
    cases_drafts.speculative,
    cases_tight.short_hits,
    cases_tight.load_fails_request,
    cases_tight.eviction,
    cases_groups.agent_kill_restart,
    cases_groups.engine_kill,
)
# All cases of a shape run one after the other, with one agent.
_GROUP_CASES = tuple(
    one
    for shape in (GPT_OSS, QWEN, CHUNKS, GEMMA)
    for cases in _OF_A_SHAPE
    for one in cases
    if one.name.startswith(shape.name)
)

# Cases whose result depends on the copies (Case.copies): bytes in every direction and layout, loads
# that fail or end late, memory that is mapped again, and engines that die. Of the two hybrid
# models, one has windows and one has states.
_COPIES = {
    *(reset_reload, chunked_prefill, disk_only, flipped_byte_disk, first_block_fails),
    *(agent_kill_restart, flipped_byte_host, preemption, engine_restart, two_tp_ranks),
    *(short_loads, store_races_reuse, abort_mid_load),
    *(
        one
        for cases in (
            cases_groups.reload,
            cases_groups.damage,
            cases_groups.flipped,
            cases_groups.load_fails,
            cases_groups.abort_mid_load,
            cases_tight.eviction,
            cases_groups.agent_kill_restart,
            cases_groups.engine_kill,
        )
        for one in cases
        if one.name.startswith((GPT_OSS.name, QWEN.name))
    ),
}

_ALL: tuple[Case, ...] = (
    reset_reload,
    own_metrics,
    chunked_prefill,
    disk_only,
    flipped_byte_disk,
    first_block_fails,
    salt_isolation,
    lora_isolation,
    preemption,
    # Cases with a second engine beside the first.
    two_engines,
    engine_restart,
    agent_kill_restart,
    flipped_byte_host,
    first_block_fails_request,
    short_hits,
    short_loads,
    short_load_fails,
    events_to_router,
    events_list,
    other_weights,
    two_dp_ranks,
    two_tp_ranks,
    speculative_decoding,
    store_races_reuse,
    abort_mid_load,
    hybrid_inert,
    hybrid_required,
    # Measures every running engine.
    idle_engine,
    *_GROUP_CASES,
    cases_groups.two_engines,
)

CASES = tuple(one._replace(copies=one in _COPIES) for one in _ALL)
