"""Golden frames: from docs/protocol.md and from the agent's own tests."""

from __future__ import annotations

import pathlib
import re

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_PRINTED = re.compile(r"```frame\n([A-Z_]+)\n([0-9a-f\s]+)```")
_FROZEN = re.compile(r"^([A-Z_]+) ([0-9a-f]+)((?:\n  [0-9a-f]+)*)", re.MULTILINE)


def printed() -> list[tuple[str, bytes]]:
    """Name and bytes of every frame in docs/protocol.md, in order."""
    text = (_REPOSITORY / "docs" / "protocol.md").read_text(encoding="utf-8")
    return [(name, bytes.fromhex(hexes)) for name, hexes in _PRINTED.findall(text)]


def frozen() -> list[tuple[str, bytes]]:
    """Name and bytes of every frame in the agent's golden file: one of each type."""
    text = (_REPOSITORY / "internal" / "proto" / "testdata" / "frames.txt").read_text()
    return [(name, bytes.fromhex(head + body)) for name, head, body in _FROZEN.findall(text)]
