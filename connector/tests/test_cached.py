"""LIST_CACHED and the gauges of STATS, between a SchedulerSession and a scripted agent."""

from __future__ import annotations

import logging
import pathlib
import shutil
import socket
import struct
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable
from typing import Any

from blockyard import frames, msgpack
from blockyard.frames import HelloFields
from blockyard.keeper import LOST
from blockyard.scheduler import SchedulerSession
from blockyard.settings import Settings
from tests.agentproc import wait_until
from tests.effort import instructions
from tests.test_keeper import NAMESPACE

logging.getLogger("blockyard").addHandler(logging.NullHandler())

WELCOME = {
    "major": 1,
    "minor": 1,
    "session": 3,
    "agent_nonce": 9,
    "namespace_id": bytes(16),
    "block_bytes": 8,
    "slot_bytes": 4096,
    "max_requests": 16,
    "max_pins": 16,
}


class ScriptedAgent:
    """Accepts and welcomes one scheduler. The test sends and receives all other frames."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(1)
        self._listener.settimeout(20)
        self.hello: dict[str, Any] = {}

    def accept(self, welcome: dict[str, Any] = WELCOME) -> None:
        self._sock, _ = self._listener.accept()
        self._sock.settimeout(20)
        kind, corr, self.hello = self.receive()
        assert kind == frames.HELLO
        self.send(frames.WELCOME, corr, welcome)

    def send(self, kind: int, corr: int, body: dict[str, Any]) -> None:
        packed = msgpack.encode(body)
        self._sock.send(frames.pack_header(kind, corr, len(packed)) + packed)

    def receive(self) -> tuple[int, int, dict[str, Any]]:
        message = self._sock.recv(frames.MAX_FRAME + 1)
        header = frames.parse_header(message)
        return header.type, header.corr, msgpack.decode(message[frames.HEADER_BYTES :])

    def next(self, kind: int) -> dict[str, Any]:
        """Waits for the next frame of this kind, and drops others."""
        while True:
            got, _, body = self.receive()
            if got == kind:
                return body

    def list(self, number: int) -> tuple[bytes, int, bool]:
        """Asks for a list. Returns hashes, number of frames, and whether it is unavailable."""
        hashes, count = b"", 0
        while True:
            body = self.next(frames.CACHED)
            assert body["list"] == number, body
            hashes += body["hashes"]
            count += 1
            if body["final"]:
                return hashes, count, body.get("unavailable", False)

    def close(self) -> None:
        self._sock.close()
        self._listener.close()


class Pool:
    """Device blocks. The hash of a block is its number; every third block has no hash."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.before: Callable[[int], None] = lambda first: None

    def __len__(self) -> int:
        return self.blocks

    def total(self) -> int:
        return self.blocks - 1

    def used(self) -> int:
        return self.blocks // 2

    def cached_hashes(self, first: int, count: int) -> bytes:
        self.before(first)
        held = [n for n in range(first, min(first + count, self.blocks)) if n % 3]
        return struct.pack(f"<{len(held)}Q", *held)

    def all(self) -> bytes:
        return self.cached_hashes(0, self.blocks)


class Case(unittest.TestCase):
    def setUp(self) -> None:
        root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, root)
        path = str(pathlib.Path(root) / "agent.sock")
        self.agent = ScriptedAgent(path)
        self.session = SchedulerSession(Settings(socket=path), None, 16)
        hello = HelloFields("e", 1, namespace=dict(NAMESPACE), lists_cached=True)
        self.session.start(hello, 1)
        self.addCleanup(self.session.close)
        self.agent.accept()
        self.addCleanup(self.agent.close)

    def listing(self) -> tuple[Pool, threading.Event]:
        """A pool whose list 1 has begun, and waits for the event."""
        pool = self.observe(Pool(300))
        going, may = threading.Event(), threading.Event()

        def wait(first: int) -> None:
            going.set()
            may.wait(20)

        pool.before = wait
        self.agent.send(frames.LIST_CACHED, 0, {"list": 1})
        going.wait(20)
        return pool, may

    def observe(self, pool: Pool) -> Pool:
        self.session.observe(pool, lambda: (2, 1))
        return pool


class Lists(Case):
    def test_hashes_come_in_pieces_from_a_thread_that_nobody_calls(self) -> None:
        """The engine is idle: no call of the session is made."""
        self.assertTrue(self.agent.hello["lists_cached"])
        for number, blocks in enumerate((1, 2, 5999, 6001, 30_000), 1):
            pool = self.observe(Pool(blocks))
            self.agent.send(frames.LIST_CACHED, 0, {"list": number})
            hashes, count, void = self.agent.list(number)
            self.assertEqual(hashes, pool.all())
            self.assertEqual(count, max(1, -(-len(hashes) // (8 * 4000))))
            self.assertFalse(void)

    def test_without_a_pool_or_with_a_broken_one_there_is_no_list(self) -> None:
        def broken(first: int) -> None:
            raise TypeError("a hash that is no bytes")

        with self.assertLogs("blockyard.cached", "WARNING"):
            self.agent.send(frames.LIST_CACHED, 0, {"list": 1})
            self.assertEqual(self.agent.list(1), (b"", 1, True))
        pool = self.observe(Pool(400))
        pool.before = broken
        with self.assertLogs("blockyard.cached", "WARNING"):
            self.agent.send(frames.LIST_CACHED, 0, {"list": 2})
            self.assertEqual(self.agent.list(2), (b"", 1, True))
        pool.before = lambda first: None
        self.agent.send(frames.LIST_CACHED, 0, {"list": 3})
        self.assertEqual(self.agent.list(3)[0], pool.all())
        self.assertEqual(self.session.stats()["lists_failed"], 2)

    def test_of_lists_asked_for_meanwhile_the_last_one_is_made(self) -> None:
        """The agent waits only for the last list, and the pool has one list at a time."""
        pool, may = self.listing()
        lister = self.session._keeper.lister
        for number in (2, 3):
            self.agent.send(frames.LIST_CACHED, 0, {"list": number})
            wait_until("it is noted", lambda: lister._asked and lister._asked[1] == number)
        may.set()
        for number in (1, 3):
            self.assertEqual(self.agent.list(number)[0], pool.all())

    def test_a_list_ends_with_its_connection(self) -> None:
        _, may = self.listing()
        self.agent.close()
        keeper = self.session._keeper
        wait_until("the end is known", lambda: any(kind == LOST for kind, _ in keeper.events))
        may.set()
        wait_until("the list is over", lambda: not keeper.lister._busy)
        self.assertEqual(self.session.stats()["lists_failed"], 1)


class Warned(unittest.TestCase):
    def test_what_the_agent_cannot_do_is_an_error_in_the_engines_log(self) -> None:
        """For example: another engine's consolidated stream has the port."""
        with tempfile.TemporaryDirectory() as root:
            path = str(pathlib.Path(root) / "agent.sock")
            agent = ScriptedAgent(path)
            session = SchedulerSession(Settings(socket=path), None, 16)
            self.addCleanup(session.close)
            with self.assertLogs("blockyard.keeper", "ERROR") as logs:
                session.start(HelloFields("e", 1, namespace=dict(NAMESPACE)), 1)
                agent.accept({**WELCOME, "warning": "port 57001 is another engine's"})
                self.addCleanup(agent.close)
                wait_until("it is logged", lambda: bool(logs.output))
            self.assertIn("port 57001 is another engine's", logs.output[0])


class Gauges(Case):
    def test_stats_say_how_the_engine_stands(self) -> None:
        self.observe(Pool(101))
        body = self.agent.next(frames.STATS)
        self.assertEqual(
            {key: body[key] for key in body if "device" in key or "requests" in key},
            {
                "device_blocks_total": 100,
                "device_blocks_used": 50,
                "running_requests": 2,
                "waiting_requests": 1,
            },
        )
        self.assertEqual(body["lookups"], 0)


class Cost(unittest.TestCase):
    def test_a_slice_is_short(self) -> None:
        """A slice takes the interpreter lock for less than 1 ms: 10 ns for each instruction."""
        from tests import vllm_fakes

        vllm_fakes.require_vllm()
        from blockyard.cached import SLICE_BLOCKS
        from blockyard.vllm.blocks import PoolView

        view = PoolView(vllm_fakes.FakePool(4096))
        for number, block in enumerate(view._blocks):
            block.block_hash = number.to_bytes(32, "big") + bytes(4)
        self.assertLess(instructions(lambda: view.cached_hashes(1024, SLICE_BLOCKS)), 100_000)

    def test_a_list_waits_for_a_busy_engine_less_than_a_second(self) -> None:
        """A computing thread releases the interpreter lock once every switch interval."""
        from blockyard.cached import SLICE_BLOCKS

        slices = -(-60_000 // SLICE_BLOCKS)
        self.assertLess(2 * slices * sys.getswitchinterval(), 0.5)


if __name__ == "__main__":
    unittest.main()
