"""The log lines of an engine without an agent."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import socket
import tempfile
import threading
import time
import unittest
from unittest import mock

from blockyard import keeper as keeper_module
from blockyard.frames import HelloFields
from blockyard.keeper import Keeper

_NUMBERS = "num_layers outer_dim page_size inner_dim dtype_width_bytes tp pp dcp".split()
NAMESPACE = {
    **dict.fromkeys("model weights dtype kv_format layout".split(), "x"),
    **dict.fromkeys(_NUMBERS, 1),
}


class Lines(unittest.TestCase):
    def setUp(self) -> None:
        root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, root)
        self.path = str(pathlib.Path(root) / "agent.sock")

    def deny(self, times: int) -> threading.Thread:
        """An agent that refuses a user: it closes connections at once or after HELLO."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.path)
        listener.listen(times)
        listener.settimeout(20)

        def serve() -> None:
            with listener:
                for i in range(times):
                    connection, _ = listener.accept()
                    if i % 2:
                        connection.recv(1 << 16)  # the peer then gets another error
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        return thread

    def start(self) -> Keeper:
        keeper = Keeper(self.path, None)
        self.addCleanup(keeper.close)
        keeper.start(HelloFields("e", 1, 0, incarnation=1, namespace=dict(NAMESPACE)))
        return keeper

    def test_a_user_who_is_not_served_is_told_once_and_where_to_look(self) -> None:
        agent = self.deny(5)
        with self.assertLogs("blockyard.keeper", logging.INFO) as logs:
            keeper = self.start()
            agent.join(20)
            keeper.close()
        denials = [r for r in logs.records if "--allow-uid" in r.getMessage()]
        self.assertEqual(len(denials), 1, logs.output)
        self.assertEqual(denials[0].levelno, logging.WARNING)
        self.assertIn(f"uid {os.getuid()} ", denials[0].getMessage())
        self.assertGreaterEqual(keeper.refusals, 4)

    def test_an_agent_that_stays_away_is_warned_of_once(self) -> None:
        with (
            mock.patch.object(keeper_module, "_ABSENT_SECONDS", 0.2),
            mock.patch.object(keeper_module, "_MAX_BACKOFF", 0.05),
            self.assertLogs("blockyard.keeper", logging.INFO) as logs,
        ):
            tries = mock.patch.object(keeper_module, "Link", side_effect=FileNotFoundError("x"))
            with tries as link:
                keeper = self.start()
                until = time.monotonic() + 20
                while link.call_count < 12 and time.monotonic() < until:
                    time.sleep(0.01)
                keeper.close()
        levels = [record.levelno for record in logs.records]
        self.assertEqual(levels, [logging.INFO, logging.WARNING], logs.output)
        self.assertIn("still no agent", logs.output[1])


if __name__ == "__main__":
    unittest.main()
