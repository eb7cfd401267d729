"""Compares the credit that several routers give to workers, until all agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from live.child import wait_until
from live.overlap import NOTHING, Overlaps, Worker

View = Callable[[list[int]], Overlaps]


def on_device(found: Mapping[str, Overlaps], prompt: str, worker: Worker) -> int:
    """The worker's credit for a prompt's blocks on its device."""
    return found[prompt].get(worker, NOTHING).device


def agree(
    what: str,
    views: Mapping[str, View],
    prompts: Mapping[str, list[int]],
    holds: Callable[[dict[str, Overlaps]], bool] = lambda _: True,
    seconds: float = 15.0,
) -> dict[str, Overlaps]:
    """Waits until all views give equal overlaps for every prompt and holds() is true of them.

    Returns the overlaps by prompt. After `seconds`: AssertionError with a table of all views.
    """
    last: dict[str, dict[str, Overlaps]] = {}

    def same() -> bool:
        for name, tokens in prompts.items():
            last[name] = {v: view(tokens) for v, view in views.items()}
        agreed = all(len({_frozen(o) for o in by_view.values()}) == 1 for by_view in last.values())
        return agreed and holds(_first(last))

    wait_until(lambda: f"{what}\n{_table(last)}", same, seconds)
    return _first(last)


def _first(last: dict[str, dict[str, Overlaps]]) -> dict[str, Overlaps]:
    return {name: next(iter(by_view.values())) for name, by_view in last.items()}


def _frozen(o: Overlaps) -> frozenset:
    return frozenset(o.items())


def _table(last: dict[str, dict[str, Overlaps]]) -> str:
    lines = []
    for name, by_view in last.items():
        mark = " " if len({_frozen(o) for o in by_view.values()}) == 1 else "!"
        lines.append(f"{mark} prompt {name}")
        for view, overlaps in by_view.items():
            shown = ", ".join(
                f"{w.id:x}/{w.rank}: device {o.device} host {o.host} disk {o.disk}"
                for w, o in sorted(overlaps.items())
            )
            lines.append(f"    {view:<12} {shown or 'no credit'}")
    return "\n".join(lines)
