"""Fingerprints: differences that count, differences that do not, and weights never shared."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from blockyard.fingerprint import (
    Source,
    combined,
    locate,
    lora_fingerprint,
    weights_fingerprint,
)

LARGE = (1 << 20) + 4096


def bytes_read() -> int:
    """Bytes that system calls of this process have read so far."""
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])


class Directory(unittest.TestCase):
    def setUp(self) -> None:
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.model = self.root / "model"
        self.model.mkdir()
        self.write("config.json", b"{}")
        self.write("model.safetensors", b"small weights")

    def write(self, name: str, data: bytes, mtime: int = 1) -> None:
        path = self.model / name
        path.write_bytes(data)
        os.utime(path, (mtime, mtime))

    def text(self, **given: object) -> str:
        result = weights_fingerprint(Source(str(self.model), **given))  # type: ignore[arg-type]
        self.assertTrue(result.shared, result.reason)
        return result.text


class Weights(Directory):
    def test_same_files_elsewhere_are_the_same(self) -> None:
        first = self.text()
        moved = self.root / "elsewhere"
        shutil.copytree(self.model, moved)
        self.model = moved
        self.assertEqual(self.text(), first)

    def test_small_files_count_whole_and_without_their_time(self) -> None:
        first = self.text()
        self.write("model.safetensors", b"small weights", mtime=99)
        self.assertEqual(self.text(), first)
        self.write("model.safetensors", b"Small weights")
        self.assertNotEqual(self.text(), first)

    def test_large_files_count_by_size_time_and_samples(self) -> None:
        self.write("model.safetensors", bytes(LARGE))
        first = self.text()
        self.write("model.safetensors", bytes(LARGE), mtime=2)
        self.assertNotEqual(self.text(), first)
        self.write("model.safetensors", bytes(LARGE + 1))
        self.assertNotEqual(self.text(), first)
        self.write("model.safetensors", b"\1" + bytes(LARGE - 1))
        self.assertNotEqual(self.text(), first, "its head was changed")
        self.write("model.safetensors", bytes(LARGE - 1) + b"\1")
        self.assertNotEqual(self.text(), first, "its tail was changed")
        self.write("model.safetensors", bytes(LARGE))
        self.assertEqual(self.text(), first)

    def test_the_whole_header_of_safetensors_counts(self) -> None:
        def file(last: bytes) -> bytes:
            header = b" " * 19999 + last
            return (20000).to_bytes(8, "little") + header + bytes(LARGE)

        self.write("model.safetensors", file(b"a"))
        first = self.text()
        self.write("model.safetensors", file(b"b"))
        self.assertNotEqual(self.text(), first)

    def test_tokenizers_do_not_count_and_code_does(self) -> None:
        first = self.text()
        self.write("tokenizer.json", b"{}")
        self.write("generation_config.json", b"{}")
        self.assertEqual(self.text(), first)
        self.write("modeling_mine.py", b"x = 1")
        self.assertNotEqual(self.text(), first)

    def test_the_effective_configuration_counts(self) -> None:
        self.assertNotEqual(self.text(), self.text(config={"quantization": "fp8"}))
        self.assertEqual(self.text(config={"a": 1, "b": 2}), self.text(config={"b": 2, "a": 1}))

    def test_a_subdirectory_counts(self) -> None:
        first = self.text()
        (self.model / "shards").mkdir()
        self.write("shards/more.safetensors", b"more")
        self.assertNotEqual(self.text(), first)

    def test_the_users_word_stands_for_the_files_but_not_for_the_configuration(self) -> None:
        def given(model: str, config: dict) -> str:
            result = weights_fingerprint(Source(model, config=config), "release-7")
            self.assertTrue(result.shared)
            return result.text

        self.assertEqual(given("s3://a", {}), given("s3://b", {}))
        self.assertNotEqual(given("s3://a", {}), given("s3://a", {"dtype": "float16"}))

    def test_random_weights_go_by_seed_and_configuration(self) -> None:
        def dummy(seed: int, hidden: int) -> str:
            source = Source("any", load_format="dummy", seed=seed, config={"hidden": hidden})
            return weights_fingerprint(source).text

        self.assertEqual(dummy(0, 8), dummy(0, 8))
        self.assertNotEqual(dummy(0, 8), dummy(1, 8))
        self.assertNotEqual(dummy(0, 8), dummy(0, 9))

    def test_what_cannot_be_told_apart_is_shared_with_nobody(self) -> None:
        empty = self.root / "empty"
        empty.mkdir()
        for source in (
            Source("s3://bucket/model"),
            Source(str(self.root / "missing")),
            Source(str(empty)),
            Source(str(self.model), load_format="tensorizer"),
        ):
            first, second = weights_fingerprint(source), weights_fingerprint(source)
            with self.subTest(source.model):
                self.assertFalse(first.shared)
                self.assertTrue(first.reason)
                self.assertNotEqual(first.text, second.text)

    def test_files_that_changed_after_the_engines_start_may_not_be_those_it_has_read(self) -> None:
        began = time.time() - 60
        changed = weights_fingerprint(Source(str(self.model)), "", began)
        self.assertFalse(changed.shared)
        self.assertIn("changed after", changed.reason)
        self.assertTrue(weights_fingerprint(Source(str(self.model)), "", time.time() + 60).shared)
        self.assertTrue(weights_fingerprint(Source(str(self.model)), "given", began).shared)

    def test_a_process_knows_when_it_began(self) -> None:
        asked = "from blockyard.fingerprint import process_start; print(process_start())"
        before = time.time()
        root = pathlib.Path(__file__).resolve().parents[1]
        done = subprocess.run(
            [sys.executable, "-c", asked], cwd=root, capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(before - 0.1 <= float(done.stdout) <= time.time(), done.stdout)

    def test_weights_count_whatever_they_are_called(self) -> None:
        first = self.text()
        self.write("processor.safetensors", b"layers")
        self.assertNotEqual(self.text(), first)

    def test_a_pair_is_shared_only_if_both_are(self) -> None:
        known = weights_fingerprint(Source(str(self.model)))
        unknown = weights_fingerprint(Source("s3://draft"))
        self.assertFalse(combined(known, unknown).shared)
        self.assertTrue(combined(known, known).shared)
        self.assertNotEqual(combined(known, known).text, known.text)

    def test_a_hundred_shards_cost_a_few_samples_each(self) -> None:
        for number in range(100):
            with open(self.model / f"shard-{number}.safetensors", "wb") as file:
                file.truncate(1 << 32)
        before = bytes_read()
        self.text()
        self.assertLess(bytes_read() - before, 100 * (128 << 10))


class Hub(Directory):
    """Hugging Face's cache: repositories with refs, snapshots and content-named blobs."""

    def snapshot(self, content: bytes, blob: str, mtime: int) -> None:
        repository = self.root / "hub" / "models--org--name"
        snapshot = repository / "snapshots" / "c0ffee"
        for path in (repository / "refs", repository / "blobs", snapshot):
            path.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / "main").write_text("c0ffee")
        target = repository / "blobs" / blob
        target.write_bytes(content)
        os.utime(target, (mtime, mtime))
        link = snapshot / "model.safetensors"
        link.unlink(missing_ok=True)
        link.symlink_to(pathlib.Path("../../blobs") / blob)

    def hub_text(self) -> str:
        result = weights_fingerprint(Source("org/name", cache_dir=str(self.root / "hub")))
        self.assertTrue(result.shared, result.reason)
        return result.text

    def test_found_by_reference_and_by_commit(self) -> None:
        self.snapshot(b"w", "a" * 64, 1)
        hub = str(self.root / "hub")
        self.assertIsNotNone(locate("org/name", "", hub))
        self.assertEqual(locate("org/name", "c0ffee", hub), locate("org/name", "main", hub))
        self.assertIsNone(locate("org/name", "other", hub))
        with mock.patch.dict(os.environ, {"HF_HUB_CACHE": hub}):
            self.assertIsNotNone(locate("org/name"))

    def test_content_names_count_instead_of_times(self) -> None:
        self.snapshot(bytes(LARGE), "a" * 64, 1)
        first = self.hub_text()
        self.snapshot(bytes(LARGE), "a" * 64, 2)
        self.assertEqual(self.hub_text(), first, "the same blob, downloaded again")
        self.snapshot(bytes(LARGE), "b" * 64, 1)
        self.assertNotEqual(self.hub_text(), first)

    def test_a_download_at_the_engines_start_is_no_change(self) -> None:
        self.snapshot(bytes(LARGE), "a" * 64, 1)
        source = Source("org/name", cache_dir=str(self.root / "hub"))
        self.assertTrue(weights_fingerprint(source, "", time.time() - 60).shared)


class Adapters(Directory):
    def test_other_files_are_another_adapter(self) -> None:
        self.write("adapter_config.json", json.dumps({"r": 8}).encode())
        first = lora_fingerprint(str(self.model))
        self.assertTrue(first.unchanged())
        self.write("adapter_config.json", json.dumps({"r": 16}).encode(), mtime=5)
        self.assertFalse(first.unchanged())
        self.assertNotEqual(lora_fingerprint(str(self.model)).text, first.text)

    def test_a_change_with_its_time_put_back_is_noticed(self) -> None:
        first = lora_fingerprint(str(self.model))
        self.write("model.safetensors", b"Small weights")
        self.assertFalse(first.unchanged())

    def test_a_missing_file_is_a_change(self) -> None:
        first = lora_fingerprint(str(self.model))
        (self.model / "model.safetensors").unlink()
        self.assertFalse(first.unchanged())

    def test_what_is_no_adapter_raises(self) -> None:
        with self.assertRaises(OSError):
            lora_fingerprint(str(self.root / "missing"))
        (self.model / "model.safetensors").unlink()
        with self.assertRaises(ValueError):
            lora_fingerprint(str(self.model))


if __name__ == "__main__":
    unittest.main()
