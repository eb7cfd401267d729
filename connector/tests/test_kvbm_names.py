"""The distribution kvbm-blockyard: KVBM's names, and the conflict with KVBM."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

CONNECTOR = pathlib.Path(__file__).resolve().parent.parent
SHIM = CONNECTOR / "kvbm"
if str(SHIM) not in sys.path:
    sys.path.insert(0, str(SHIM))

from blockyard.consolidation import ENABLE, MODE  # noqa: E402
from kvbm.trtllm_integration import consolidator_config as trtllm  # noqa: E402
from kvbm.vllm_integration import consolidator_config as vllm  # noqa: E402

logging.getLogger("kvbm").addHandler(logging.NullHandler())


def environment(**variables: str) -> Any:
    """The process's environment with only these variables of KVBM."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "BLOCKYARD_"))}
    return mock.patch.dict(os.environ, {**kept, **variables}, clear=True)


def run(code: str, *paths: pathlib.Path | str) -> subprocess.CompletedProcess[str]:
    """Runs a new interpreter without installed packages."""
    path = os.pathsep.join(str(p) for p in paths)
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": path},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )


class Imports(unittest.TestCase):
    def test_the_package_needs_no_engine(self) -> None:
        """The import of kvbm and the calls of Dynamo's worker work without an engine."""
        code = (
            "import kvbm, kvbm.vllm_integration.consolidator_config,"
            " kvbm.trtllm_integration.consolidator_config; print(kvbm.__version__)"
        )
        result = run(code, SHIM, CONNECTOR)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.strip())

    def test_a_connector_without_its_engine_names_the_engine(self) -> None:
        engines = {"vllm_integration": "vLLM", "trtllm_integration": "TensorRT-LLM"}
        for module, engine in engines.items():
            with self.subTest(module):
                result = run(f"import kvbm.{module}.connector", SHIM, CONNECTOR)
                self.assertNotEqual(result.returncode, 0)
                last = result.stderr.strip().splitlines()[-1]
                self.assertRegex(last, f"^ImportError: .*needs {engine}")

    def test_a_connector_without_blockyard_names_the_distribution(self) -> None:
        for module in ("vllm_integration", "trtllm_integration"):
            with self.subTest(module):
                result = run(f"import kvbm.{module}.connector", SHIM)
                self.assertIn("needs the distribution blockyard-connector", result.stderr)


class Conflict(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir)

    def test_refuses_beside_the_distribution_of_the_same_name(self) -> None:
        info = self.dir / "kvbm-1.6.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvbm\nVersion: 1.6.1\n")
        result = run("import kvbm", SHIM, CONNECTOR, self.dir)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("kvbm 1.6.1", result.stderr)
        self.assertIn("pip uninstall -y kvbm", result.stderr)

    def test_refuses_beside_a_compiled_core(self) -> None:
        """Files of KVBM can remain after its metadata is removed."""
        shutil.copytree(SHIM / "kvbm", self.dir / "kvbm")
        (self.dir / "kvbm" / "_core.abi3.so").touch()
        result = run("import kvbm", self.dir, CONNECTOR)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("_core.abi3.so", result.stderr)

    def test_its_own_metadata_is_no_conflict(self) -> None:
        info = self.dir / "kvbm_blockyard-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: kvbm-blockyard\nVersion: 0.1.0\n"
        )
        result = run("import kvbm", SHIM, CONNECTOR, self.dir)
        self.assertEqual(result.returncode, 0, result.stderr)


def vllm_config(**changes: Any) -> Any:
    """The members of a vLLM configuration that the consolidator's configuration reads."""
    transfer = SimpleNamespace(
        kv_connector=changes.get("connector", "DynamoConnector"),
        kv_connector_extra_config=changes.get("extra", {}),
    )
    return SimpleNamespace(
        kv_transfer_config=None if changes.get("no_transfer") else transfer,
        cache_config=SimpleNamespace(enable_prefix_caching=changes.get("prefix_caching", True)),
        kv_events_config=changes.get(
            "events", SimpleNamespace(endpoint="tcp://*:20080", enable_kv_cache_events=True)
        ),
        parallel_config=SimpleNamespace(data_parallel_rank=changes.get("rank", 0)),
    )


class VllmConsolidation(unittest.TestCase):
    def test_on_by_default_as_in_kvbm(self) -> None:
        with environment():
            self.assertTrue(vllm.should_enable_consolidator(vllm_config()))
        with environment(**{ENABLE: "off"}):  # Dynamo then subscribes to the engine
            self.assertIsNone(vllm.get_consolidator_endpoints(vllm_config()))

    def test_endpoints_follow_the_leader_s_port(self) -> None:
        cases = {"": 57001, "56001": 57001, " 42001 ": 43001, "64535": 65535}
        for value, port in cases.items():
            with self.subTest(value), environment(DYN_KVBM_LEADER_ZMQ_PUB_PORT=value):
                self.assertEqual(
                    vllm.get_consolidator_endpoints(vllm_config(rank=1)),
                    ("tcp://127.0.0.1:20080", f"tcp://0.0.0.0:{port}", f"tcp://127.0.0.1:{port}"),
                )

    def test_a_wrong_port_is_named(self) -> None:
        for value in ("0", "65536", "-1", "x", "64536", "1.5"):
            with self.subTest(value), environment(DYN_KVBM_LEADER_ZMQ_PUB_PORT=value):
                with self.assertRaisesRegex(ValueError, "DYN_KVBM_LEADER_ZMQ_PUB_PORT"):
                    vllm.get_consolidator_endpoints(vllm_config())

    def test_what_keeps_it_off(self) -> None:
        extra = {"connectors": [{"kv_connector": "NixlConnector"}]}
        cases: dict[str, dict[str, Any]] = {
            "no connector": {"no_transfer": True},
            "another connector": {"connector": "NixlConnector"},
            "a pair without ours": {"connector": "PdConnector", "extra": extra},
            "no prefix caching": {"prefix_caching": False},
            "no events": {"events": None},
        }
        for name, changes in cases.items():
            with self.subTest(name), environment(), self.assertLogs("kvbm", "WARNING"):
                self.assertIsNone(vllm.get_consolidator_endpoints(vllm_config(**changes)))

    def test_a_pair_with_ours_has_it(self) -> None:
        children = [{"kv_connector": "DynamoConnector"}, {"kv_connector": "NixlConnector"}]
        config = vllm_config(connector="PdConnector", extra={"connectors": children})
        with environment():
            self.assertTrue(vllm.should_enable_consolidator(config))

    def test_kvbm_s_switch(self) -> None:
        for value, expected in (("0", False), ("Off", False), ("1", True), (" yes ", True)):
            with self.subTest(value), environment(**{ENABLE: value}):
                self.assertEqual(vllm.should_enable_consolidator(vllm_config()), expected)
        with environment(**{ENABLE: "maybe"}):
            with self.assertRaisesRegex(ValueError, "maybe"):
                vllm.should_enable_consolidator(vllm_config())

    def test_mode(self) -> None:
        cases = {"": "dedup", "Passthrough ": "passthrough", "tiered": "tiered"}
        for value, expected in cases.items():
            with environment(**{MODE: value}):
                self.assertEqual(vllm.get_consolidator_mode(), expected)
                self.assertEqual(trtllm.get_consolidator_mode(), expected)
        with environment(**{MODE: "merge"}), self.assertRaises(ValueError):
            vllm.get_consolidator_mode()


class TrtllmConsolidation(unittest.TestCase):
    MODULE = "kvbm.trtllm_integration.connector"

    def test_needs_the_connector_and_a_port(self) -> None:
        with_map = {"kv_connector_config": {"connector_module": self.MODULE}}
        with_object = {"kv_connector_config": SimpleNamespace(connector_module=self.MODULE)}
        with environment(), self.assertLogs("kvbm", "WARNING"):
            self.assertFalse(trtllm.should_enable_consolidator(with_map))
        with environment(DYN_KVBM_TRTLLM_ZMQ_PORT="20081", **{ENABLE: "0"}):
            self.assertFalse(trtllm.should_enable_consolidator(with_map))
        with environment(DYN_KVBM_LEADER_ZMQ_PUB_PORT="50000"):
            self.assertTrue(trtllm.should_enable_consolidator(with_map))
        with environment(DYN_KVBM_TRTLLM_ZMQ_PORT="20081"):
            self.assertTrue(trtllm.should_enable_consolidator(with_map))
            self.assertTrue(trtllm.should_enable_consolidator(with_object))
            other: list[Any] = [{}, None, "x", {"kv_connector_config": {"connector_module": "a"}}]
            for arg_map in other:
                with self.subTest(repr(arg_map)), self.assertLogs("kvbm", "WARNING"):
                    self.assertFalse(trtllm.should_enable_consolidator(arg_map))

    def test_endpoints(self) -> None:
        with environment():
            self.assertEqual(
                trtllm.get_consolidator_endpoints(),
                ("tcp://*:56001", "tcp://0.0.0.0:57001", "tcp://127.0.0.1:57001"),
            )
        with environment(DYN_KVBM_TRTLLM_ZMQ_PORT="20081", DYN_KVBM_LEADER_ZMQ_PUB_PORT="50000"):
            self.assertEqual(
                trtllm.get_consolidator_endpoints(),
                ("tcp://*:20081", "tcp://0.0.0.0:51000", "tcp://127.0.0.1:51000"),
            )
        with environment(DYN_KVBM_TRTLLM_ZMQ_PORT="all"):
            with self.assertRaisesRegex(ValueError, "DYN_KVBM_TRTLLM_ZMQ_PORT"):
                trtllm.get_consolidator_endpoints()


if __name__ == "__main__":
    unittest.main()
