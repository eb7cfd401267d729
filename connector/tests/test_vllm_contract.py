"""The hooks of the connector against those of vLLM's base classes, installed or stand-ins."""

from __future__ import annotations

import inspect
import unittest
from typing import Any

from tests import vllm_fakes as fakes

ORIGIN = fakes.require_vllm()

from vllm.distributed.kv_transfer.kv_connector.v1 import base  # noqa: E402

from blockyard.vllm import BlockyardConnector  # noqa: E402

# Hooks that only some supported releases call. 0.33 has all of them.
SOMETIMES = {
    "supports_sleep_mode",
    "unregister_kv_caches",
    "restore_kv_caches",
}

# Hooks of vLLM whose default the connector keeps. A hook in neither list is new: read what vLLM
# expects of it.
INHERITED = {
    "bind_connector_metadata",
    "bind_kv_cache_manager",  # calls bind_gpu_block_pool
    "clear_connector_metadata",
    "finish_forward",
    "get_block_ids_with_load_errors",  # failures are reported by request
    "get_finished",  # get_transfer_results replaces it
    "get_finished_count",  # every worker reports
    "get_kv_connector_kv_cache_events",
    "get_mem_pool_context",
    "get_required_kvcache_layout",
    "register_cross_layers_kv_cache",
    "prefer_cross_layer_blocks",
    "register_finished_partial_tail",
    "requires_piecewise_for_cudagraph",  # no hook does work in a layer
    "reset_capture_state",
    "role",
    "set_host_xfer_buffer_ops",
    "supports_divergent_local_hybrid_hits",
    "take_events",  # the agent publishes events
}


def own_methods() -> dict[str, Any]:
    """The hooks that the connector's class defines."""
    return {name: m for name, m in vars(BlockyardConnector).items() if not name.startswith("_")}


def shape(method: Any) -> list[tuple[str, Any]]:
    """Names and kinds of a method's parameters. A class method has no first one."""
    found = inspect.signature(getattr(method, "__func__", method)).parameters.values()
    return [(p.name, p.kind) for p in found]


class Contract(unittest.TestCase):
    def test_vllm_takes_the_class_for_models_with_several_kinds_of_layers(self) -> None:
        self.assertTrue(issubclass(BlockyardConnector, base.SupportsHMA))
        if ORIGIN == "installed":
            self.assertTrue(base.supports_hma(BlockyardConnector))

    @unittest.skipUnless(ORIGIN == "installed", "vLLM is not installed")
    def test_every_hook_of_vllm_is_answered_or_left_on_purpose(self) -> None:
        theirs = {n for c in (base.KVConnectorBase_V1, base.SupportsHMA) for n in vars(c)}
        hooks = {name for name in theirs if not name.startswith("_")}
        self.assertEqual(hooks - set(own_methods()) - INHERITED, set())

    @unittest.skipUnless(ORIGIN == "installed", "vLLM is not installed")
    def test_class_methods_and_properties_are_of_vllms_kind(self) -> None:
        for name, method in own_methods().items():
            theirs = inspect.getattr_static(base.KVConnectorBase_V1, name, None)
            if theirs is None:
                continue
            for kind in (classmethod, property):
                with self.subTest(name, kind=kind.__name__):
                    self.assertEqual(isinstance(method, kind), isinstance(theirs, kind))

    def test_parameters_are_those_with_which_vllm_calls(self) -> None:
        for name, method in own_methods().items():
            theirs = getattr(base.SupportsHMA, name, None)
            theirs = getattr(base.KVConnectorBase_V1, name, theirs)
            if theirs is None or not callable(getattr(BlockyardConnector, name)):
                continue
            with self.subTest(name):
                self.assertEqual(shape(method), shape(theirs))

    @unittest.skipUnless(ORIGIN == "installed", "vLLM is not installed")
    def test_no_method_is_one_that_vllm_never_calls(self) -> None:
        known = set(dir(base.KVConnectorBase_V1)) | set(dir(base.SupportsHMA))
        self.assertEqual(set(own_methods()) - known - SOMETIMES, set())
