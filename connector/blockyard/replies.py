"""Decodes the bodies of the agent's frames: dicts with every field in its range.

An absent key is zero. An unknown key is ignored. FrameError names the first field with a wrong
type or a value outside its range.

The engine's thread decodes answers within its hooks. So one pass reads a body whose keys have the
agent's order, without other keys. A slower way reads every other body, and finds what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import frames
from .frames import FrameError
from .groups import MAX_GROUPS
from .msgpack import MsgpackError, decode, text
from .packed import GRANT_BYTES, SLOT_BYTES

Body = dict[str, Any]
_Check = Callable[[str, Any], None]
# A step of _in_order: key, value of an absent key, encoded key, bytes from there to behind the
# first byte of the value, bytes of an item, allowed numbers.
_Step = tuple[str, Any, bytes, int, int, range]

_U32 = 2**32 - 1
_U64 = 2**64 - 1
_BLOCKS = frames.MAX_BLOCKS_PER_FRAME
_TEXT_BYTES = 4096

# By the first byte of a value: the bytes of the integer, or of the length, that follow.
_INTEGERS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_BINARIES = {0xC4: 1, 0xC5: 2}


class _Field(NamedTuple):
    """The rule of one key. check raises FrameError for a value outside its range.

    zero: the value of an absent key. allowed: of a number, or of the number of items in a packed
    list; None for other values. item: bytes of an item of a packed list, 0 for a number.
    """

    zero: Any
    check: _Check
    allowed: range | None = None
    item: int = 0


def decode_body(frame_type: int, body: bytes) -> Body | None:
    """The body of a frame from the agent. None for an unknown frame type.

    Raises FrameError for bytes that are no msgpack map, and for a field outside its range.
    """
    if frame_type == frames.OK:
        return {}  # OK has no body; a newer minor version may add one
    fields = _FIELDS.get(frame_type)
    if fields is None:
        return None
    steps = _STEPS.get(frame_type)
    out = None if steps is None else _in_order(steps, body)
    try:
        if out is None:
            out = _in_any_order(fields, body)
        relate = _RELATIONS.get(frame_type)
        if relate is not None:
            relate(out)
    except MsgpackError as err:
        raise FrameError(f"{frames.name(frame_type)}: {err}") from None
    except FrameError as err:
        raise FrameError(f"{frames.name(frame_type)} {err}") from None
    return out


def _in_order(steps: tuple[_Step, ...], body: bytes) -> Body | None:
    """The fields of a body with its keys in order. None for any other body, and out of range."""
    out: Body = {}
    at, absent = 1, 0
    try:
        for key, zero, head, width, item, allowed in steps:
            if not body.startswith(head, at):
                if 0 not in allowed:
                    return None
                out[key] = zero
                absent += 1
                continue
            at += width
            number = body[at - 1]
            if item:
                size = _BINARIES[number]
                end = at + size + int.from_bytes(body[at : at + size], "big")
                out[key] = body[at + size : end]
                number, rest = divmod(end - at - size, item)
                if rest:
                    return None
                at = end
            elif number < 0x80:
                out[key] = number
            else:
                size = _INTEGERS[number]
                out[key] = number = int.from_bytes(body[at : at + size], "big")
                at += size
            if number not in allowed:
                return None
        keys = body[0] - 0x80  # of a short map
    except (IndexError, KeyError):
        return None
    return out if at == len(body) and keys == len(steps) - absent else None


def _in_any_order(fields: Mapping[str, _Field], body: bytes) -> Body:
    """The fields of any body. MsgpackError or FrameError for what cannot be read."""
    got = decode(body)
    if not isinstance(got, dict):
        raise MsgpackError(f"{type(got).__name__}, want a map")
    out: Body = {}
    for key, field in fields.items():
        value = out[key] = got.get(key, field.zero)
        field.check(key, value)
    return out


def _uint(low: int, high: int) -> _Field:
    def check(key: str, value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            raise FrameError(f"{key}: {value!r:.40} is not in {low}..{high}")

    return _Field(0, check, range(low, high + 1))


def _packed(size: int, low: int, high: int) -> _Field:
    def check(key: str, value: Any) -> None:
        if type(value) is not bytes:
            raise FrameError(f"{key}: {type(value).__name__}, want bytes")
        count, rest = divmod(len(value), size)
        if rest or not low <= count <= high:
            raise FrameError(f"{key}: {len(value)} bytes, want {low}..{high} times {size}")

    return _Field(b"", check, range(low, high + 1), size)


def _string() -> _Field:
    def check(key: str, value: Any) -> None:
        if type(value) is not str or len(value) > _TEXT_BYTES:
            raise FrameError(f"{key}: {value!r:.40} is no string of at most {_TEXT_BYTES}")

    return _Field("", check)


def _bool() -> _Field:
    def check(key: str, value: Any) -> None:
        if type(value) is not bool:
            raise FrameError(f"{key}: {value!r:.40} is neither true nor false")

    return _Field(False, check)


_REQUEST = {"req": _uint(0, _U64), "gen": _uint(0, _U32)}

# Frame type -> key -> rule. The keys have the agent's order.
_FIELDS: dict[int, dict[str, _Field]] = {
    frames.WELCOME: {
        "major": _uint(0, 0xFFFF),
        "minor": _uint(0, 0xFFFF),
        "session": _uint(1, _U64),
        "agent_nonce": _uint(0, _U64),
        "namespace_id": _packed(16, 1, 1),
        "pool": _uint(0, _U64),
        "block_bytes": _uint(1, frames.MAX_BLOCK_BYTES),
        "slot_bytes": _uint(1, frames.MAX_EXTENT_BYTES),
        "max_requests": _uint(0, _U32),
        "max_pins": _uint(0, _U32),
        "host_enabled": _bool(),
        "warning": _string(),
    },
    frames.EXTENT_READY: {
        "extent": _uint(0, _U32),
        "slots": _uint(1, frames.MAX_EXTENT_SLOTS),
        "slot_bytes": _uint(1, frames.MAX_EXTENT_BYTES),
        "data_offset": _uint(1, frames.MAX_EXTENT_BYTES),
        "file_bytes": _uint(1, frames.MAX_EXTENT_BYTES),
    },
    frames.ERROR: {
        "code": _string(),
        "retryable": _bool(),
        "req": _uint(0, _U64),
        "text": _string(),
    },
    frames.FITTED: {**_REQUEST, "tokens": _uint(0, frames.MAX_REQUEST_TOKENS)},
    frames.LOOKUP_HIT: {
        **_REQUEST,
        "first": _uint(0, frames.MAX_REQUEST_TOKENS - 1),
        "ready": _uint(0, _BLOCKS),
        "coming": _uint(0, _BLOCKS),
        "sources": _packed(1, 0, _BLOCKS),
        "slots": _packed(SLOT_BYTES, 0, _BLOCKS),
        "group": _uint(0, MAX_GROUPS - 1),
    },
    frames.CLAIMED: {"job": _uint(0, _U64), "workers": _uint(0, _U32)},
    frames.GRANT: {
        **_REQUEST,
        "grants": _packed(GRANT_BYTES, 0, _BLOCKS),
        "present": _uint(0, _BLOCKS),
        "refused": _uint(0, _BLOCKS),
        "group": _uint(0, MAX_GROUPS - 1),
    },
    frames.LOAD: {
        "job": _uint(0, _U64),
        "slots": _packed(SLOT_BYTES, 1, _BLOCKS),
        "blocks": _packed(4, 1, _BLOCKS),
        "group": _uint(0, MAX_GROUPS - 1),
    },
    frames.RESUMED: {
        "granted": _packed(SLOT_BYTES, 0, frames.MAX_RESUME_SLOTS),
        "pinned": _packed(SLOT_BYTES, 0, frames.MAX_RESUME_SLOTS),
    },
    frames.EVICTED: {
        "tier": _uint(0, 0xFF),
        "hashes": _packed(8, 1, 2048),
        "lost": _uint(0, _U64),
    },
    frames.LIST_CACHED: {"list": _uint(1, _U64)},
    frames.DRAIN: {"deadline_ms": _uint(0, _U32), "reason": _string()},
}


def _check_welcome(b: Body) -> None:
    if b["slot_bytes"] < b["block_bytes"]:
        raise FrameError(f"slot_bytes: {b['slot_bytes']} is less than block_bytes")


def _check_extent(b: Body) -> None:
    offset, slots, size = b["data_offset"], b["slots"], b["file_bytes"]
    if offset % frames.PAGE_BYTES:
        raise FrameError(f"data_offset: {offset} is no multiple of {frames.PAGE_BYTES}")
    if offset < 8 * slots:
        raise FrameError(f"data_offset: {offset}, but {slots} generation words need {8 * slots}")
    if (need := offset + slots * b["slot_bytes"]) > size:
        raise FrameError(f"file_bytes: {size}, but {slots} slots need {need}")


def _check_hit(b: Body) -> None:
    ready = b["ready"]
    if len(b["sources"]) != ready:
        raise FrameError(f"sources: {len(b['sources'])} bytes for {ready} ready blocks")
    if len(b["slots"]) != SLOT_BYTES * ready:
        raise FrameError(f"slots: {len(b['slots'])} bytes for {ready} ready blocks")


def _check_load(b: Body) -> None:
    if len(b["slots"]) // SLOT_BYTES != len(b["blocks"]) // 4:
        raise FrameError(f"blocks: {len(b['blocks'])} bytes for {len(b['slots'])} of slots")


# Of the frames with numbers and packed lists only.
_STEPS: dict[int, tuple[_Step, ...]] = {
    kind: tuple(
        (key, f.zero, text(key), len(text(key)) + 1, f.item, f.allowed)
        for key, f in fields.items()
        if f.allowed is not None
    )
    for kind, fields in _FIELDS.items()
    if all(f.allowed is not None for f in fields.values())
}

_RELATIONS: dict[int, Callable[[Body], None]] = {
    frames.WELCOME: _check_welcome,
    frames.EXTENT_READY: _check_extent,
    frames.LOOKUP_HIT: _check_hit,
    frames.LOAD: _check_load,
}
