"""All cases, in the order in which they run."""

from __future__ import annotations

from e2e.case import Case
from e2e.cases_events import events_to_router
from e2e.cases_faults import (
    agent_kill_restart,
    first_block_fails,
    first_block_fails_request,
    flipped_byte_disk,
    flipped_byte_host,
)
from e2e.cases_groups import GROUP_CASES
from e2e.cases_hybrid import hybrid_inert, hybrid_required
from e2e.cases_idle import idle_engine
from e2e.cases_isolation import lora_isolation, other_weights, salt_isolation
from e2e.cases_lists import events_list
from e2e.cases_metrics import own_metrics, short_hits
from e2e.cases_reload import chunked_prefill, disk_only, engine_restart, reset_reload, two_engines
from e2e.cases_scheduling import abort_mid_load, preemption, store_races_reuse, two_dp_ranks

CASES: tuple[Case, ...] = (
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
    events_to_router,
    events_list,
    other_weights,
    two_dp_ranks,
    store_races_reuse,
    abort_mid_load,
    hybrid_inert,
    hybrid_required,
    # Measures every running engine.
    idle_engine,
    *GROUP_CASES,
)
