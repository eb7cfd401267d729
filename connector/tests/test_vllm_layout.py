"""Layouts with blocks first: what vLLM is asked for, and how many runs the copies have."""

from __future__ import annotations

import ctypes
import unittest
from types import SimpleNamespace as Bag
from typing import Any
from unittest import mock

from tests import planes
from tests import vllm_fakes as fakes
from tests.vllm_fakes import FakeTensor, full, kv_config

ORIGIN = fakes.require_vllm()

from blockyard import native  # noqa: E402
from blockyard.mover import CpuMover, Pages  # noqa: E402
from blockyard.native_plane import MemoryMover, Plan  # noqa: E402
from blockyard.settings import Settings  # noqa: E402
from blockyard.vllm import BlockyardConnector, geometry, layout  # noqa: E402

installed = unittest.skipUnless(ORIGIN == "installed", "vLLM is not installed")

LAYERS, BLOCKS, HEADS, TOKENS, CONTENT = 80, 600, 2, 4, 16
COPIED = 512


def runs_in_c(pages: Pages, slots: list[int], blocks: list[list[int]]) -> int:
    """The number of runs of a copy in the plan of the library."""
    plan = Plan(native.library(), pages)
    piece = plan.piece(native.LOAD, slots, blocks)
    room = len(slots) * len(pages.pages)
    out = (native.Run * room)()
    return plan.lib.by_plan_runs(
        plan.handle, ctypes.byref(piece), pages.share_bytes, out, room
    )


def asked(extra: dict[str, Any], major: int | None = 9) -> str | None:
    """What the connector asks vLLM for, on a GPU of this major compute capability."""
    capability = None if major is None else Bag(major=major)
    with (
        mock.patch.object(
            layout, "_platform", lambda: Bag(get_device_capability=lambda: capability)
        ),
        mock.patch.object(layout, "_known", lambda: frozenset({"LBHNC", "BLHNC", "BLNHC"})),
    ):
        config = fakes.vllm_config(kv_transfer_config__kv_connector_extra_config=extra)
        return BlockyardConnector.get_required_kvcache_layout(config)


class Asking(unittest.TestCase):
    def test_without_the_setting_no_layout_is_asked_for(self) -> None:
        self.assertIsNone(asked({}))
        self.assertIsNone(asked({"kv_layout": ""}))

    def test_block_first_keeps_the_kernels_order_of_heads_and_tokens(self) -> None:
        for major in (8, 9, 10, 12, None):
            with self.subTest(major=major):
                want = "BLHNC" if major == 10 else "BLNHC"
                self.assertEqual(asked({"kv_layout": "block-first"}, major), want)

    def test_a_name_is_passed_on(self) -> None:
        self.assertEqual(asked({"kv_layout": "BLHNC"}, 9), "BLHNC")

    def test_a_disabled_connector_asks_for_nothing(self) -> None:
        self.assertIsNone(asked({"kv_layout": "block-first", "enabled": False}))

    def test_a_vllm_without_such_layouts_is_not_asked(self) -> None:
        config = fakes.vllm_config(
            kv_transfer_config__kv_connector_extra_config={"kv_layout": "BLHNC"}
        )
        with (
            mock.patch.object(layout, "_known", lambda: frozenset({"LBHNC"})),
            self.assertLogs("blockyard.vllm", "WARNING") as logs,
        ):
            self.assertIsNone(BlockyardConnector.get_required_kvcache_layout(config))
        self.assertIn("no layout BLHNC", logs.output[0])


class Runs(unittest.TestCase):
    """Copies of 512 blocks of a model with 80 layers, planned from strides."""

    def pages(self, block_first: bool, name: str) -> Pages:
        """The pages of 80 layers in one storage. name: the layout's name in vLLM's records."""
        page = HEADS * TOKENS * CONTENT
        inner = (TOKENS * CONTENT, CONTENT, 1)
        layers = [f"l{n}" for n in range(LAYERS)]
        config = kv_config((full(TOKENS), layers), blocks=BLOCKS)
        config.kv_cache_layout = name
        step, stride = (page, page * LAYERS) if block_first else (page * BLOCKS, page)
        tensors = {
            layer: FakeTensor(
                (BLOCKS, HEADS, TOKENS, CONTENT), strides=(stride, *inner), offset=n * step
            )
            for n, layer in enumerate(layers)
        }
        return Pages(geometry.pages_of(tensors, config), BLOCKS)

    def counts(self, pages: Pages) -> set[int]:
        """The runs of a copy of 512 blocks that are not neighbours, on each plane."""
        slots = [1 << 30 | n * 2 * pages.share_bytes for n in range(COPIED)]
        blocks = [[(n * 7) % BLOCKS for n in range(COPIED)]]
        counts = {len(pages.runs(slots, blocks)[0])}
        if not planes.why_not():
            counts.add(runs_in_c(pages, slots, blocks))
        return counts

    def test_blocks_first_is_one_copy_for_each_block(self) -> None:
        self.assertEqual(self.counts(self.pages(True, "BLHNC")), {COPIED})

    def test_layers_first_is_one_copy_for_each_block_and_layer(self) -> None:
        self.assertEqual(self.counts(self.pages(False, "LBHNC")), {COPIED * LAYERS})

    def test_strides_count_and_not_the_name(self) -> None:
        self.assertEqual(self.counts(self.pages(True, "LBHNC")), {COPIED})
        wrong = self.pages(False, "BLHNC")
        self.assertEqual(self.counts(wrong), {COPIED * LAYERS})
        with self.assertLogs("blockyard.vllm", "WARNING") as logs:
            layout.note_runs(Settings(kv_layout="BLHNC"), wrong)
        self.assertIn("a block lies in 80 places", logs.output[0])

    def test_one_line_says_what_vllm_made(self) -> None:
        for pages, setting, level, text in (
            (self.pages(True, "BLHNC"), "block-first", "INFO", "in one place"),
            (self.pages(True, "BLHNC"), "", "INFO", "in one place"),
            (self.pages(False, "LBHNC"), "", "INFO", "in 80 places"),
        ):
            with self.assertLogs("blockyard.vllm", "INFO") as logs:
                layout.note_runs(Settings(kv_layout=setting), pages)
            self.assertEqual([record.levelname for record in logs.records], [level])
            self.assertIn(text, logs.output[0])


@installed
class Installed(unittest.TestCase):
    """The tensors that the installed vLLM makes, in plain memory."""

    blocks, layers, heads = 12, 3, 2

    def setUp(self) -> None:
        if not layout._known():
            self.skipTest("this vLLM has no layouts with blocks first")

    def spec(self) -> Any:
        import torch
        from vllm.v1.kv_cache_interface import FullAttentionSpec

        return FullAttentionSpec(
            block_size=16, num_kv_heads=self.heads, head_size=8, dtype=torch.float32
        )

    def made(self, name: str) -> tuple[dict[str, Any], Any]:
        """vLLM's views of the layers in this layout, and its configuration of the cache."""
        import torch
        from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
        from vllm.v1.kv_cache_interface import KVCacheGroupSpec
        from vllm.v1.kv_cache_layout import KVCacheLayout
        from vllm.v1.worker.utils import allocate_kv_cache

        spec = self.spec()
        group = KVCacheGroupSpec([f"l{n}" for n in range(self.layers)], spec)
        cache = Bag(
            get_resolved_kv_cache_layout=lambda: KVCacheLayout[name],
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
        )
        config = fakes.vllm_config(
            cache_config=cache, attention_config=Bag(hisparse_config=None)
        )
        room = self.blocks * self.layers * spec.page_size_bytes
        kv = get_kv_cache_config_from_groups(config, [group], room)
        self.assertEqual(kv.num_blocks, self.blocks)
        return allocate_kv_cache(kv, torch.device("cpu"), KVCacheLayout[name]), kv

    def test_the_runs_of_a_block_in_every_layout(self) -> None:
        from vllm.v1.kv_cache_layout import KVCacheLayout

        each_head = self.layers * self.heads
        want = {"BLHNC": 1, "BLNHC": 1, "LBHNC": self.layers, "LBNHC": self.layers}
        for name in (each.name for each in KVCacheLayout):
            with self.subTest(name):
                tensors, kv = self.made(name)
                pages = Pages(geometry.pages_of(tensors, kv), self.blocks)
                self.assertEqual(len(pages.pages), want.get(name, each_head))
                if not planes.why_not():
                    slots, blocks = [1 << 20, 1 << 24], [[3, 9]]
                    self.assertEqual(runs_in_c(pages, slots, blocks), 2 * len(pages.pages))

    def test_bytes_of_a_block_come_back_in_another_block(self) -> None:
        import torch

        for name in ("BLHNC", "BLNHC", "LBHNC"):
            tensors, kv = self.made(name)
            for number, tensor in enumerate(tensors.values()):
                tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) + 1000000 * number)
            want = {layer: tensor[3].clone() for layer, tensor in tensors.items()}
            others = {layer: tensor[4].clone() for layer, tensor in tensors.items()}
            pages = Pages(geometry.pages_of(tensors, kv), self.blocks)
            slot = (ctypes.c_char * pages.share_bytes)()
            movers: list[Any] = [CpuMover(pages)]
            if not planes.why_not():
                movers.append(MemoryMover(native.library(), pages))
            for to, mover in enumerate(movers, 7):
                with self.subTest(name, mover=type(mover).__name__):
                    ctypes.memset(slot, 0, len(slot))
                    mover.store([ctypes.addressof(slot)], [[3]])
                    mover.load([ctypes.addressof(slot)], [[to]])
                    for layer, tensor in tensors.items():
                        self.assertTrue(torch.equal(tensor[to], want[layer]), layer)
                        self.assertTrue(torch.equal(tensor[4], others[layer]), layer)

    def resolved(self, supported: list[str], extra: dict[str, Any]) -> str:
        """The layout that vLLM takes with this connector and a backend's supported layouts."""
        from vllm.config import KVTransferConfig
        from vllm.v1.attention.backends.utils import resolve_kv_cache_layout

        config = fakes.vllm_config(
            cache_config=Bag(kv_cache_layout=None),
            kv_transfer_config=KVTransferConfig(
                kv_connector="BlockyardConnector",
                kv_connector_module_path="blockyard.vllm",
                kv_role="kv_both",
                kv_connector_extra_config=extra,
            ),
        )
        return resolve_kv_cache_layout(config, [supported], [self.spec()]).name

    def test_vllm_takes_the_answer_where_the_backend_does(self) -> None:
        first = {"kv_layout": "block-first"}
        every = ["LBNHC", "LBHNC", "BLNHC", "BLHNC"]
        self.assertEqual(self.resolved(every, {}), "LBNHC")
        self.assertEqual(self.resolved(every, first), "BLNHC")
        self.assertEqual(self.resolved(every, {"kv_layout": "BLHNC"}), "BLHNC")
        # FlashInfer on Blackwell.
        with mock.patch.object(
            layout, "_platform", lambda: Bag(get_device_capability=lambda: Bag(major=10))
        ):
            self.assertEqual(self.resolved(["LBHNC", "BLHNC"], first), "BLHNC")
        self.assertEqual(self.resolved(["LBHNC"], first), "LBHNC")  # the CPU backend


if __name__ == "__main__":
    unittest.main()
