"""Decodes the part of MessagePack that the native event stream uses."""

from __future__ import annotations

import struct
from typing import Any

_FIXED = {
    0xCA: ">f", 0xCB: ">d",
    0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
# Type byte -> (format of the length, type of the value).
_SIZED = {
    0xC4: (">B", "bin"), 0xC5: (">H", "bin"), 0xC6: (">I", "bin"),
    0xD9: (">B", "str"), 0xDA: (">H", "str"), 0xDB: (">I", "str"),
    0xDC: (">H", "array"), 0xDD: (">I", "array"),
    0xDE: (">H", "map"), 0xDF: (">I", "map"),
}  # fmt: skip
MAX_DEPTH = 32


def unpack(data: bytes) -> Any:
    """The value of a message. ValueError for anything else than one value."""
    try:
        value, end = _value(data, 0, 0)
    except (IndexError, struct.error) as err:
        raise ValueError("message ends in the middle of a value") from err
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes after the value")
    return value


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    tag = data[at]
    at += 1
    if tag <= 0x7F:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag <= 0x8F:
        return _sequence("map", data, at, tag & 0x0F, depth)
    if tag <= 0x9F:
        return _sequence("array", data, at, tag & 0x0F, depth)
    if tag <= 0xBF:
        return _bytes("str", data, at, tag & 0x1F)
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    if tag in _FIXED:
        layout = _FIXED[tag]
        return struct.unpack_from(layout, data, at)[0], at + struct.calcsize(layout)
    if tag in _SIZED:
        layout, kind = _SIZED[tag]
        (size,) = struct.unpack_from(layout, data, at)
        at += struct.calcsize(layout)
        if kind in ("bin", "str"):
            return _bytes(kind, data, at, size)
        return _sequence(kind, data, at, size, depth)
    raise ValueError(f"type byte {tag:#04x}: the stream does not use it")


def _bytes(kind: str, data: bytes, at: int, size: int) -> tuple[Any, int]:
    raw = data[at : at + size]
    if len(raw) != size:
        raise ValueError("message ends in the middle of a string")
    return (raw.decode() if kind == "str" else raw), at + size


def _sequence(kind: str, data: bytes, at: int, size: int, depth: int) -> tuple[Any, int]:
    if size > len(data) - at:
        raise ValueError(f"{kind} of {size} in {len(data) - at} bytes")
    items: list[Any] = []
    for _ in range(size * (2 if kind == "map" else 1)):
        item, at = _value(data, at, depth + 1)
        items.append(item)
    if kind == "array":
        return items, at
    return dict(zip(items[::2], items[1::2], strict=True)), at
