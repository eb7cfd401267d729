"""Parts of TensorRT-LLM's connector: geometry, arguments, ledger, orders."""

from __future__ import annotations

import os
import struct
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from blockyard import consolidation
from blockyard.namespace import Identity
from blockyard.trtllm import arguments, geometry, ledger
from blockyard.trtllm.dispatch import Dispatch
from blockyard.work import EMPTY_WORK, Done, Load, Store, Work


def tensor(shape: tuple[int, ...], dtype: str = "torch.bfloat16", **changes: Any) -> Any:
    """The members of a pool tensor that the connector reads."""
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    strides = changes.get("stride", strides)
    return SimpleNamespace(
        shape=shape,
        dtype=dtype,
        device="cpu",
        data_ptr=lambda: 0x10000,
        stride=lambda: strides,
        element_size=lambda: 2,
    )


def layout(*groups: Any) -> Any:
    return SimpleNamespace(tokens_per_block=16, groups=groups)


def group(number: int, *sizes: int, window: int | None = None) -> Any:
    """A layer group with a region of each size in slots of 4,096 bytes."""
    regions = [
        SimpleNamespace(
            base=0x10000 * (number + 1) + at * 1024,
            size=size,
            stride=4096,
            num_slots=10 + number,
            buffers=[SimpleNamespace(layer_id=at, role="key", expansion=1)],
        )
        for at, size in enumerate(sizes)
    ]
    return SimpleNamespace(
        layer_group_id=number,
        layer_ids=(number,),
        window_size=window,
        regions=regions[:-1],
        replicated_regions=regions[-1:],
    )


class Geometry(unittest.TestCase):
    def test_a_pool_tensor_is_one_region(self) -> None:
        pool = geometry.of_tensor(tensor((5, 3, 2, 64)))
        self.assertEqual(pool.regions, ((0, 0x10000, 768, 768),))
        self.assertEqual((pool.blocks, pool.device, pool.layout.share_bytes), (5, "cpu", 768))
        self.assertEqual((pool.layout.layers, pool.layout.outer, pool.layout.width), (3, 2, 2))
        self.assertFalse(pool.layout.replicated)
        self.assertTrue(geometry.of_tensor(tensor((5, 3, 1, 64))).layout.replicated)

    def test_what_is_not_whole_is_refused(self) -> None:
        refused = {
            "not contiguous": tensor((5, 3, 2, 64), stride=[400, 128, 64, 1][::-1]),
            "want \\[blocks": tensor((5, 3)),
            "scales": tensor((5, 3, 2, 64), dtype="torch.float4_e2m1fn_x2"),
        }
        for text, bad in refused.items():
            with self.subTest(text), self.assertRaisesRegex(geometry.Unsupported, text):
                geometry.of_tensor(bad)

    def test_a_layout_is_all_of_its_regions(self) -> None:
        pool = geometry.of_layout(layout(group(0, 100, 50), group(1, 7)), "cuda:1", "fp8")
        self.assertEqual([r.size for r in pool.regions], [100, 50, 7])
        self.assertEqual([r.group for r in pool.regions], [0, 0, 1])
        self.assertEqual((pool.blocks, pool.layout.share_bytes, pool.device), (10, 157, "cuda:1"))
        self.assertFalse(pool.layout.stable)

    def test_a_layout_that_cannot_be_kept_is_refused(self) -> None:
        for text, bad in {
            "window of 512": layout(group(0, 8), group(1, 8, window=512)),
            "no regions": layout(),
            "numbered": layout(group(1, 8)),
            "stride 4096": layout(group(0, 5000)),
        }.items():
            with self.subTest(text), self.assertRaisesRegex(geometry.Unsupported, text):
                geometry.of_layout(bad, "cpu", "auto")

    def test_forms_differ_where_blocks_do(self) -> None:
        forms = [
            geometry.of_tensor(tensor(shape, dtype)).layout
            for shape, dtype in (
                ((5, 3, 2, 64), "torch.bfloat16"),
                ((5, 2, 3, 64), "torch.bfloat16"),
                ((5, 3, 2, 64), "torch.float16"),
            )
        ]
        forms.append(geometry.of_layout(layout(group(0, 768)), "cpu", "bfloat16").layout)
        self.assertEqual(len({repr(form) for form in forms}), 4)
        self.assertEqual(forms[0], geometry.of_tensor(tensor((9, 3, 2, 64))).layout)


class Arguments(unittest.TestCase):
    def args(self, **mapping: Any) -> Any:
        given = {"rank": 3, "world_size": 4, "pp_size": 1, **mapping}
        return SimpleNamespace(
            model="m",
            parallel_config=SimpleNamespace(to_mapping=lambda: SimpleNamespace(**given)),
            kv_cache_config=SimpleNamespace(tokens_per_block=32),
            enable_attention_dp=mapping.pop("alone", False),
        )

    def test_ranks(self) -> None:
        shared = arguments.read(self.args(), "1")
        self.assertEqual((shared.rank, shared.world, shared.dp_rank), (3, 4, 0))
        alone = arguments.read(self.args(alone=True), "1")
        self.assertEqual((alone.rank, alone.world, alone.dp_rank), (0, 1, 3))
        for text in ("pp_size", "cp_size"):
            with self.assertRaises(geometry.Unsupported):
                arguments.read(self.args(**{text: 2}), "1")

    def test_namespace_counts_shares(self) -> None:
        args = arguments.read(self.args(), "1.2")
        sharded = geometry.of_tensor(tensor((5, 3, 2, 1024))).layout
        replicated = geometry.of_tensor(tensor((5, 3, 1, 1024))).layout
        space = arguments.namespace(args, sharded, "w", "")
        self.assertEqual(space.block_bytes, 4 * sharded.share_bytes)
        self.assertEqual((space.tp, space.page_size), (4, 32))
        space = arguments.namespace(args, replicated, "w", "")
        self.assertEqual(space.block_bytes, replicated.share_bytes)

    def test_events_port(self) -> None:
        """The engine's own port, else the leader's. The stream's port follows the leader's."""
        own, leader = arguments.EVENTS_PORT, consolidation.LEADER_PORT
        cases: list[tuple[dict[str, str], tuple[str, str]]] = [
            ({}, ("", "")),
            ({own: "20081"}, ("tcp://127.0.0.1:20081", "tcp://0.0.0.0:57001")),
            ({leader: "50000"}, ("tcp://127.0.0.1:50000", "tcp://0.0.0.0:51000")),
            ({own: "20081", leader: "50000"}, ("tcp://127.0.0.1:20081", "tcp://0.0.0.0:51000")),
            ({own: "20081", consolidation.ENABLE: "off"}, ("tcp://127.0.0.1:20081", "")),
        ]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DYN_")}
        for variables, expected in cases:
            with mock.patch.dict(os.environ, {**kept, **variables}, clear=True):
                found = arguments.events()
                keys = ("events_endpoint", "consolidated_endpoint")
                self.assertEqual(tuple(found.get(key, "") for key in keys), expected, variables)
        for value in ("0", "70000", "x"):
            with mock.patch.dict(os.environ, {arguments.EVENTS_PORT: value}):
                with self.assertRaisesRegex(ValueError, arguments.EVENTS_PORT):
                    arguments.events()


class Ledger(unittest.TestCase):
    def test_an_offer_is_cut_at_its_ends(self) -> None:
        cases = [
            ((0, 64), (4, 10)),  # the engine has the first four blocks itself
            ((0, 65), (4, 10)),  # the engine uses the other tokens of a partly removed block
            ((0, 79), (4, 10)),
            ((96, 160), (2, 6)),  # the engine has no room for the last four blocks
            ((97, 160), (2, 7)),
            ((100, 105), (2, 10)),
            ((0, 320), None),
            ((64, 64), (2, 10)),
            ((160, 320), (2, 10)),
        ]
        for (start, end), expected in cases:
            with self.subTest(start=start, end=end):
                request = ledger.Request(1, 0, Identity())
                request.hit_range = (2, 10)
                request.cut(start, end, 16)
                first, last = request.hit_range
                self.assertEqual((first, last) if first < last else None, expected)

    def test_whole_pages_end_at_the_first_gap(self) -> None:
        self.assertEqual(ledger.whole_pages([[5, 6, -1, 8]], 0, 4), 2)
        self.assertEqual(ledger.whole_pages([[5, 6, 7], [1, 2]], 0, 3), 2)
        self.assertEqual(ledger.whole_pages([[-1, 6]], 0, 2), 0)
        self.assertEqual(ledger.whole_pages([[-1, 6]], 1, 2), 2)
        self.assertEqual(ledger.whole_pages([[]], 3, 9), 3)

    def test_holds_are_counted(self) -> None:
        held = ledger.HeldBlocks()
        held.total = 10
        held.hold([1, 2, 3])
        held.hold([3])
        held.release([3, 1])
        self.assertTrue(held.any([3]))
        self.assertFalse(held.any([1, 9]))
        self.assertEqual((len(held), held.free_count()), (2, 8))
        with self.assertRaisesRegex(ValueError, "device block 1"):
            held.release([1])

    def test_salts_of_all_releases(self) -> None:
        self.assertEqual(ledger.salt_of(SimpleNamespace(cache_salt="a")), "a")
        self.assertEqual(ledger.salt_of(SimpleNamespace(cache_salt=None, cache_salt_id=None)), "")
        self.assertEqual(ledger.salt_of(SimpleNamespace()), "")
        number = ledger.salt_of(SimpleNamespace(cache_salt_id=7))
        self.assertNotIn(number, ("", "7"))
        self.assertLessEqual(len(ledger.salt_of(SimpleNamespace(cache_salt="x" * 5000))), 1024)

    def test_requests_that_are_left_alone(self) -> None:
        for expected, members in {
            "": {"multimodal_positions": [], "lora_task_id": None},
            "dummy": {"is_dummy_request": True},
            "generation_only": {"is_generation_only_request": lambda: True},
            "lora": {"lora_task_id": 0},
            "multimodal": {"multimodal_hashes": [[1]]},
            "beams": {"sampling_config": SimpleNamespace(beam_width=2)},
        }.items():
            with self.subTest(expected):
                self.assertEqual(ledger.skip_reason(SimpleNamespace(**members)), expected)


class Session:
    """A session: the work for the next order, and the settled jobs."""

    def __init__(self) -> None:
        self.work = EMPTY_WORK
        self.settled: dict[int, list[int]] = {}

    def take_work(self) -> Work:
        work, self.work = self.work, EMPTY_WORK
        return work

    def settle(self, done: Done) -> None:
        self.settled.update(done.jobs)

    def busy(self) -> bool:
        return False


SLOT = b"s" * 16
BLOCK = struct.pack("<I", 4)


class Orders(unittest.TestCase):
    def setUp(self) -> None:
        self.session = Session()
        self.held = ledger.HeldBlocks()
        self.orders = Dispatch(self.session, self.held, 2)

    def order(self, work: Work = EMPTY_WORK) -> dict[str, Any] | None:
        self.session.work = work
        return self.orders.next_order()

    def test_a_job_ends_when_all_workers_have_said_so(self) -> None:
        self.orders.begin_load(7)
        self.order(Work([Load(1, "7", SLOT, BLOCK)], [Store(2, SLOT, BLOCK)]))
        self.orders.ended(0, [(1, 1, 0), (2, 1, 0)])
        self.orders.ended(0, [(1, 1, 0)])  # a repeated report
        self.assertEqual(self.session.settled, {})
        self.orders.ended(1, [(1, 1, 0), (2, 0, 1)])
        self.assertEqual(self.session.settled, {1: [2, 0], 2: [1, 1]})
        self.orders.ended(1, [(1, 1, 0), (99, 1, 0)])
        self.assertEqual(self.orders.counters["unknown_jobs"], 3)
        self.assertFalse(self.orders.active())

    def test_a_request_is_saved_when_nothing_reads_its_blocks(self) -> None:
        self.held.hold([4])
        self.assertTrue(self.orders.finish(7, {4, 5}))
        self.assertFalse(self.orders.finish(8, {5}))
        self.assertIsNone(self.order())
        self.held.release([4])
        order = self.order()
        assert order is not None
        self.assertEqual(order["saved"], [7])
        self.assertIsNone(self.order())

    def test_a_request_that_is_loading_is_not_saved(self) -> None:
        self.orders.begin_load(7)
        self.assertTrue(self.orders.finish(7, {4}))
        self.order(Work([Load(1, "7", SLOT, BLOCK)]))
        self.orders.ended(0, [(1, 1, 0)])
        self.assertIsNone(self.order())
        self.orders.ended(1, [(1, 1, 0)])
        order = self.order()
        assert order is not None
        self.assertEqual(order["saved"], [7])

    def test_stores_of_blocks_that_are_gone_fail(self) -> None:
        """Stores in flight fail, and stores granted until their end. Later stores do not."""
        self.held.hold([4, 5])
        self.order(Work(stores=[Store(1, SLOT, BLOCK)]))
        self.orders.blocks_are_gone()
        self.assertTrue(self.orders.distrusts)
        self.assertIsNone(self.order(Work(stores=[Store(2, SLOT, BLOCK)])))
        self.orders.ended(0, [(1, 1, 0)])
        self.orders.ended(1, [(1, 1, 0)])
        self.assertEqual(self.session.settled, {1: [0, 2], 2: [0, 2]})
        self.held.release([4, 5])
        self.order()
        self.assertFalse(self.orders.distrusts)
        self.order(Work(stores=[Store(3, SLOT, BLOCK)]))
        self.orders.ended(0, [(3, 1, 0)])
        self.orders.ended(1, [(3, 1, 0)])
        self.assertEqual(self.session.settled[3], [2, 0])

    def test_a_load_that_cannot_begin_reaches_no_worker(self) -> None:
        self.orders.fail_load(7)
        order = self.order(Work([Load(1, "7", b"", BLOCK)]))
        assert order is not None
        self.assertEqual((order["loads"], order["failed"]), ([], [7]))
        self.assertEqual(self.session.settled, {1: [0, 2]})

    def test_a_failed_load_is_told_before_all_workers_have_ended_theirs(self) -> None:
        self.orders.begin_load(7)
        self.order(Work([Load(1, "7", SLOT, BLOCK)]))
        self.orders.ended(1, [(1, 0, 1)])
        order = self.order()
        assert order is not None
        self.assertEqual((order["failed"], order["last"]), ([7], []))
        self.assertIsNone(self.order())

    def test_it_is_told_when_a_worker_is_lost_too(self) -> None:
        self.orders.begin_load(7)
        self.order(Work([Load(1, "7", SLOT, BLOCK)]))
        self.orders.abandon()
        self.orders.ended(1, [(1, 0, 1)])
        self.assertTrue(self.orders.active())
        order = self.order()
        assert order is not None
        self.assertEqual(order["failed"], [7])
        self.orders.knows(1, 4)
        self.orders.agree({1})
        order = self.order()
        assert order is not None
        self.assertEqual(order["last"], [4])

    def test_the_last_call_is_the_latest_of_all_ranks_and_told_once(self) -> None:
        self.orders.agree({0, 1})
        self.assertIsNone(self.order(), "no load has failed")
        self.orders.knows(0, 11)
        self.orders.agree({0, 1})
        self.assertIsNone(self.order())
        self.orders.knows(1, 12)
        self.orders.agree({0, 1})
        order = self.order()
        assert order is not None
        self.assertEqual(order["last"], [12])
        self.orders.agree({0, 1})
        self.assertIsNone(self.order())

    def test_without_a_worker_nothing_is_settled(self) -> None:
        """The lost worker's copy may be in flight, but requests do not wait for it."""
        self.held.hold([4])
        self.order(Work(stores=[Store(1, SLOT, BLOCK)]))
        self.assertTrue(self.orders.finish(7, {4}))
        self.orders.abandon()
        self.orders.ended(0, [(1, 1, 0)])
        order = self.order(Work(stores=[Store(2, SLOT, BLOCK)]))
        assert order is not None
        self.assertEqual((order["saved"], order["stores"]), ([7], []))
        self.assertEqual(self.session.settled, {})
        self.assertFalse(self.orders.finish(8, {4}))


if __name__ == "__main__":
    unittest.main()
