"""PdConnector: two connectors of one engine, each with the handshakes of its own workers.

The tests use vLLM's own MultiConnector, or a stand-in where vLLM is not installed.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import types
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

SOURCE = (
    pathlib.Path(__file__).resolve().parent.parent
    / "kvbm/kvbm/vllm_integration/connector/pd_connector.py"
)
V1 = "vllm.distributed.kv_transfer.kv_connector.v1"


class StandInMulti:
    """A stand-in of MultiConnector, which makes the children."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._connectors = [
            cls(config, role, kv_cache_config)
            for cls, config in type(self)._get_connector_classes_and_configs(vllm_config)
        ]

    @classmethod
    def _get_connector_classes_and_configs(cls, vllm_config: Any) -> list[tuple[Any, Any]]:
        raise NotImplementedError


def stand_ins() -> dict[str, types.ModuleType]:
    """Stand-ins of the vLLM modules that pd_connector imports. Empty where vLLM is installed."""
    if importlib.util.find_spec("vllm") is not None:
        try:
            importlib.import_module(f"{V1}.multi_connector")
            return {}
        except ImportError:
            pass
    base = types.ModuleType(f"{V1}.base")
    setattr(base, "KVConnectorHandshakeMetadata", type("KVConnectorHandshakeMetadata", (), {}))
    multi = types.ModuleType(f"{V1}.multi_connector")
    setattr(multi, "MultiConnector", StandInMulti)
    setattr(multi, "MultiKVConnectorMetadata", type("MultiKVConnectorMetadata", (), {}))
    parts = V1.split(".")
    parents = [".".join(parts[: i + 1]) for i in range(len(parts))]
    modules = {name: types.ModuleType(name) for name in parents}
    return {**modules, f"{V1}.base": base, f"{V1}.multi_connector": multi}


def load() -> Any:
    """The module pd_connector without its package, which needs all of vLLM."""
    with mock.patch.dict(sys.modules, stand_ins()):
        spec = importlib.util.spec_from_file_location("pd_connector_under_test", SOURCE)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module


pd = load()


class Child:
    """A connector that records its handshakes."""

    def __init__(self, config: Any, role: Any, kv_cache_config: Any) -> None:
        self.own = config.metadata
        self.given: list[tuple[str, dict[Any, Any]]] = []

    def get_handshake_metadata(self) -> Any:
        return self.own

    def set_xfer_handshake_metadata(self, metadata: dict[Any, Any]) -> None:
        self.given.append(("plain", metadata))

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[Any, Any]) -> None:
        self.given.append(("pp", metadata))


class DynamoConnector(Child):
    """A child with KVBM's name."""


class NixlConnector(Child):
    """A child with vLLM's name."""


class OwnNixl(NixlConnector):
    """A user's subclass of an allowed class."""


def make(*children: type, metadata: tuple[Any, ...] = (None, None, None)) -> Any:
    """A PdConnector with these children. metadata: the handshakes of their workers."""
    pairs = [
        (cls, SimpleNamespace(metadata=meta, kv_transfer_config=None))
        for cls, meta in zip(children, metadata)
    ]
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={}, engine_id="e"),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=True),
    )
    with mock.patch.object(pd.PdConnector, "_get_connector_classes_and_configs", lambda *_: pairs):
        return pd.PdConnector(config, SimpleNamespace(name="SCHEDULER"), None)


class Pair(unittest.TestCase):
    def test_takes_a_cache_and_nixl(self) -> None:
        self.assertEqual(len(make(DynamoConnector, NixlConnector)._connectors), 2)
        self.assertEqual(len(make(DynamoConnector, OwnNixl)._connectors), 2)

    def test_refuses_another_number(self) -> None:
        for children in ((), (DynamoConnector,), (DynamoConnector, NixlConnector, NixlConnector)):
            with self.subTest(len(children)), self.assertRaisesRegex(ValueError, "want 2"):
                make(*children)

    def test_refuses_another_order_or_kind(self) -> None:
        with self.assertRaisesRegex(TypeError, "first connector is NixlConnector"):
            make(NixlConnector, DynamoConnector)
        with self.assertRaisesRegex(TypeError, "second connector is DynamoConnector"):
            make(DynamoConnector, DynamoConnector)

    def test_each_child_gets_its_own_handshake(self) -> None:
        """MultiConnector would pass the first child's metadata to both children."""
        for form, call in (
            ("plain", "set_xfer_handshake_metadata"),
            ("pp", "set_xfer_handshake_metadata_pp_aware"),
        ):
            with self.subTest(form):
                worker = make(DynamoConnector, NixlConnector, metadata=("ours", "theirs"))
                told = worker.get_handshake_metadata()
                scheduler = make(DynamoConnector, NixlConnector)
                getattr(scheduler, call)({0: told, 1: told})
                first, second = scheduler._connectors
                self.assertEqual(first.given, [(form, {0: "ours", 1: "ours"})])
                self.assertEqual(second.given, [(form, {0: "theirs", 1: "theirs"})])

    def test_a_child_without_metadata_gets_none(self) -> None:
        worker = make(DynamoConnector, NixlConnector, metadata=(None, "theirs"))
        scheduler = make(DynamoConnector, NixlConnector)
        scheduler.set_xfer_handshake_metadata({0: worker.get_handshake_metadata()})
        self.assertEqual([c.given for c in scheduler._connectors], [[], [("plain", {0: "theirs"})]])
        self.assertIsNone(make(DynamoConnector, NixlConnector).get_handshake_metadata())

    def test_metadata_of_another_connector_is_refused(self) -> None:
        scheduler = make(DynamoConnector, NixlConnector)
        with self.assertRaisesRegex(TypeError, "worker 0 sent str"):
            scheduler.set_xfer_handshake_metadata({0: "theirs"})


if __name__ == "__main__":
    unittest.main()
