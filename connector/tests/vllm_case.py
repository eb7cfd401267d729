"""The base of tests of the vLLM scheduler role: a session that records its calls."""

from __future__ import annotations

import unittest
from collections.abc import Sequence
from types import SimpleNamespace as Bag
from typing import Any

from blockyard.request import Hit
from blockyard.settings import Settings
from blockyard.work import EMPTY_WORK, Work
from tests import vllm_fakes as fakes
from tests.vllm_fakes import request

fakes.require_vllm()

from blockyard.vllm.scheduler import VllmScheduler  # noqa: E402

TOKENS = 4


class FakeSession:
    """Records its calls. The test sets the results. broken: name of a call that raises."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.answer: Hit | None = Hit(0, b"")
        self.loads = True
        self.loading = False  # a load is in flight
        self.working = True  # the answer of busy()
        self.granted = 0
        self.room = True
        self.work = EMPTY_WORK
        self.broken = ""

    def __getattr__(self, name: str) -> Any:
        if name == "connected":
            return True

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == self.broken:
                raise RuntimeError(f"{name} is broken")
            self.calls.append((name, *args))
            answers = {"hit": self.answer, "load": self.loads, "busy": self.working, "reset": True}
            answers["counted"] = (0,) * len(args[0]) if name == "counted" else ()
            return answers.get(name)

        return call

    def computed(self, rid: str, generation: int, blocks: int, ids: Sequence[Any]) -> bool:
        if self.broken == "computed":
            raise RuntimeError("computed is broken")
        self.calls.append(("computed", rid, generation, blocks, [list(g[:blocks]) for g in ids]))
        return self.room

    def take_work(self, free: bool = True) -> Work:
        if self.broken == "take_work":
            raise RuntimeError("take_work is broken")
        return self.take_loads()

    def take_loads(self) -> Work:
        work, self.work = self.work, EMPTY_WORK
        return work

    def take(self, name: str) -> list[tuple]:
        """The arguments of the calls of `name` since the last take()."""
        found = [call[1:] for call in self.calls if call[0] == name]
        self.calls = [call for call in self.calls if call[0] != name]
        return found


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.session = FakeSession()
        self.make()

    def make(self, groups: int = 1, **settings: Any) -> None:
        self.side = VllmScheduler(Settings(**settings), self.session, TOKENS, groups)

    def open(self, tokens: int, **changes: Any) -> Any:
        made = request(tokens, **changes)
        self.side.on_new_request(made)
        return made

    def alloc(self, req: Any, tokens: int, *groups: Sequence[int]) -> None:
        self.side.update_state_after_alloc(req, Bag(get_block_ids=lambda: groups), tokens)

    def advance(self, req: Any, tokens: int) -> None:
        """Counts `tokens` more tokens as computed, as vLLM does after a step."""
        req.num_computed_tokens += tokens
