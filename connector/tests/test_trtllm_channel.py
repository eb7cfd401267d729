"""TensorRT-LLM's connector: the channel between leader and workers, and the import of the engine's
base classes."""

from __future__ import annotations

import pathlib
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import Any

from blockyard.trtllm import crew
from tests.agentproc import wait_until

CONNECTOR = pathlib.Path(__file__).resolve().parent.parent


class Channel(unittest.TestCase):
    def setUp(self) -> None:
        def welcome(message: dict[str, Any]) -> dict[str, Any]:
            if message.get("bad"):
                raise ValueError("not like this")
            if message.get("old"):
                raise TypeError("a word that is not known")
            return {"hello": message["rank"]}

        self.crew = crew.Crew(2, welcome)
        self.arrived: list[tuple[int, dict[str, Any]]] = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        self.addCleanup(self.end)

    def serve(self) -> None:
        while not self.ended.is_set():
            self.arrived += self.crew.poll(0.05)

    def end(self) -> None:
        self.ended.set()
        self.crew.wake()
        self.thread.join(5)
        self.crew.close()

    def join(self, **message: Any) -> crew.Channel:
        channel, answers = crew.join(self.crew.name, message)
        self.addCleanup(channel.close)
        self.assertEqual(answers, [{"hello": message["rank"]}])
        return channel

    def test_messages_of_any_size_arrive(self) -> None:
        first, second = self.join(rank=0), self.join(rank=1)
        wait_until("both are there", lambda: self.crew.complete)
        big = {"done": b"x" * 3_000_000}
        first.send(big)
        second.send({"done": b""})
        wait_until("they have arrived", lambda: len(self.arrived) == 2)
        self.assertIn((0, big), self.arrived)
        self.crew.send({"step": 1})
        for channel in (first, second):
            wait_until("something came", lambda c=channel: crew.readable([c.fileno()], 0.1))
            self.assertEqual(channel.receive(), [{"step": 1}])

    def test_refusals(self) -> None:
        self.join(rank=1)
        for message in (
            {"rank": 1},
            {"rank": 2},
            {"rank": "0"},
            {},
            {"rank": 0, "bad": True},
            {"rank": 0, "old": True},
        ):
            with self.subTest(message), self.assertRaisesRegex(crew.CrewError, "refused"):
                crew.join(self.crew.name, message)
        with self.assertRaisesRegex(crew.CrewError, "no leader"):
            crew.join("blockyard-nobody", {"rank": 0})

    def test_garbage_ends_that_connection_alone(self) -> None:
        first, second = self.join(rank=0), self.join(rank=1)
        wait_until("both are there", lambda: self.crew.complete)
        second._socket.sendall(struct.pack("<I", 1 << 31))
        wait_until("it is lost", lambda: self.crew.lost)
        self.assertIn("rank 1", self.crew.lost)
        first.send({"done": b"1"})
        wait_until("the other goes on", lambda: self.arrived)

    def test_one_that_leaves_is_not_lost(self) -> None:
        first = self.join(rank=0)
        self.join(rank=1)
        first.send({"done": b"last"})
        first.send(crew.BYE)
        first.close()
        # poll() notes that the worker has left before it returns the worker's messages.
        wait_until("it has left", lambda: self.crew.left and self.arrived)
        self.assertEqual((self.crew.lost, self.crew.complete), ("", False))
        self.assertEqual(self.arrived, [(0, {"done": b"last"})])

    def test_the_newest_leader_of_a_process_is_found(self) -> None:
        self.assertEqual(crew.here(), self.crew.name)
        other = crew.Crew(1, lambda message: message)
        self.assertEqual(crew.here(), other.name)
        other.close()
        self.assertEqual(crew.here(), "")


class Interface(unittest.TestCase):
    OLD = "tensorrt_llm/_torch/pyexecutor/kv_cache_connector.py"
    NEW = "tensorrt_llm/_torch/pyexecutor/connectors/kv_cache_connector.py"
    CODE = "from blockyard.trtllm import interface; print(interface.KvCacheConnectorWorker)"

    def found(self, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Runs a new interpreter with these modules installed. Returns its output."""
        with tempfile.TemporaryDirectory() as directory:
            for name, text in files.items():
                path = pathlib.Path(directory, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return subprocess.run(
                [sys.executable, "-S", "-c", self.CODE],
                env={"PYTHONPATH": f"{CONNECTOR}:{directory}"},
                capture_output=True,
                text=True,
                timeout=60,
            )

    def test_both_places(self) -> None:
        old = "KvCacheConnectorScheduler = 1\nKvCacheConnectorWorker = 'old'\n"
        self.assertEqual(self.found({self.OLD: old}).stdout, "old\n")
        new = old.replace("old", "new")
        self.assertEqual(self.found({self.OLD: old, self.NEW: new}).stdout, "new\n")

    def test_none(self) -> None:
        result = self.found({})
        self.assertIn("ImportError: blockyard.trtllm needs TensorRT-LLM", result.stderr)

    def test_a_broken_one_is_no_missing_one(self) -> None:
        result = self.found({self.NEW: "import a_module_that_is_not_there\n"})
        self.assertIn("No module named 'a_module_that_is_not_there'", result.stderr)
        self.assertNotIn("needs TensorRT-LLM", result.stderr)


if __name__ == "__main__":
    unittest.main()
