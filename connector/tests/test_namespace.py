"""Namespaces and identities: limits of the protocol, and values that must differ."""

from __future__ import annotations

import unittest
from dataclasses import fields, replace

from blockyard.groups import FULL, SLIDING, Group, Groups
from blockyard.namespace import (
    MAX_BLOCK_BYTES,
    Geometry,
    Namespace,
    NamespaceError,
    bounded,
    geometry_of,
)

TINY = Namespace("tiny", "w0", "bfloat16", 2, 2, 4, 64, 2, "vllm-1")


class Geometries(unittest.TestCase):
    def test_real_numbers_when_they_divide(self) -> None:
        block = 2 * 2 * 32 * 128 * 4
        self.assertEqual(geometry_of(block, 32, 2, 2, 4), Geometry(2, 2, 32, 128, 4))

    def test_mla_has_one_outer_dimension(self) -> None:
        self.assertEqual(geometry_of(61 * 64 * 576 * 2, 64, 61, 1, 2), (61, 1, 64, 576, 2))

    def test_inline_scales_fall_back_to_bytes_per_layer(self) -> None:
        # For example, 656 bytes per token and layer are no whole number of 3-byte elements.
        self.assertEqual(geometry_of(61 * 64 * 656, 64, 61, 2, 3), (61, 1, 64, 656, 1))

    def test_layers_of_several_shapes_fall_back_to_bytes_per_token(self) -> None:
        self.assertEqual(geometry_of(16 * 1001, 16, 7 * 3, 2, 4), (1, 1, 16, 1001, 1))

    def test_a_block_that_is_no_whole_number_of_tokens_ends_in_unused_bytes(self) -> None:
        geometry = geometry_of(1000, 16, 2, 2, 2)
        self.assertGreaterEqual(geometry.block_bytes, 1000)
        self.assertLess(geometry.block_bytes, 1000 + 16)

    def test_product_covers_the_block_for_many_shapes(self) -> None:
        for layers in (1, 3, 61):
            for tokens in (1, 16, 127):
                for per_token in (1, 576, 1000, 4096):
                    size = layers * tokens * per_token
                    geometry = geometry_of(size, tokens, layers, 2, 2)
                    self.assertEqual(geometry.block_bytes, size)

    def test_refused(self) -> None:
        for size, tokens in ((0, 16), (MAX_BLOCK_BYTES + 1, 16), (100, 0), (100, 4097)):
            with self.assertRaises(NamespaceError):
                geometry_of(size, tokens, 1, 1, 1)


class Namespaces(unittest.TestCase):
    def test_map_has_the_keys_of_the_protocol(self) -> None:
        keys = (
            "model weights dtype num_layers outer_dim page_size inner_dim dtype_width_bytes"
            " layout tp pp dcp kv_format"
        )
        self.assertEqual(set(TINY.as_map()), set(keys.split()))
        self.assertEqual(TINY.block_bytes, 2 * 2 * 4 * 64 * 2)

    def test_every_field_out_of_range_is_named(self) -> None:
        for field in fields(Namespace):
            if field.name == "groups":
                continue  # Groups has checked them
            bad = "x" * 1025 if isinstance(getattr(TINY, field.name), str) else 0
            with self.subTest(field.name), self.assertRaisesRegex(NamespaceError, field.name):
                replace(TINY, **{field.name: bad})
        with self.assertRaisesRegex(NamespaceError, "model"):
            replace(TINY, model="")


    def test_with_groups_the_largest_block_counts(self) -> None:
        groups = Groups([Group(SLIDING, 9, 4, 100, 1), Group(FULL, 0, 4, 300, 1)])
        namespace = replace(TINY, groups=groups)
        self.assertEqual(namespace.block_bytes, 300)
        self.assertEqual(namespace.as_map(), {**TINY.as_map(), "groups": groups.as_maps()})
        with self.assertRaisesRegex(NamespaceError, "block of"):
            replace(TINY, groups=Groups([groups[1]._replace(block_bytes=2**28 + 1)]))


class Salts(unittest.TestCase):
    def test_short_texts_stay_as_they_are(self) -> None:
        self.assertEqual(bounded("tenant-a"), "tenant-a")
        self.assertEqual(bounded("x" * 1024), "x" * 1024)

    def test_long_or_broken_texts_become_different_hashes(self) -> None:
        results = {bounded(t) for t in ("x" * 1025, "x" * 1026, "\ud800", "\ud801", "ä" * 513)}
        self.assertEqual(len(results), 5)
        for result in results:
            self.assertLessEqual(len(result.encode()), 1024)


if __name__ == "__main__":
    unittest.main()
