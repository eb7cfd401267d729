"""Figures of runs that outlive their process, so that a measurement can go on where it ended."""

from __future__ import annotations

import json
import pathlib

from serve.report import Figures


class Kept:
    """The runs of a directory's file, a JSON object a line. Those with other settings do not count."""

    def __init__(self, directory: pathlib.Path | None, settings: dict[str, int]) -> None:
        self._settings = settings
        self._path = directory / "runs.jsonl" if directory else None
        self._found: dict[tuple[str, str, int], Figures] = {}
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                run = json.loads(line)
                if run["settings"] == settings:
                    self._found[run["tier"], run["router"], run["seed"]] = Figures(**run["figures"])

    def get(self, tier: str, router: str, seed: int) -> Figures | None:
        """The figures of a run; None for a run that is still to be made."""
        return self._found.get((tier, router, seed))

    def add(self, tier: str, router: str, seed: int, figures: Figures) -> None:
        """Keeps the figures of a run."""
        self._found[tier, router, seed] = figures
        if self._path is None:
            return
        run = {"tier": tier, "router": router, "seed": seed, "settings": self._settings}
        with self._path.open("a") as file:
            file.write(json.dumps({**run, "figures": figures._asdict()}) + "\n")
