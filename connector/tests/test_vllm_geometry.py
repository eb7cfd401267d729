"""Pages, shares and namespaces of vLLM's KV tensors in every layout of vLLM."""

from __future__ import annotations

import unittest

from tests import vllm_fakes as fakes
from tests.vllm_fakes import FakeTensor, full, kv_config

fakes.require_vllm()

from blockyard.mover import GeometryError, Pages  # noqa: E402
from blockyard.vllm import geometry  # noqa: E402
from blockyard.vllm.geometry import Ranks, share_of  # noqa: E402

B, H, N, C, L = 16, 2, 32, 64, 3
PAGE = H * N * C * 4
ONE = kv_config((full(N), ["l0"]), blocks=B)
BASE = 1 << 20


def bytes_of(tensor: FakeTensor, block: int, axis: int = 0) -> set[int]:
    """Computes the addresses of a block's elements one by one."""
    sizes, strides = list(tensor.shape), tensor.stride()
    ratio = sizes[axis] // B
    found = {0}
    for i, size in enumerate(sizes):
        indices = range(block * ratio, (block + 1) * ratio) if i == axis else range(size)
        found = {at + index * strides[i] for at in found for index in indices}
    return {BASE + (tensor.storage_offset() + at) * 4 for at in found}


class OneLayer(unittest.TestCase):
    def check(self, tensor: FakeTensor, pieces: int, axis: int = 0) -> None:
        """Checks that the pages have exactly the bytes of every block, each byte once."""
        pages = geometry.pages_of({"l0": tensor}, ONE)
        self.assertEqual(len(pages), pieces)
        Pages(pages, B)
        for block in (0, 1, B - 1):
            named = [
                at
                for page in pages
                for at in range(
                    page.address + block * page.stride,
                    page.address + block * page.stride + page.bytes,
                    4,
                )
            ]
            self.assertEqual(len(named), len(set(named)))
            self.assertEqual(set(named), bytes_of(tensor, block, axis))
        offsets = sorted((page.offset, page.bytes) for page in pages)
        self.assertEqual([at for at, _ in offsets], [i * offsets[0][1] for i in range(pieces)])

    def test_blocks_first_heads_or_tokens_first(self) -> None:
        self.check(FakeTensor((B, H, N, C)), 1)
        self.check(FakeTensor((B, H, N, C), (0, 2, 1, 3)), 1)

    def test_all_layers_in_one_storage_layer_outermost(self) -> None:
        self.check(FakeTensor((B, H, N, C), offset=2 * B * H * N * C), 1)

    def test_all_layers_in_one_storage_block_outermost(self) -> None:
        strides = (L * H * N * C, N * C, C, 1)
        self.check(FakeTensor((B, H, N, C), strides=strides, offset=H * N * C), 1)

    def test_layers_between_heads_are_one_piece_for_each_head(self) -> None:
        self.check(FakeTensor((B, H, N, C), strides=(L * H * N * C, L * N * C, C, 1)), H)

    def test_heads_outermost_are_one_piece_for_each_head(self) -> None:
        self.check(FakeTensor((B, H, N, C), (1, 0, 2, 3)), H)

    def test_keys_and_values_outermost_are_two_pieces(self) -> None:
        self.check(FakeTensor((2, B, N, H, C)), 2, axis=1)

    def test_mla(self) -> None:
        self.check(FakeTensor((B, N, 576)), 1)

    def test_padding_between_pages_is_not_copied(self) -> None:
        self.check(FakeTensor((B, N, 40), strides=(N * 40 + 24, 40, 1)), 1)

    def test_kernel_blocks_smaller_than_blocks(self) -> None:
        self.check(FakeTensor((4 * B, H, N // 4, C)), 1)
        self.check(FakeTensor((2, 4 * B, N // 4, H, C)), 2, axis=1)
        self.check(FakeTensor((2 * B, H, N // 2, C), (1, 0, 2, 3)), H)

    def test_refused(self) -> None:
        for tensor in (
            FakeTensor((B + 1, H, N, C)),
            FakeTensor((B, H, N, C), strides=(N * C, 0, C, 1)),
            FakeTensor((B, H, N, C), strides=(H * N * C, C, C, 1)),
            FakeTensor((B, H, N, C), storage=B * PAGE - 1),
            FakeTensor((B, 2048, 2), strides=(4096 * 2, 4, 1)),
        ):
            with self.assertRaises(GeometryError):
                geometry.pages_of({"l0": tensor}, ONE)


class Layers(unittest.TestCase):
    def test_pages_follow_groups_and_layers_and_shared_layers_appear_once(self) -> None:
        config = kv_config((full(), ["b", "a", "copy"]), (full(), ["c", "elsewhere"]), blocks=B)
        tensors = {
            "a": FakeTensor((B, N, C), base=BASE),
            "b": FakeTensor((B, N, C), base=2 * BASE),
            # A KV-sharing layer, and another group's layer on the same memory. The latter is no
            # copy, because its blocks have other ids.
            "copy": FakeTensor((B, N, C), base=BASE),
            "c": FakeTensor((B, N, C), base=BASE),
        }
        pages = geometry.pages_of(tensors, config)
        size = N * C * 4
        self.assertEqual(
            [(p.address, p.offset, p.group) for p in pages],
            [(2 * BASE, 0, 0), (BASE, size, 0), (BASE, 2 * size, 1)],
        )

    def test_no_layer_is_an_error(self) -> None:
        with self.assertRaises(GeometryError):
            geometry.pages_of({"other": FakeTensor((B, N, C))}, ONE)

    def test_digest_knows_order_and_type_but_not_addresses_and_pool_sizes(self) -> None:
        def digest(tensor: FakeTensor, blocks: int = B) -> str:
            return geometry.digest_of({"l0": tensor}, kv_config((full(N), ["l0"]), blocks=blocks))

        first = digest(FakeTensor((B, H, N, C)))
        self.assertEqual(digest(FakeTensor((B, H, N, C), base=77, offset=4)), first)
        self.assertEqual(digest(FakeTensor((8, H, N, C)), 8), first)
        packed = FakeTensor((B, H, N, C), strides=(L * H * N * C, N * C, C, 1))
        self.assertEqual(digest(packed), first, "the bytes of a page are in the same order")
        for other in (
            FakeTensor((B, H, N, C), (0, 2, 1, 3)),
            FakeTensor((B, H, N, C), dtype="torch.bfloat16"),
            FakeTensor((B, N, H, C)),
            FakeTensor((2 * B, H, N // 2, C)),
        ):
            self.assertNotEqual(digest(other), first)


class Support(unittest.TestCase):
    def test_full_attention_in_all_its_forms(self) -> None:
        wrapped = fakes.Bag(kv_cache_specs={"a": full(), "b": full()})
        for config in (
            ONE,
            kv_config((fakes.MLAAttentionSpec(block_size=64), ["a"])),
            kv_config((wrapped, ["a", "b"])),
            kv_config((full(), ["a"]), (full(), ["b"])),
        ):
            self.assertEqual(geometry.why_unsupported(config), "")

    def test_everything_else_stays_off_and_says_why(self) -> None:
        host = kv_config((full(), ["a"]))
        host.kv_cache_groups[0].host_resident = True
        for config, word in (
            (kv_config((full(non_causal=True), ["a"])), "causal"),
            (kv_config(), "no KV"),
            (host, "HiSparse"),
        ):
            self.assertIn(word, geometry.why_unsupported(config))

    def test_tokens_of_a_block_under_context_parallelism(self) -> None:
        self.assertEqual(geometry.block_tokens(ONE, 4), 4 * N)
        whole = full(N)
        whole.dcp_sharded = False
        self.assertEqual(geometry.block_tokens(kv_config((whole, ["a"])), 4), N)


class Shares(unittest.TestCase):
    def cover(self, tp: int, replicas: int, stages: list[int]) -> None:
        """Checks that the storing ranks' shares tile the block, and that replicas share one."""
        tiles = []
        for stage in range(len(stages)):
            for rank in range(tp):
                ranks = Ranks(rank, tp, stage, len(stages), replicas)
                share = share_of(ranks, stages)
                self.assertEqual(share.bytes, stages[stage])
                first = Ranks(rank - rank % replicas, tp, stage, len(stages), replicas)
                self.assertEqual(share, share_of(first, stages))
                if ranks.stores:
                    tiles.append((share.offset, share.bytes))
                total = share.total
        at = 0
        for offset, size in sorted(tiles):
            self.assertEqual(offset, at)
            at += size
        self.assertEqual(at, total)

    def test_tensor_and_pipeline_parallel_and_replicated(self) -> None:
        self.cover(1, 1, [1000])
        self.cover(4, 1, [1000])
        self.cover(4, 4, [1000])
        self.cover(8, 2, [1000])
        self.cover(2, 1, [1000, 1000, 900])
        self.cover(4, 2, [1000, 900])

    def test_a_stage_that_did_not_report(self) -> None:
        with self.assertRaises(GeometryError):
            share_of(Ranks(0, 1, 0, 2), [1000])


if __name__ == "__main__":
    unittest.main()
