"""Decodes the bodies of the agent's frames: dicts with every field in its range.

An absent key is zero. An unknown key is ignored. FrameError names the first field with a wrong
type or a value outside its range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import frames
from .frames import FrameError
from .groups import MAX_GROUPS
from .msgpack import MsgpackError, decode
from .packed import GRANT_BYTES, SLOT_BYTES

Body = dict[str, Any]
_Check = Callable[[str, Any], None]

_U32 = 2**32 - 1
_U64 = 2**64 - 1
_BLOCKS = frames.MAX_BLOCKS_PER_FRAME
_TEXT_BYTES = 4096


def decode_body(frame_type: int, body: bytes) -> Body | None:
    """The body of a frame from the agent. None for an unknown frame type.

    Raises FrameError for bytes that are no msgpack map, and for a field outside its range.
    """
    if frame_type == frames.OK:
        return {}  # OK has no body; a newer minor version may add one
    fields = _FIELDS.get(frame_type)
    if fields is None:
        return None
    try:
        got = decode(body)
    except MsgpackError as err:
        raise FrameError(f"{frames.name(frame_type)}: {err}") from None
    if not isinstance(got, dict):
        raise FrameError(f"{frames.name(frame_type)}: {type(got).__name__}, want a map")
    out: Body = {}
    try:
        for key, (zero, check) in fields.items():
            value = got.get(key, zero)
            check(key, value)
            out[key] = value
        relate = _RELATIONS.get(frame_type)
        if relate is not None:
            relate(out)
    except FrameError as err:
        raise FrameError(f"{frames.name(frame_type)} {err}") from None
    return out


def _uint(low: int, high: int) -> tuple[int, _Check]:
    def check(key: str, value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            raise FrameError(f"{key}: {value!r:.40} is not in {low}..{high}")

    return 0, check


def _packed(size: int, low: int, high: int) -> tuple[bytes, _Check]:
    def check(key: str, value: Any) -> None:
        if type(value) is not bytes:
            raise FrameError(f"{key}: {type(value).__name__}, want bytes")
        count, rest = divmod(len(value), size)
        if rest or not low <= count <= high:
            raise FrameError(f"{key}: {len(value)} bytes, want {low}..{high} times {size}")

    return b"", check


def _string() -> tuple[str, _Check]:
    def check(key: str, value: Any) -> None:
        if type(value) is not str or len(value) > _TEXT_BYTES:
            raise FrameError(f"{key}: {value!r:.40} is no string of at most {_TEXT_BYTES}")

    return "", check


def _bool() -> tuple[bool, _Check]:
    def check(key: str, value: Any) -> None:
        if type(value) is not bool:
            raise FrameError(f"{key}: {value!r:.40} is neither true nor false")

    return False, check


_REQUEST = {"req": _uint(0, _U64), "gen": _uint(0, _U32)}

# Frame type -> key -> (value of an absent key, check of the value).
_FIELDS: dict[int, dict[str, tuple[Any, _Check]]] = {
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
        "group": _uint(0, MAX_GROUPS - 1),
        "first": _uint(0, frames.MAX_REQUEST_TOKENS - 1),
        "ready": _uint(0, _BLOCKS),
        "coming": _uint(0, _BLOCKS),
        "sources": _packed(1, 0, _BLOCKS),
        "slots": _packed(SLOT_BYTES, 0, _BLOCKS),
    },
    frames.CLAIMED: {"job": _uint(0, _U64), "workers": _uint(0, _U32)},
    frames.GRANT: {
        **_REQUEST,
        "group": _uint(0, MAX_GROUPS - 1),
        "grants": _packed(GRANT_BYTES, 0, _BLOCKS),
        "present": _uint(0, _BLOCKS),
        "refused": _uint(0, _BLOCKS),
    },
    frames.LOAD: {
        "group": _uint(0, MAX_GROUPS - 1),
        "job": _uint(0, _U64),
        "slots": _packed(SLOT_BYTES, 1, _BLOCKS),
        "blocks": _packed(4, 1, _BLOCKS),
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


_RELATIONS: dict[int, Callable[[Body], None]] = {
    frames.WELCOME: _check_welcome,
    frames.EXTENT_READY: _check_extent,
    frames.LOOKUP_HIT: _check_hit,
    frames.LOAD: _check_load,
}
