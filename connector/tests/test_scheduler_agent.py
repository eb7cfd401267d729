"""The scheduler side with a real agent: stores, loads, deaths at every frame, DRAIN, RESET."""

from __future__ import annotations

import logging
import pathlib
import signal
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from blockyard import frames
from blockyard.namespace import Identity
from blockyard.transport import Link
from blockyard.work import Work
from tests.agentproc import AgentProcess, needs_agent, wait_until
from tests.schedrig import Rig, contents

TOKENS = list(range(100, 140))  # 10 blocks


class KillingLink(Link):
    """A link that calls a function before or after it sends the n-th frame."""

    act: Callable[[], None]
    at = -1
    after = False
    sent = 0

    def _send(self, frame_type: int, corr: int, body: bytes) -> None:
        cls = KillingLink
        if frame_type == frames.STATS:
            return
        cls.sent += 1
        hit = cls.sent == cls.at
        if hit and not cls.after:
            cls.act()
        super()._send(frame_type, corr, body)
        if hit and cls.after:
            cls.act()


@needs_agent
class WithAgent(unittest.TestCase):
    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def agent(self, **options: Any) -> AgentProcess:
        agent = AgentProcess(**options)
        self.addCleanup(agent.close)
        return agent

    def rig(self, agent: AgentProcess, connect: bool = True, **options: Any) -> Rig:
        rig = Rig(agent, **options)
        self.addCleanup(rig.close)
        if connect:
            rig.connect()
        return rig

    def sealed(self, agent: AgentProcess, blocks: int) -> None:
        def enough() -> bool:
            pools = agent.stats()["pools"]
            host = pools[0]["host"] if pools else {"inactive": 0, "active": 0}
            return host["inactive"] + host["active"] >= blocks

        wait_until(f"{blocks} blocks are sealed", enough)

    def disconnected(self, rig: Rig) -> bool:
        rig.session.take_work()
        return not rig.session.stats()["connected"]

    def stored(self, rig: Rig) -> int:
        rig.session.take_work()
        return rig.session.stats()["stored_blocks"]

    def test_what_one_request_stores_another_loads(self) -> None:
        rig = self.rig(self.agent())
        rig.store("a", TOKENS)
        self.assertEqual(rig.load("b", TOKENS), 10)
        self.assertEqual(rig.load("c", TOKENS[:23]), 5, "a shorter prompt hits its complete blocks")
        self.assertEqual(rig.load("d", TOKENS, Identity(salt="s")), 0, "another salt hits")
        self.assertFalse(rig.blocks.refs)

    def test_two_engines_share_a_pool(self) -> None:
        agent = self.agent()
        first, second = self.rig(agent), self.rig(agent, worker_id=8)
        first.store("a", TOKENS)
        self.assertEqual(second.load("b", TOKENS), 10)

    def test_prompts_of_more_blocks_than_a_frame_has(self) -> None:
        """13,000 tokens are 3,250 blocks and need several LOOKUPs, CLAIMs and STOREs."""
        rig = self.rig(self.agent())
        tokens = [7 * i % 50000 for i in range(13000)]
        rig.store("a", tokens)
        self.assertEqual(rig.load("b", tokens), 3250)
        self.assertEqual(rig.session.stats()["errors"], 0)

    def test_blocks_on_disk_are_waited_for(self) -> None:
        agent = self.agent(disk_size="64MiB", flags=["--disk-filter=none", "--no-prefetch"])
        rig = self.rig(agent)
        rig.store("a", TOKENS)
        wait_until("all is on disk", lambda: agent.stats()["pools"][0]["disk"]["inactive"] >= 10)
        agent.post("/v1/reset", {"tier": "host"})
        self.assertEqual(rig.load("b", TOKENS), 10)
        self.assertGreaterEqual(agent.stats()["pools"][0]["promotions"], 10)

    def test_preempted_while_storing(self) -> None:
        """Grants and references of the old generation remain. The new one is looked up again."""
        rig = self.rig(self.agent())
        session = rig.session
        session.open("a", 0, TOKENS)
        self.assertEqual(rig.hit("a"), 0)
        ids = rig.fill(TOKENS)
        self.assertTrue(session.computed("a", 0, 10, [ids]))
        work = wait_until("the grant", session.take_work)
        self.assertEqual(rig.hit("a", 1), 0)  # preempted: the engine computes the blocks again
        self.assertTrue(session.busy())
        self.assertEqual(len(rig.blocks.refs), 10)
        session.settle(rig.worker.copy(work))
        self.assertFalse(rig.blocks.refs)
        session.finished("a")
        self.assertEqual(rig.load("b", TOKENS), 10)
        self.assertEqual(session.stats()["errors"], 0)

    def test_aborted_while_loading(self) -> None:
        """The pins stay until the copy has ended, and are released once."""
        agent = self.agent()
        rig = self.rig(agent)
        rig.store("a", TOKENS)
        rig.session.open("b", 0, TOKENS)
        n = rig.hit("b")
        self.assertTrue(rig.session.load("b", 0, 0, [rig.device_blocks(n)]))
        work = rig.session.take_work()
        rig.session.finished("b")
        wait_until("the claim is known", lambda: rig.worker.poll() or rig.worker.loads)
        self.assertEqual(agent.stats()["pools"][0]["pins"], 10)
        rig.session.settle(rig.worker.copy(work))
        wait_until("no pins", lambda: agent.stats()["pools"][0]["pins"] == 0)
        self.assertFalse(rig.session.busy())

    def test_a_failed_load_is_a_miss_for_its_generation(self) -> None:
        rig = self.rig(self.agent())
        rig.store("a", TOKENS)
        session = rig.session
        session.open("b", 0, TOKENS)
        n = rig.hit("b")
        session.load("b", 0, 0, [rig.device_blocks(n)])
        work = session.take_work()
        done = rig.worker.copy(work)
        done.jobs = {job: [0, 1] for job in done.jobs}
        session.settle(done)
        for _ in range(3):
            self.assertEqual(session.hit("b", 0, 0).blocks, 0)
        rig.store("c", list(range(5000, 5008)))  # proves that the workers can copy
        self.assertEqual(rig.hit("b", 1), 10, "the next generation asks again")

    def test_killed_at_every_frame(self) -> None:
        """kill -9 before and after each frame of a store and a load. Then all works again."""
        for after in (False, True):
            for at in range(1, 15):
                with self.subTest(frame=at, after=after):
                    self.kill_at(at, after)

    def kill_at(self, at: int, after: bool) -> None:
        patched = mock.patch("blockyard.keeper.Link", KillingLink)
        with AgentProcess(host_size="16MiB") as agent, patched:
            KillingLink.act, KillingLink.after = agent.kill9, after
            KillingLink.sent, KillingLink.at = 0, at
            rig = Rig(agent)
            try:
                self.serve(rig)
                KillingLink.at = -1
                if not agent.pid:
                    agent.start()
                self.assertFalse(rig.blocks.refs)
                self.assertFalse(rig.session.busy())
                rig.connect()
                found = rig.load("again", TOKENS)  # checks every loaded byte
                rig.store("more", TOKENS)
                self.sealed(agent, 10)
                self.assertEqual(rig.load("last", TOKENS), 10, f"found {found} after the restart")
                self.assertFalse(rig.blocks.refs)
            finally:
                rig.close()

    def serve(self, rig: Rig) -> None:
        """A store and a load of an engine that ignores all faults of the agent."""
        session = rig.session

        def ready() -> bool:
            session.take_work()
            return session.stats()["connected"] == 1 or not rig.agent.pid

        wait_until("connected or dead", ready)
        if rig.agent.pid:
            rig.worker.connect()
        for rid in ("a", "b"):
            session.open(rid, 0, TOKENS)
            n = rig.hit(rid)
            ids = rig.fill(TOKENS)
            if n:
                session.load(rid, 0, 0, [ids[:n]])
                rig.drain()
                self.assertEqual([rig.worker.device[b] for b in ids], contents(TOKENS))
            session.computed(rid, 0, 10, [ids])
            rig.drain()
            session.finished(rid)

    def test_copies_in_flight_outlive_the_agent(self) -> None:
        """Stores that end before and after the restart are committed and hit."""
        agent = self.agent()
        rig = self.rig(agent)
        session = rig.session
        other = list(range(500, 540))
        for rid, tokens in (("early", TOKENS), ("late", other)):
            session.open(rid, 0, tokens)
            rig.hit(rid)
            self.assertTrue(session.computed(rid, 0, 10, [rig.fill(tokens)]))
        works = []

        def granted() -> bool:
            works.append(session.take_work())
            return sum(len(work.stores) for work in works) == 2

        wait_until("both grants", granted)
        stores = [store for work in works for store in work.stores]
        agent.kill9()
        early, late = (Work(stores=[store]) for store in stores)
        done = rig.worker.copy(early)
        wait_until("the loss is known", lambda: self.disconnected(rig))
        session.settle(done)
        agent.start()
        rig.connect()
        session.settle(rig.worker.copy(late))
        rig.drain()
        self.assertFalse(rig.blocks.refs)
        wait_until("COMMIT is answered", lambda: self.stored(rig) == 20)
        for tokens in (TOKENS, other):
            self.assertEqual(rig.load(f"hit {tokens[0]}", tokens), 10)
        self.assertEqual(session.stats()["resumed_blocks"], 20)
        self.assertEqual(agent.stats()["engines"]["resumed_grants"], 20)

    def test_load_in_flight_outlives_the_agent(self) -> None:
        agent = self.agent()
        rig = self.rig(agent)
        rig.store("a", TOKENS)
        self.sealed(agent, 10)
        session = rig.session
        session.open("b", 0, TOKENS)
        ids = rig.device_blocks(rig.hit("b"))
        self.assertTrue(session.load("b", 0, 0, [ids]))
        work = session.take_work()
        agent.restart()
        rig.wait_connected()
        self.assertEqual(agent.stats()["engines"]["resumed_pins"], 10)
        session.settle(rig.worker.copy(work))
        self.assertEqual([rig.worker.device[b] for b in ids], contents(TOKENS))
        wait_until("no pins", lambda: rig.step() is None or agent.stats()["pools"][0]["pins"] == 0)

    def test_idle_engine_resumes_and_hits_after_a_restart(self) -> None:
        """No call of the session happens during the agent's restart. The first request hits."""
        agent = self.agent()
        rig = self.rig(agent)
        rig.store("a", TOKENS)
        self.sealed(agent, 10)
        agent.restart()
        wait_until("a session", lambda: agent.stats()["sessions"] == 1)
        rig.worker.poll()
        rig.connect()
        self.assertEqual(rig.load("b", TOKENS), 10)

    def test_drain_says_bye_when_copies_have_ended(self) -> None:
        agent = self.agent(flags=["--drain-timeout=20s"])
        rig = self.rig(agent)
        session = rig.session
        session.open("a", 0, TOKENS)
        rig.hit("a")
        session.computed("a", 0, 10, [rig.fill(TOKENS)])
        work = wait_until("the grant", session.take_work)
        agent.signal(signal.SIGTERM)
        wait_until("DRAIN", lambda: self.disconnected(rig))
        session.open("late", 0, TOKENS)
        self.assertEqual(rig.hit("late"), 0)
        self.assertTrue(session.busy())
        session.settle(rig.worker.copy(work))
        self.assertEqual(agent.wait_gone(10), 0)
        self.assertFalse(session.busy())
        self.assertFalse(rig.blocks.refs)
        agent.start()
        rig.connect()
        self.assertEqual(rig.load("b", TOKENS), 10, "what was settled while draining is kept")

    def test_drain_of_an_idle_engine(self) -> None:
        """BYE is sent without a call of the session, so the agent does not wait."""
        agent = self.agent(flags=["--drain-timeout=20s"])
        rig = self.rig(agent)
        rig.store("a", TOKENS)
        rig.drain()
        rig.session.take_work()
        agent.signal(signal.SIGTERM)
        self.assertEqual(agent.wait_gone(10), 0)

    def test_reset_leaves_nothing_to_hit(self) -> None:
        agent = self.agent()
        rig = self.rig(agent)
        session = rig.session
        rig.store("a", TOKENS)
        session.open("running", 0, TOKENS)
        self.assertEqual(rig.hit("running"), 10)
        self.assertTrue(session.reset())
        self.assertEqual(session.hit("running", 0, 0).blocks, 0)
        rig.wait_connected()
        rig.connect()
        session.computed("running", 0, 10, [rig.fill(TOKENS)])
        rig.drain()
        self.assertEqual(rig.load("b", TOKENS), 0)
        rig.store("c", TOKENS)
        self.assertEqual(rig.load("d", TOKENS), 10)
        self.assertEqual(agent.stats()["engines"]["resets"], 1)
        self.assertEqual(session.stats()["errors"], 0)

    def test_reset_while_storing_stores_nothing(self) -> None:
        agent = self.agent()
        rig = self.rig(agent)
        session = rig.session
        session.open("a", 0, TOKENS)
        rig.hit("a")
        session.computed("a", 0, 10, [rig.fill(TOKENS)])
        work = wait_until("the grant", session.take_work)
        session.reset()
        session.settle(rig.worker.copy(work))
        self.assertFalse(session.busy())
        rig.wait_connected()
        self.assertEqual(session.stats()["stored_blocks"], 0)
        self.assertEqual(agent.stats()["engines"]["commits"], 0)

    def test_no_agent_costs_nothing(self) -> None:
        """Without an agent every call returns at once with a miss, and no block is held."""
        agent = self.agent()
        agent.kill9()
        rig = self.rig(agent, connect=False)
        rig.session.open("a", 0, TOKENS)
        self.assertEqual(rig.session.hit("a", 0, 0).blocks, 0)
        self.assertTrue(rig.session.computed("a", 0, 10, [rig.device_blocks(10)]))
        self.assertFalse(rig.blocks.refs)
        self.assertFalse(rig.session.take_work())
        rig.session.finished("a")
        agent.start()
        rig.connect()
        rig.store("b", TOKENS)
        self.assertEqual(rig.load("c", TOKENS), 10)

    def test_an_agent_that_does_not_answer_is_not_waited_for(self) -> None:
        agent = self.agent()
        rig = self.rig(agent)
        agent.signal(signal.SIGSTOP)
        tasks = pathlib.Path(f"/proc/{agent.pid}/task")

        def stopped() -> bool:
            stats = [task.joinpath("stat").read_text() for task in tasks.iterdir()]
            return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

        wait_until("every thread of the agent has stopped", stopped)
        rig.session.open("a", 0, TOKENS)
        self.assertEqual(rig.hit("a"), 0)
        rig.session.open("b", 0, TOKENS)
        self.assertEqual(rig.session.hit("b", 0, 0).blocks, 0, "one overdue answer is enough")
        agent.signal(signal.SIGCONT)

        def stores() -> bool:
            rig.store("c", TOKENS)
            return rig.load("d", TOKENS) == 10

        wait_until("the agent is used again", stores)


if __name__ == "__main__":
    unittest.main()
