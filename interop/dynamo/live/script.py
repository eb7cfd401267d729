"""What happens to our engines in every case in which others read us."""

from __future__ import annotations

from collections.abc import Callable

from live.compare import View, agree, on_device
from live.overlap import NOTHING, Overlaps, Worker
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
            lambda f: all(on_device(f, "first", w) == 8 for w in self._ranks)
            and on_device(f, "other", self._ranks[0]) == 5,
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
            lambda f: not any(on_device(f, p, self._ranks[0]) for p in self.prompts)
            and self.in_host(f),
        )

    def more(self, what: str) -> None:
        """Some requests, old and new, and what is credited after them."""
        name = self._play(what)
        self.agree(what, lambda f: all(on_device(f, name, w) == 6 for w in self._ranks))

    def more_without_tokens(self, what: str) -> None:
        """As more(), for readers of a format that says blocks with their tokens, when we have
        forgotten the tokens of what is in host memory alone: of that, less is credited than we
        know of, and never more; what the engines have used since is credited in full."""
        name = self._play(what)
        earlier = {p: t for p, t in self.prompts.items() if p not in (name, "first")}
        self.prompts = {p: self.prompts[p] for p in (name, "first")}
        self.agree(what, lambda f: all(on_device(f, name, w) == 6 for w in self._ranks))
        for prompt, tokens in earlier.items():
            known = self._yard.overlaps(tokens)
            for view, said in ((v, read(tokens)) for v, read in self.views.items()):
                for w, o in said.items():
                    most = known.get(w, NOTHING)
                    assert all(a <= b for a, b in zip(o, most)), f"{view}, {prompt}: {o} of {most}"
        self.prompts |= earlier

    def _play(self, what: str) -> str:
        name = f"after {what}"
        self.prompts[name] = self._place.prompt(6)
        for rank in range(len(self._ranks)):
            self._yard.generate(rank, self.prompts[name])
            self._yard.generate(rank, self.prompts["first"])
        return name

    @property
    def credited(self) -> int:
        """Blocks that our router credits over all prompts and workers."""
        found = (self._yard.overlaps(tokens) for tokens in self.prompts.values())
        return sum(o.disk for x in found for o in x.values())
