"""The hooks of the connector against those of vLLM's base classes, installed or stand-ins."""

from __future__ import annotations

import inspect
import unittest
from typing import Any

from tests import vllm_fakes as fakes

ORIGIN = fakes.require_vllm()

from vllm.distributed.kv_transfer.kv_connector.v1 import base  # noqa: E402

from blockyard.vllm import BlockyardConnector  # noqa: E402
from blockyard.vllm.facts import engine_version  # noqa: E402
from tests.vllm_interfaces import INTERFACES, RECORDS, Hook  # noqa: E402

SERIES = ".".join(engine_version().split(".")[:2])

# Hooks of vLLM whose default the connector keeps.
INHERITED = {
    "bind_connector_metadata",
    "bind_kv_cache_manager",  # calls bind_gpu_block_pool
    "clear_connector_metadata",
    "finish_forward",
    "get_finished",  # get_transfer_results replaces it
    "get_finished_count",  # every worker reports
    "get_kv_connector_kv_cache_events",
    "get_mem_pool_context",
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


def hook(owner: type, name: str) -> Hook:
    """A hook of a class as vllm_interfaces records it."""
    found = inspect.getattr_static(owner, name)
    kinds = (kind for kind in (classmethod, property) if isinstance(found, kind))
    kind = next(kinds, None)
    if kind is property:
        return Hook("property", ())
    parameters = inspect.signature(getattr(found, "__func__", found)).parameters.values()
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names = tuple(stars.get(p.kind, "") + p.name for p in parameters)
    return Hook(kind.__name__ if kind else "", names[1:])


def installed_hooks() -> dict[str, Hook]:
    """The hooks of the installed vLLM."""
    found = {}
    for owner in (base.SupportsHMA, base.KVConnectorBase_V1):
        names = (name for name in vars(owner) if not name.startswith("_"))
        found.update((name, hook(owner, name)) for name in names)
    return found


class Recorded(unittest.TestCase):
    """The connector's class against each supported release, whichever is installed."""

    def test_every_hook_of_vllm_is_answered_or_left_on_purpose(self) -> None:
        for version, hooks in INTERFACES.items():
            with self.subTest(version):
                self.assertEqual(hooks.keys() - own_methods() - INHERITED, set())

    def test_kind_and_parameters_are_those_with_which_vllm_calls(self) -> None:
        for version, hooks in INTERFACES.items():
            for name in hooks.keys() & own_methods():
                with self.subTest(version, hook=name):
                    self.assertEqual(hook(BlockyardConnector, name), hooks[name])

    def test_no_method_is_one_that_no_vllm_calls(self) -> None:
        known = {name for hooks in INTERFACES.values() for name in hooks}
        self.assertEqual(own_methods().keys() - known, set())

    def test_no_hook_is_left_that_the_connector_answers(self) -> None:
        self.assertEqual(INHERITED & own_methods().keys(), set())


@unittest.skipUnless(ORIGIN == "installed", "vLLM is not installed")
class Installed(unittest.TestCase):
    """The connector's class against the installed release."""

    def test_the_record_is_true(self) -> None:
        if SERIES not in INTERFACES:
            self.skipTest(f"no record of vLLM {SERIES}")
        self.assertEqual(installed_hooks(), INTERFACES[SERIES])

    def test_every_hook_is_answered_or_left_on_purpose(self) -> None:
        # A hook in neither list is new: read what vLLM expects of it.
        hooks = installed_hooks()
        self.assertEqual(hooks.keys() - own_methods() - INHERITED, set())
        for name in hooks.keys() & own_methods():
            with self.subTest(name):
                self.assertEqual(hook(BlockyardConnector, name), hooks[name])

    def test_records_have_the_members_that_the_connector_uses(self) -> None:
        from vllm.v1.core.sched import output

        for name, members in RECORDS.items():
            fields = getattr(output, name).__dataclass_fields__
            with self.subTest(name):
                self.assertEqual(members - fields.keys(), set())


class Classes(unittest.TestCase):
    def test_vllm_takes_the_class_for_models_with_several_kinds_of_layers(self) -> None:
        self.assertTrue(issubclass(BlockyardConnector, base.SupportsHMA))
        if ORIGIN == "installed":
            self.assertTrue(base.supports_hma(BlockyardConnector))


if __name__ == "__main__":
    unittest.main()
