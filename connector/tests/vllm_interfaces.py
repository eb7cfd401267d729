"""The hooks of vLLM's connector classes in each supported release, recorded from its source.

A hook has its kind ("" is a method) and the parameters after the first one. test_vllm_contract
compares the record of the installed release with the release itself.
"""

from __future__ import annotations

from typing import NamedTuple


class Hook(NamedTuple):
    """kind: "", "classmethod" or "property". parameters: as in the source, stars included."""

    kind: str
    parameters: tuple[str, ...]


def _hooks(text: str) -> dict[str, Hook]:
    found = {}
    for line in text.strip().splitlines():
        name, *rest = line.split()
        kind = rest.pop(0).strip(":") if rest and rest[0].endswith(":") else ""
        found[name] = Hook(kind, tuple(rest))
    return found


_0_32 = _hooks("""
bind_connector_metadata connector_metadata
bind_gpu_block_pool gpu_block_pool
bind_kv_cache_manager kv_cache_manager
build_connector_meta scheduler_output
build_connector_worker_meta
build_kv_connector_stats classmethod: data
build_prom_metrics classmethod: vllm_config metric_types labelnames per_engine_labelvalues
clear_connector_metadata
finish_forward
get_block_ids_with_load_errors
get_external_cache_hit_sources request num_external_tokens
get_finished finished_req_ids
get_finished_count
get_handshake_metadata
get_kv_connector_kv_cache_events
get_kv_connector_stats
get_loaded_kv_cache_group_ids request
get_mem_pool_context
get_num_new_matched_tokens request num_computed_tokens
get_required_kvcache_layout classmethod: vllm_config
get_transfer_results finished_req_ids
handle_preemptions kv_connector_metadata
has_connector_metadata
has_pending_block_frees
has_pending_push_work
on_new_request request
register_finished_partial_tail request block_ids partial_tail_offloads
register_kv_caches kv_caches
request_finished request block_ids
request_finished_all_groups request block_ids
requires_kv_delivery property:
requires_piecewise_for_cudagraph classmethod: extra_config
reset_cache
reset_capture_state
role property:
save_kv_layer layer_name kv_layer attn_metadata **kwargs
set_host_xfer_buffer_ops copy_operation
set_xfer_handshake_metadata metadata
set_xfer_handshake_metadata_pp_aware metadata
shutdown
start_load_kv forward_context **kwargs
supports_divergent_local_hybrid_hits property:
take_events
update_connector_output connector_output
update_state_after_alloc request blocks num_external_tokens
wait_for_layer_load layer_name
wait_for_save
""")

# 0.33 adds the hooks of sleep. It hashes the tokens behind a block (lookahead_token_ids of its
# events) in engines without a connector only, so the connector meets the hashes of 0.32.
_0_33 = _0_32 | _hooks("""
restore_kv_caches
supports_sleep_mode classmethod: kv_transfer_config
unregister_kv_caches
""")

INTERFACES = {"0.32": _0_32, "0.33": _0_33}

# Members of vLLM's records that the connector reads or writes, by class, in all these releases.
RECORDS = {
    "SchedulerOutput": {
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "num_scheduled_tokens",
        "finished_req_ids",
        "preempted_req_ids",
        "kv_connector_block_state",
    },
    "NewRequestData": {"req_id", "block_ids"},
    "CachedRequestData": {"req_ids", "resumed_req_ids", "new_block_ids"},
    "KVConnectorBlockState": {"req_ids", "resolve_block_ids", "boundary_state_offloads"},
}
