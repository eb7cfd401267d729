"""What happens to our engines in every case in which others read us."""

from __future__ import annotations

from collections.abc import Callable

from live.compare import View, agree
from live.overlap import Overlaps, Worker
from live.place import BLOCK, Place
from live.yard import Yard

Prompts = dict[str, list[int]]


class Script:
    """Plays requests on a yard's engines and compares what our router says with `views`, which
    the case may add to."""

    def __init__(self, place: Place, yard: Yard, worker: int, ranks: int) -> None:
        self._place, self._yard = place, yard
        self._ranks = [Worker(worker, rank) for rank in range(ranks)]
        self.views: dict[str, View] = {"ours": yard.overlaps}
        self.prompts: Prompts = {}

    def agree(
        self, what: str, holds: Callable[[dict[str, Overlaps]], bool] = lambda _: True
    ) -> dict[str, Overlaps]:
        """Lets the engines and our router settle and waits until every view says the same."""
        self._yard.settle()
        # A record of a source that was killed makes its rank ambiguous for up to 11 s.
        return agree(what, self.views, self.prompts, holds, 40.0)

    def stores(self) -> None:
        """New prompts and one that shares a prefix, on every rank."""
        self.prompts["first"] = self._place.prompt(8)
        self.prompts["branch"] = self.prompts["first"][: 4 * BLOCK] + self._place.prompt(4)
        self.prompts["other"] = self._place.prompt(5)
        for rank in range(len(self._ranks)):
            self._yard.generate(rank, self.prompts["first"])
            self._yard.generate(rank, self.prompts["branch"])
        self._yard.generate(0, self.prompts["other"])
        self.agree(
            "stores",
            lambda f: all(f["first"][w].device == 8 for w in self._ranks)
            and f["other"][self._ranks[0]].device == 5,
        )

    def removals(self) -> None:
        """So many prompts that blocks leave the devices and stay in host memory."""
        for i in range(8):
            self.prompts[f"fill {i}"] = self._place.prompt(7)
            self._yard.generate(i % len(self._ranks), self.prompts[f"fill {i}"], output=20)
        self.agree("removals from the device", self.in_host)

    @staticmethod
    def in_host(found: dict[str, Overlaps]) -> bool:
        """Whether some worker is credited for blocks in host memory beyond its device."""
        return any(o.host > o.device for x in found.values() for o in x.values())

    def clears(self) -> None:
        """One engine's cache is reset: its device is empty and host memory is not."""
        self._yard.reset(0)
        self._yard.generate(0, self._place.prompt(1))  # the reset is said with the next step
        self.agree(
            "a clear",
            lambda f: all(f[p].get(self._ranks[0], (0,))[0] == 0 for p in self.prompts)
            and self.in_host(f),
        )

    def more(self, what: str) -> None:
        """Some requests, old and new, and what is credited after them."""
        name = f"after {what}"
        self.prompts[name] = self._place.prompt(6)
        for rank in range(len(self._ranks)):
            self._yard.generate(rank, self.prompts[name])
            self._yard.generate(rank, self.prompts["first"])
        self.agree(what, lambda f: all(f[name][w].device == 6 for w in self._ranks))

    @property
    def credited(self) -> int:
        """Blocks that our router credits over all prompts and workers."""
        found = (self._yard.overlaps(tokens) for tokens in self.prompts.values())
        return sum(o.disk for x in found for o in x.values())
