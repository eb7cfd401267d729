"""The requests and checks of the cases in which Dynamo reads Blockyard."""

from __future__ import annotations

from collections.abc import Callable

from live.child import wait_until
from live.compare import View, agree, on_device
from live.overlap import NOTHING, Overlaps, Worker
from live.testbed import BLOCK, TestBed
from live.cluster import Cluster

Prompts = dict[str, list[int]]


class Script:
    """Runs requests on a cluster's engines, and compares Blockyard's router with other routers.

    views: the compared routers by name. A case adds Dynamo's routers.
    """

    def __init__(self, bed: TestBed, cluster: Cluster, worker: int, ranks: int) -> None:
        self._bed, self._cluster = bed, cluster
        self._ranks = [Worker(worker, rank) for rank in range(ranks)]
        self.views: dict[str, View] = {"ours": cluster.overlaps}
        self.prompts: Prompts = {}

    def agree(
        self, what: str, holds: Callable[[dict[str, Overlaps]], bool] = lambda _: True
    ) -> dict[str, Overlaps]:
        """Waits until engines and router are idle and all views agree."""
        self._cluster.settle()
        # The record of a killed source makes its rank ambiguous for up to 11 s.
        return agree(what, self.views, self.prompts, holds, 40.0)

    def stores(self) -> None:
        """Runs new prompts and one with a shared prefix on every rank."""
        self.prompts["first"] = self._bed.prompt(8)
        self.prompts["branch"] = self.prompts["first"][: 4 * BLOCK] + self._bed.prompt(4)
        self.prompts["other"] = self._bed.prompt(5)
        for rank in range(len(self._ranks)):
            self._cluster.generate(rank, self.prompts["first"])
            self._cluster.generate(rank, self.prompts["branch"])
        self._cluster.generate(0, self.prompts["other"])
        self.agree(
            "stores",
            lambda f: all(on_device(f, "first", w) == 8 for w in self._ranks)
            and on_device(f, "other", self._ranks[0]) == 5,
        )

    def removals(self) -> None:
        """Runs prompts until blocks leave the devices and remain in host memory."""
        for i in range(8):
            self.prompts[f"fill {i}"] = self._bed.prompt(7)
            self._cluster.generate(i % len(self._ranks), self.prompts[f"fill {i}"], output=20)
        self.agree("removals from the device", self.in_host)

    @staticmethod
    def in_host(found: dict[str, Overlaps]) -> bool:
        """Whether a worker has credit for blocks that are only in host memory."""
        return any(o.host > o.device for x in found.values() for o in x.values())

    def clears(self) -> None:
        """Resets one engine's cache: its device is empty, and host memory is not."""
        self._cluster.reset(0)
        self._cluster.generate(0, self._bed.prompt(1))  # publishes the reset's event
        self.agree(
            "a clear",
            lambda f: not any(on_device(f, p, self._ranks[0]) for p in self.prompts)
            and self.in_host(f),
        )

    def more(self, what: str) -> None:
        """Runs an old and a new prompt on every rank, and compares the credit after `what`."""
        name = self._play(what)
        self.agree(what, lambda f: all(on_device(f, name, w) == 6 for w in self._ranks))

    def more_without_tokens(self, what: str) -> None:
        """more() for a format whose events carry tokens, after a loss of tokens.

        The agent has lost the tokens of all earlier blocks. The readers may give such blocks less
        credit than our router, but not more. Blocks that engines have asked the new agent for have
        full credit, so every engine must have a session with it.
        """
        name = self._play(what)
        earlier = {p: t for p, t in self.prompts.items() if p not in (name, "first")}
        self.prompts = {p: self.prompts[p] for p in (name, "first")}
        self._cluster.settle()
        # A reader shows what it had before the restart until it gets the new agent's state.
        wait_until(lambda: self._excess(earlier), lambda: not self._excess(earlier))
        self.agree(what, lambda f: all(on_device(f, name, w) == 6 for w in self._ranks))
        self.prompts |= earlier

    def _excess(self, prompts: Prompts) -> str:
        """Where a reader gives more credit for prompts than our router. Empty: nowhere."""
        for prompt, tokens in prompts.items():
            known = self._cluster.overlaps(tokens)
            for view, read in self.views.items():
                for w, o in read(tokens).items():
                    most = known.get(w, NOTHING)
                    if any(a > b for a, b in zip(o, most)):
                        return f"{view}, {prompt}, rank {w.rank}: {o}, want at most {most}"
        return ""

    def _play(self, what: str) -> str:
        name = f"after {what}"
        self.prompts[name] = self._bed.prompt(6)
        for rank in range(len(self._ranks)):
            self._cluster.generate(rank, self.prompts[name])
            self._cluster.generate(rank, self.prompts["first"])
        return name

    @property
    def credited(self) -> int:
        """The sum of our router's credit over all prompts and workers, in blocks."""
        found = (self._cluster.overlaps(tokens) for tokens in self.prompts.values())
        return sum(o.disk for x in found for o in x.values())
