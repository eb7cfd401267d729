"""The part of msgpack that the connector protocol uses.

encode() writes every value in its shortest form, like the agent. decode() reads any msgpack value,
because an unknown key of a map may have any value. decode() allocates no more than the input
justifies, and refuses nesting deeper than MAX_DEPTH.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_DEPTH = 8
MAX_UINT = 2**64 - 1


class MsgpackError(ValueError):
    """The bytes are not one complete msgpack value within the bounds."""


class Ext(NamedTuple):
    """A value of an application's own type. The protocol skips such values."""

    code: int
    data: bytes


_SMALL = tuple(bytes((n,)) for n in range(128))
_pack_8 = struct.Struct(">BB").pack
_pack_16 = struct.Struct(">BH").pack
_pack_32 = struct.Struct(">BI").pack
_pack_64 = struct.Struct(">BQ").pack


def uint(n: int) -> bytes:
    """The shortest form of an integer of 0..2^64-1; ValueError for any other."""
    if 0 <= n < 0x80:
        return _SMALL[n]
    if 0 <= n <= 0xFFFFFFFF:
        if n <= 0xFF:
            return _pack_8(0xCC, n)
        if n <= 0xFFFF:
            return _pack_16(0xCD, n)
        return _pack_32(0xCE, n)
    if 0 <= n <= MAX_UINT:
        return _pack_64(0xCF, n)
    raise ValueError(f"integer: {n} is not in 0..{MAX_UINT}")


def text(s: str) -> bytes:
    """A string, UTF-8."""
    b = s.encode()
    n = len(b)
    if n < 32:
        return bytes((0xA0 | n,)) + b
    return _head(n, 0xD9) + b


def binary(b: bytes) -> bytes:
    """A byte string."""
    return _head(len(b), 0xC4) + b


def _head(n: int, first: int) -> bytes:
    """Type byte and length. first: the type for 8-bit lengths, before those for 16 and 32 bits."""
    if n <= 0xFF:
        return _pack_8(first, n)
    if n <= 0xFFFF:
        return _pack_16(first + 1, n)
    return _pack_32(first + 2, n)


def encode(value: Any) -> bytes:
    """One value: bool, int (0..2^64-1), str, bytes, list or tuple, or a mapping with str keys.

    TypeError for any other type. ValueError for a value out of range or nested deeper than
    MAX_DEPTH.
    """
    out: list[bytes] = []
    _encode(value, out, MAX_DEPTH)
    return b"".join(out)


def _encode(value: Any, out: list[bytes], depth: int) -> None:
    if value is True or value is False:
        out.append(b"\xc3" if value else b"\xc2")
    elif isinstance(value, int):
        out.append(uint(value))
    elif isinstance(value, str):
        out.append(text(value))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        out.append(binary(bytes(value)))
    elif isinstance(value, (Mapping, list, tuple)):
        if depth == 0:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            _encode_map(value, out, depth - 1)
        else:
            n = len(value)
            out.append(bytes((0x90 | n,)) if n < 16 else _head_16_32(n, 0xDC))
            for item in value:
                _encode(item, out, depth - 1)
    else:
        raise TypeError(f"msgpack: {type(value).__name__} has no form here")


def _encode_map(value: Mapping[str, Any], out: list[bytes], depth: int) -> None:
    n = len(value)
    out.append(bytes((0x80 | n,)) if n < 16 else _head_16_32(n, 0xDE))
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError(f"msgpack: key {key!r} is no string")
        out.append(text(key))
        _encode(item, out, depth)


def _head_16_32(n: int, first: int) -> bytes:
    return _pack_16(first, n) if n <= 0xFFFF else _pack_32(first + 1, n)


def decode(data: bytes) -> Any:
    """The one value in data.

    MsgpackError when the value is cut off, followed by more bytes, nested deeper than MAX_DEPTH, or
    has a map key that is no string.
    """
    try:
        value, at = _decode(data, 0, MAX_DEPTH)
    except IndexError:  # the type byte itself is missing
        raise MsgpackError(f"cut off after {len(data)} bytes") from None
    if at != len(data):
        raise MsgpackError(f"{len(data) - at} bytes follow the value")
    return value


# Fixed-size scalars: type byte -> how they are read.
_SCALARS = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
# Types whose length follows in 8, 16 or 32 bits: type byte -> (kind, size of the length).
_SIZED = {
    0xC4: ("bin", 1),
    0xC5: ("bin", 2),
    0xC6: ("bin", 4),
    0xC7: ("ext", 1),
    0xC8: ("ext", 2),
    0xC9: ("ext", 4),
    0xD9: ("str", 1),
    0xDA: ("str", 2),
    0xDB: ("str", 4),
    0xDC: ("array", 2),
    0xDD: ("array", 4),
    0xDE: ("map", 2),
    0xDF: ("map", 4),
}


def _decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """The value at `at`, and the begin of the next value."""
    first = data[at]
    at += 1
    if first < 0x80:
        return first, at
    if first < 0x90:
        return _decode_map(data, at, first & 15, depth)
    if first < 0xA0:
        return _decode_array(data, at, first & 15, depth)
    if first < 0xC0:
        return _decode_str(data, at, first & 31)
    scalar = _SCALARS.get(first)
    if scalar is not None:
        end = _end(data, at, scalar.size)
        return scalar.unpack_from(data, at)[0], end
    if first >= 0xE0:
        return first - 0x100, at
    if first in _SIZED:
        return _decode_sized(data, at, first, depth)
    if first == 0xC2 or first == 0xC3:
        return first == 0xC3, at
    if first == 0xC0:
        return None, at
    if 0xD4 <= first <= 0xD8:  # ext of 1, 2, 4, 8, 16 bytes
        return _decode_ext(data, at, 1 << (first - 0xD4))
    raise MsgpackError(f"type byte {first:#x} at {at - 1} means nothing")


def _decode_sized(data: bytes, at: int, first: int, depth: int) -> tuple[Any, int]:
    kind, size = _SIZED[first]
    start = _end(data, at, size)
    n = int.from_bytes(data[at:start], "big")
    if kind == "bin":
        end = _end(data, start, n)
        return data[start:end], end
    if kind == "str":
        return _decode_str(data, start, n)
    if kind == "map":
        return _decode_map(data, start, n, depth)
    if kind == "array":
        return _decode_array(data, start, n, depth)
    return _decode_ext(data, start, n)


def _decode_str(data: bytes, at: int, n: int) -> tuple[str, int]:
    end = _end(data, at, n)
    try:
        return data[at:end].decode(), end
    except UnicodeDecodeError as err:
        raise MsgpackError(f"string at {at}: {err}") from None


def _decode_ext(data: bytes, at: int, n: int) -> tuple[Ext, int]:
    end = _end(data, at, n + 1)
    return Ext(data[at], data[at + 1 : end]), end


def _decode_array(data: bytes, at: int, n: int, depth: int) -> tuple[list[Any], int]:
    _check_room(data, at, n, depth)
    items = []
    for _ in range(n):
        item, at = _decode(data, at, depth - 1)
        items.append(item)
    return items, at


def _decode_map(data: bytes, at: int, n: int, depth: int) -> tuple[dict[str, Any], int]:
    _check_room(data, at, 2 * n, depth)
    items: dict[str, Any] = {}
    for _ in range(n):
        first = data[at]
        if 0xA0 <= first < 0xC0:
            key, at = _decode_str(data, at + 1, first & 31)
        else:
            key, at = _decode(data, at, depth - 1)
            if not isinstance(key, str):
                raise MsgpackError(f"map key {key!r:.40} before {at} is no string")
        items[key], at = _decode(data, at, depth - 1)
    return items, at


def _check_room(data: bytes, at: int, n: int, depth: int) -> None:
    """Raises MsgpackError for too deep nesting, or for more items than bytes are left."""
    if depth <= 0:
        raise MsgpackError(f"nested deeper than {MAX_DEPTH}")
    if n > len(data) - at:
        raise MsgpackError(f"{n} items at {at}, but {len(data) - at} bytes follow")


def _end(data: bytes, at: int, n: int) -> int:
    end = at + n
    if end > len(data):
        raise MsgpackError(f"cut off: {n} bytes at {at}, but {len(data) - at} follow")
    return end
