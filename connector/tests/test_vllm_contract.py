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
