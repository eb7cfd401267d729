"""Which hybrid models are served, their groups, and where the bytes of a group's block are."""

from __future__ import annotations

import unittest
from types import SimpleNamespace as Bag
from typing import Any
from unittest import mock

from tests import vllm_fakes as fakes
from tests.test_vllm_connector import SCHEDULER, WORKER, Engine
from tests.vllm_fakes import FakeTensor, full, kv_config, vllm_config

fakes.require_vllm()

from blockyard.groups import CHUNKED, FULL, SLIDING, STATE, Group  # noqa: E402
from blockyard.mover import GeometryError, Pages  # noqa: E402
from blockyard.vllm import assembly, geometry  # noqa: E402
from blockyard.vllm.geometry import Ranks  # noqa: E402
from blockyard.vllm.kvgroups import groups_of, is_hybrid, why_not_served  # noqa: E402

BLOCKS = 8
NGRAM = {"speculative_config": Bag(method="ngram", use_eagle_block_drop=lambda: False)}
EAGLE = {"speculative_config": Bag(method="eagle", use_eagle_block_drop=lambda: True)}


def sliding(window: int = 64, block_size: int = 32, **more: Any) -> Any:
    return fakes.SlidingWindowSpec(block_size=block_size, sliding_window=window, **more)


def chunked(chunk: int = 64, block_size: int = 32) -> Any:
    return fakes.ChunkedLocalAttentionSpec(block_size=block_size, attention_chunk_size=chunk)


def state(block_size: int = 640, **more: Any) -> Any:
    return fakes.MambaSpec(**{"block_size": block_size, "mamba_cache_mode": "align", **more})


class Served(unittest.TestCase):
    def test_windows_states_and_different_block_sizes(self) -> None:
        for groups in (
            [sliding(), full()],
            [sliding(), sliding(), full()],
            [chunked(), chunked(), full()],
            [state(), full(640)],
            [full(16), full(32)],
            [sliding(64, 16), state(32), full(64)],
        ):
            kv = kv_config(*((spec, [f"l{i}"]) for i, spec in enumerate(groups)))
            self.assertTrue(is_hybrid(kv))
            self.assertEqual(why_not_served(vllm_config(), kv), "")
        self.assertFalse(is_hybrid(kv_config((full(), ["a"]), (full(), ["b"]))))

    def test_the_groups_are_in_vllms_order(self) -> None:
        wrapped = Bag(kv_cache_specs={"b": sliding(), "c": sliding()}, block_size=32)
        kv = kv_config(
            (wrapped, ["b", "c"]), (state(64), ["d"]), (full(), ["a"]), (chunked(96), ["e"])
        )
        groups = groups_of(vllm_config(), kv, [10, 20, 30, 40], pp=2)
        self.assertEqual(
            list(groups),
            [
                Group(SLIDING, 64, 32, 10, 4),
                Group(STATE, 0, 64, 20, 2),
                Group(FULL, 0, 32, 30, 2),
                Group(CHUNKED, 96, 32, 40, 2),
            ],
        )
        self.assertEqual((groups.primary, groups.page, groups.align), (2, 32, 64))

    def test_everything_else_stays_off_and_says_why(self) -> None:
        class RSWASpec(fakes.FullAttentionSpec):
            """A subclass that drops blocks within the prompt."""

        mixed = Bag(kv_cache_specs={"a": sliding(), "b": sliding(128)}, block_size=32)
        chunks = Bag(kv_cache_specs={"a": chunked(), "b": chunked(128)}, block_size=32)
        for spec, word in (
            (RSWASpec(block_size=32), "RSWASpec"),
            (mixed, "different layers"),
            (chunks, "different layers"),
            (state(mamba_cache_mode="all"), "mamba_cache_mode is 'all'"),
            (state(num_speculative_blocks=2), "speculative"),
            (sliding(extra_retained_tokens=3), "more tokens"),
            (sliding(prefix_cacheable=False), "does not cache"),
            (sliding(non_causal=True), "causal"),
        ):
            kv = kv_config((spec, ["a"]), (full(), ["b"]))
            self.assertIn(word, why_not_served(vllm_config(), kv))
        kv = kv_config((sliding(), ["a"]))
        self.assertIn("no layers of full attention", why_not_served(vllm_config(), kv))
        kv = kv_config((sliding(), ["a"]), (full(), ["b"]))
        for config, word in (
            (vllm_config(speculative_config=Bag(method="dflash")), "by 'dflash'"),
            (vllm_config(speculative_config=Bag(method=None)), "by None"),
            (vllm_config(cache_config__enable_prefix_caching=False), "prefix caching is off"),
            (vllm_config(parallel_config__decode_context_parallel_size=2), "context"),
        ):
            self.assertIn(word, why_not_served(config, kv))
        kv = kv_config((chunked(), ["a"]), (full(), ["b"]))
        self.assertIn("chunked attention", why_not_served(vllm_config(**EAGLE), kv))
        kv = kv_config((state(), ["a"]), (full(640), ["b"]))
        self.assertIn("states", why_not_served(vllm_config(**NGRAM), kv))

    def test_speculative_decoding(self) -> None:
        kv = kv_config((sliding(), ["a"]), (full(), ["b"]))
        chunks = kv_config((chunked(), ["a"]), (full(), ["b"]))
        for config, cache in ((NGRAM, kv), (EAGLE, kv), (NGRAM, chunks)):
            self.assertEqual(why_not_served(vllm_config(**config), cache), "")

    def test_groups_whose_last_block_vllm_drops(self) -> None:
        kv = kv_config((sliding(), ["a"]), (full(), ["b"]))

        def eagle(**config: Any) -> list[bool]:
            return [group.eagle for group in groups_of(vllm_config(**config), kv, [1, 1])]

        self.assertEqual(eagle(), [False, False])
        self.assertEqual(eagle(**NGRAM), [False, False])
        self.assertEqual(eagle(**EAGLE), [True, True], "vLLM marks no group, and drops in all")
        kv.kv_cache_groups[1].is_eagle_group = True
        self.assertEqual(eagle(**EAGLE), [False, True])
        older = {"speculative_config": Bag(method="eagle", use_eagle=lambda: True)}
        kv.kv_cache_groups[1].is_eagle_group = False
        self.assertEqual(eagle(**older), [True, True])


class Bytes(unittest.TestCase):
    """Groups share one storage: a device block belongs to one group at a time."""

    def setUp(self) -> None:
        self.kv = kv_config((state(32), ["s"]), (full(32), ["f", "g"]), blocks=BLOCKS)
        page = 512  # bytes of a block in one layer
        self.caches = {
            # A state's parts lie one behind the other in a block, which has a rest.
            "s": [
                FakeTensor((BLOCKS, 32), strides=(page // 4, 1)),
                FakeTensor((BLOCKS, 4, 16), strides=(page // 4, 16, 1), offset=32),
            ],
            "f": FakeTensor((BLOCKS, 128)),
            "g": FakeTensor((BLOCKS, 128), base=1 << 24),
        }

    def test_every_group_begins_at_the_start_of_its_slot(self) -> None:
        pages = geometry.pages_of(self.caches, self.kv, grouped=True)
        self.assertEqual(
            [(page.group, page.offset, page.bytes) for page in pages],
            [(0, 0, 128), (0, 128, 256), (1, 0, 512), (1, 512, 512)],
        )
        self.assertEqual(geometry.share_bytes(pages), 1024)
        self.assertEqual(geometry.group_ends(pages, 4096), (4096 + 384, 4096 + 1024))
        made = Pages(pages, BLOCKS, "cpu", 4096, grouped=True)
        self.assertEqual((made.groups, made.share_bytes), (2, 1024))
        device, host, sizes = made.runs([1 << 30], [[3], []])
        self.assertEqual(sizes, [384], "a state's parts are adjacent")
        self.assertEqual((device, host), ([(1 << 20) + 3 * 512], [(1 << 30) + 4096]))
        self.assertEqual(made.copied_bytes([[], [1]]), 1024)
        self.assertEqual(made.runs([1 << 30], [[], [3]])[2], [512, 512])

    def test_a_slot_has_a_block_of_one_group(self) -> None:
        made = Pages(geometry.pages_of(self.caches, self.kv, True), BLOCKS, grouped=True)
        for blocks in ([[1], [1]], [[], []], [[1, 2], []], [[BLOCKS], []]):
            with self.assertRaises(GeometryError):
                made.runs([1 << 30], blocks)

    def test_a_layer_with_several_tensors_needs_groups(self) -> None:
        with self.assertRaisesRegex(GeometryError, "2 tensors"):
            geometry.pages_of(self.caches, self.kv)

    def test_layouts_of_states_are_told_apart(self) -> None:
        one = geometry.digest_of(self.caches, self.kv)
        self.caches["s"] = self.caches["s"][::-1]
        self.assertNotEqual(geometry.digest_of(self.caches, self.kv), one)


class Started(Engine):
    """Both roles of a hybrid model's engine, from the tensors to HELLO."""

    def setUp(self) -> None:
        super().setUp()
        patch = mock.patch.object(assembly, "GroupSession", self.group_session)
        patch.start()
        self.addCleanup(patch.stop)
        self.kv = kv_config((state(32), ["s"]), (full(32), ["f", "g"]), blocks=BLOCKS)

    def group_session(self, settings: Any, blocks: Any, groups: Any) -> Any:
        session = self.scheduler_session()
        session.groups = groups
        return session

    def share(self, ranks: Ranks) -> Any:
        self.ranks = ranks
        made = self.make(WORKER)
        made.register_kv_caches(
            {
                "s": [FakeTensor((BLOCKS, 96)), FakeTensor((BLOCKS, 64), base=1 << 24)],
                "f": FakeTensor((BLOCKS, 128)),
                "g": FakeTensor((BLOCKS, 128), base=1 << 25),
            }
        )
        return made.get_handshake_metadata()

    def test_hello_has_the_groups_and_the_shares_begin_at_one_offset(self) -> None:
        self.config.parallel_config.tensor_parallel_size = 2
        made = self.make(SCHEDULER)
        shares = [self.share(Ranks(rank, 2)) for rank in range(2)]
        self.assertEqual([share.problem for share in shares], ["", ""])
        made.set_xfer_handshake_metadata_pp_aware({(0, n): s for n, s in enumerate(shares)})
        namespace = self.hello().namespace
        self.assertEqual(
            [(group["kind"], group["block_bytes"]) for group in namespace["groups"]],
            [("state", 1024 + 640), ("full", 2048)],
        )
        self.assertEqual(namespace["page_size"], 32)
        self.assertEqual([made.pages.share_offset for made in self.sessions], [0, 1024])
        self.assertTrue(all(made.pages.grouped for made in self.sessions))


if __name__ == "__main__":
    unittest.main()
