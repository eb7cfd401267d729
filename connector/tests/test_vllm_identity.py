"""Identities of requests with LoRA adapters, which depend on the adapters' files."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import tempfile
import time
import unittest
from types import SimpleNamespace as Bag
from typing import Any
from unittest import mock

from tests import vllm_fakes as fakes
from tests.vllm_fakes import request

fakes.require_vllm()

from blockyard.vllm import identity  # noqa: E402
from blockyard.vllm.guard import Faults  # noqa: E402
from blockyard.vllm.identity import PENDING, Adapters  # noqa: E402


class Lora(unittest.TestCase):
    def setUp(self) -> None:
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.adapters = Adapters(Faults())
        self.addCleanup(self.adapters.close)
        patch = mock.patch.object(identity, "CHECK_SECONDS", 0.0)
        patch.start()
        self.addCleanup(patch.stop)
        level = identity.log.level
        identity.log.setLevel(logging.CRITICAL)
        self.addCleanup(identity.log.setLevel, level)

    def write(self, name: str, weights: bytes) -> str:
        path = self.root / name
        path.mkdir(exist_ok=True)
        (path / "adapter_config.json").write_text("{}")
        file = path / "adapter_model.safetensors"
        file.write_bytes(weights)
        os.utime(file, ns=(len(weights), len(weights)))
        return str(path)

    def identity(
        self, number: int, name: str, path: str, salt: str | None = None, **more: Any
    ) -> Any:
        lora = Bag(lora_int_id=number, lora_name=name, lora_path=path, **more)
        asked = request(8, lora_request=lora, cache_salt=salt)
        until = time.monotonic() + 10
        while (found := self.adapters.identity_of(asked)) is PENDING:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.001)
        return found

    def test_files_and_name_are_the_identity(self) -> None:
        first = self.identity(1, "a", self.write("a", b"weights"))
        self.assertTrue(first.lora.startswith("lora-"))
        self.assertEqual(first.lora_name, "a")
        copy = self.identity(2, "a", self.write("copy", b"weights"))
        self.assertEqual(copy, first, "the same files elsewhere")
        other = self.identity(3, "a", self.write("b", b"others!"))
        self.assertNotEqual(other.lora, first.lora, "the same name")
        self.assertEqual(self.identity(1, "a", str(self.root / "a"), "salt").salt, "salt")

    def test_files_that_change_while_loaded_are_shared_no_more_until_loaded_anew(self) -> None:
        path = self.write("a", b"weights")
        first = self.identity(1, "a", path)
        self.write("a", b"weights, retrained")
        self.assertIsNone(self.identity(1, "a", path), "the engine may hold either")
        self.write("a", b"weights")
        self.assertIsNone(self.identity(1, "a", path), "nor when they are put back")
        self.assertEqual(self.identity(2, "a", path).lora, first.lora)

    def test_an_id_that_is_given_to_other_files_is_shared_no_more(self) -> None:
        """vLLM keeps the loaded files of a known id, so it does not compute with the new path."""
        path, other = self.write("a", b"weights"), self.write("b", b"others!")
        self.assertIsNotNone(self.identity(1, "a", path))
        running = self.adapters._known[1]
        self.assertTrue(running.intact())
        self.assertIsNone(self.identity(1, "a", other))
        self.assertFalse(running.intact(), "requests of it that run offer nothing more")
        self.assertIsNone(self.identity(1, "a", path))
        self.assertIsNotNone(self.identity(2, "a", other))

    def test_an_adapter_that_is_loaded_in_place_is_shared_no_more(self) -> None:
        path = self.write("a", b"weights")
        self.assertIsNotNone(self.identity(1, "a", path))
        self.assertIsNone(self.identity(1, "a", path, load_inplace=True))
        self.assertIsNone(self.identity(1, "a", path))
        self.assertIsNone(self.identity(2, "a", path, load_inplace=True))

    def test_how_the_engine_reads_the_files_is_part_of_the_identity(self) -> None:
        path = self.write("a", b"weights")
        flat = self.identity(1, "a", path)
        self.assertNotEqual(self.identity(2, "a", path, is_3d_lora_weight=True), flat)

    def test_files_are_looked_at_now_and_then_for_loads_and_each_time_for_stores(self) -> None:
        path = self.write("a", b"weights")
        with mock.patch.object(identity, "CHECK_SECONDS", 60.0):
            first = self.identity(1, "a", path)
            self.write("a", b"weights, retrained")
            self.assertEqual(self.identity(1, "a", path), first)
            self.assertFalse(self.adapters._known[1].intact())
            self.assertIsNone(self.identity(1, "a", path))

    def test_what_is_remembered_is_bounded_and_none_is_forgotten(self) -> None:
        path = self.write("a", b"weights")
        with mock.patch.object(identity, "MAX_ADAPTERS", 3):
            for number in (1, 2, 3):
                self.assertIsNotNone(self.identity(number, "a", path))
            self.assertIsNone(self.identity(4, "a", path))
            self.assertIsNotNone(self.identity(1, "a", path))


if __name__ == "__main__":
    unittest.main()
