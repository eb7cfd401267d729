"""Frames of the connector protocol: numbers, header, one encoder for each frame a connector sends.

An encoder returns a body. transport.Link adds the header. Encoders on the hot path join their bytes
by hand. An encoder raises an error for values that cannot be encoded. The agent checks the rest.
replies.py decodes the agent's frames.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from . import __version__
from .msgpack import binary, encode, text, uint

HELLO = 1
WELCOME = 2
REGISTER = 3
EXTENT_READY = 4
OK = 5
ERROR = 6
OPEN = 16
APPEND = 17
LOOKUP = 18
LOOKUP_HIT = 19
CLAIM = 20
CLAIMED = 21
STORE = 22
GRANT = 23
COMMIT = 24
ABORT = 25
RELEASE = 26
LOAD = 27
CLOSE = 28
BYE = 29
RESUME = 30
RESUMED = 31
EVICTED = 32
RESET = 33
STATS = 34
DRAIN = 35
LIST_CACHED = 36
CACHED = 37
FIT = 38
FITTED = 39

NAMES = {
    number: name
    for name, number in list(globals().items())
    if name.isupper() and isinstance(number, int)
}

MAGIC = 0x31445942  # the bytes "BYD1"
HEADER_BYTES = 16
MAX_FRAME = 32 * 1024
MAX_BODY = MAX_FRAME - HEADER_BYTES
VERSION_MAJOR = 1
VERSION_MINOR = 4
GROUPS_MINOR = 4  # the first minor version with KV groups
MAX_BLOCKS_PER_FRAME = 1024
MAX_TOKENS_PER_FRAME = 7168
MAX_REQUEST_TOKENS = 4 << 20
MAX_RESUME_SLOTS = 2040
MAX_LISTED_PER_FRAME = 4000
MAX_EXTENT_BYTES = 1 << 30
MAX_EXTENT_SLOTS = MAX_EXTENT_BYTES // 4096
MAX_BLOCK_BYTES = 256 << 20
PAGE_BYTES = 4096
# COMMIT, ABORT, RELEASE and CLOSE name this request, with gen 0, for the slots of RESUMED.
RESUMED_REQUEST = 2**64 - 1

# Codes of ERROR that this code or its tests use; docs/protocol.md has all.
BAD_STATE = "bad_state"
NOT_FOUND = "not_found"
LIMIT = "limit"

_header = struct.Struct("<IHHII")


class FrameError(ValueError):
    """A malformed frame, or a body with a field outside its range."""


class Header(NamedTuple):
    """The variable fields in the first 16 bytes of a frame."""

    type: int
    corr: int
    body_bytes: int


def pack_header(frame_type: int, corr: int, body_bytes: int) -> bytes:
    """The header of a frame. ValueError when the body is too large."""
    if body_bytes > MAX_BODY:
        raise ValueError(f"{name(frame_type)} body: {body_bytes} bytes, want at most {MAX_BODY}")
    return _header.pack(MAGIC, frame_type, 0, corr, body_bytes)


def parse_header(message: bytes | memoryview) -> Header:
    """The header of one received message, checked against the message's length."""
    size = len(message)
    if not HEADER_BYTES <= size <= MAX_FRAME:
        raise FrameError(f"frame of {size} bytes: want {HEADER_BYTES}..{MAX_FRAME}")
    magic, frame_type, flags, corr, body = _header.unpack_from(message)
    if magic != MAGIC:
        raise FrameError(f"frame magic {magic:#010x}: want {MAGIC:#010x}")
    if flags:
        raise FrameError(f"frame {name(frame_type)} flags: {flags:#x}, want 0")
    if body != size - HEADER_BYTES:
        raise FrameError(
            f"frame {name(frame_type)}: body length {body}, but {size - HEADER_BYTES} bytes follow"
        )
    return Header(frame_type, corr, body)


def name(frame_type: int) -> str:
    """The frame's name in docs/protocol.md, such as "LOOKUP"."""
    return NAMES.get(frame_type, f"TYPE({frame_type})")


@dataclass(frozen=True)
class HelloFields:
    """The engine's fields of HELLO. docs/protocol.md has the ranges.

    namespace: the protocol's namespace map. None (workers only) means the session's namespace.
    engine and connector are for people.
    """

    engine: str
    worker_id: int
    dp_rank: int = 0
    incarnation: int = 0
    namespace: Mapping[str, Any] | None = None
    events_endpoint: str = ""
    replay_endpoint: str = ""
    events_topic: str = ""
    want_evicted: bool = False
    lists_cached: bool = False
    consolidated_endpoint: str = ""
    consolidator_mode: str = ""
    serving_endpoint: str = ""
    ranks: int = 0
    device_blocks: int = 0
    max_num_batched_tokens: int = 0
    connector: str = f"blockyard {__version__}"


@dataclass(frozen=True)
class RegisterFields:
    """A worker's KV in REGISTER.

    device_blocks: blocks in the worker's pool. block_bytes: the worker's share of one block.
    offset: begin of the share in the block.
    """

    device_blocks: int
    block_bytes: int
    offset: int = 0


# Keys of minor version 1. An empty value is left out.
_LATER_KEYS = (
    "lists_cached",
    "consolidated_endpoint",
    "consolidator_mode",
    "serving_endpoint",
    "ranks",
    "device_blocks",
    "max_num_batched_tokens",
)


def encode_hello(role: str, fields: HelloFields, session: int = 0) -> bytes:
    """HELLO as "scheduler" or "worker". Session 0 of a worker names its worker id and rank."""
    body: dict[str, Any] = {
        "major": VERSION_MAJOR,
        "minor": VERSION_MINOR,
        "role": role,
        "engine": fields.engine,
        "incarnation": fields.incarnation,
        "worker_id": fields.worker_id,
        "dp_rank": fields.dp_rank,
        "session": session,
    }
    if fields.namespace is not None:
        body["namespace"] = fields.namespace
    if fields.connector:
        body["connector"] = fields.connector
    if role == "scheduler":
        body["events_endpoint"] = fields.events_endpoint
        body["replay_endpoint"] = fields.replay_endpoint
        body["events_topic"] = fields.events_topic
        body["want_evicted"] = fields.want_evicted
        for key in _LATER_KEYS:
            if getattr(fields, key):
                body[key] = getattr(fields, key)
    return encode(body)


def encode_register(fields: RegisterFields) -> bytes:
    """REGISTER."""
    return encode(
        {
            "device_blocks": fields.device_blocks,
            "block_bytes": fields.block_bytes,
            "offset": fields.offset,
        }
    )


@lru_cache(maxsize=4096)
def _owner(req: int, gen: int) -> bytes:
    """The first two keys of most bodies. A running request has several frames in each offer."""
    return b"\xa3req" + uint(req) + b"\xa3gen" + uint(gen)


def encode_open(
    req: int, gen: int, lora: str = "", lora_name: str = "", salt: str = "", tokens: bytes = b""
) -> bytes:
    """OPEN; tokens are packed (packed.pack_u32), at most MAX_TOKENS_PER_FRAME of them."""
    _check_tokens("OPEN", tokens)
    return b"".join(
        (
            b"\x86",
            _owner(req, gen),
            b"\xa4lora",
            text(lora),
            b"\xa9lora_name",
            text(lora_name),
            b"\xa4salt",
            text(salt),
            b"\xa6tokens",
            binary(tokens),
        )
    )


def encode_append(req: int, gen: int, offset: int, tokens: bytes) -> bytes:
    """APPEND; offset is the number of tokens that the request has, tokens are packed."""
    _check_tokens("APPEND", tokens)
    return b"".join(
        (
            b"\x84",
            _owner(req, gen),
            b"\xa6offset",
            uint(offset),
            b"\xa6tokens",
            binary(tokens),
        )
    )


def _check_tokens(frame: str, tokens: bytes) -> None:
    count, rest = divmod(len(tokens), 4)
    if rest or count > MAX_TOKENS_PER_FRAME:
        raise ValueError(
            f"{frame} tokens: {len(tokens)} bytes, want at most {MAX_TOKENS_PER_FRAME} times 4"
        )


def _range(fields: int, req: int, gen: int, first: int, count: int, group: int = 0) -> bytes:
    """The start of a body with `fields` keys and maybe a group: a run of blocks of a request."""
    return b"".join(
        (
            bytes((0x80 | (fields + 1),)) + b"\xa5group" + uint(group)
            if group
            else bytes((0x80 | fields,)),
            _owner(req, gen),
            b"\xa5first",
            uint(first),
            b"\xa5count",
            uint(count),
        )
    )


def encode_lookup(
    req: int, gen: int, first: int, count: int, wait_ms: int = 0, group: int = 0
) -> bytes:
    """LOOKUP. Here and below, first and count are in blocks of the group."""
    return _range(5, req, gen, first, count, group) + b"\xa7wait_ms" + uint(wait_ms)


def encode_fit(req: int, gen: int, tokens: int, align: int = 0) -> bytes:
    """FIT: which prefix of at most `tokens` can every group serve? align 0 is the default."""
    return b"".join(
        (
            b"\x84",
            _owner(req, gen),
            b"\xa6tokens",
            uint(tokens),
            b"\xa5align",
            uint(align),
        )
    )


def encode_claim(
    req: int, gen: int, first: int, count: int, job: int, blocks: bytes, group: int = 0
) -> bytes:
    """CLAIM; blocks are `count` packed device block ids."""
    if len(blocks) != 4 * count:
        raise ValueError(f"CLAIM blocks: {len(blocks)} bytes, want 4 for each of {count} blocks")
    start = _range(6, req, gen, first, count, group)
    return b"".join((start, b"\xa3job", uint(job), b"\xa6blocks", binary(blocks)))


def encode_store(
    req: int, gen: int, first: int, count: int, priority: int = 0, group: int = 0
) -> bytes:
    """STORE; priority 0 is none."""
    if not priority:
        return _range(4, req, gen, first, count, group)
    return _range(5, req, gen, first, count, group) + b"\xa8priority" + uint(priority)


def encode_release(req: int, gen: int, first: int, count: int, group: int = 0) -> bytes:
    """RELEASE."""
    return _range(4, req, gen, first, count, group)


def encode_slots(req: int, gen: int, slots: bytes) -> bytes:
    """COMMIT or ABORT of packed slots (packed.pack_slots), 1..MAX_BLOCKS_PER_FRAME of them."""
    count, rest = divmod(len(slots), 16)
    if rest or not 1 <= count <= MAX_BLOCKS_PER_FRAME:
        raise ValueError(
            f"slots: {len(slots)} bytes, want 16 for each of 1..{MAX_BLOCKS_PER_FRAME} slots"
        )
    return b"".join((b"\x83", _owner(req, gen), b"\xa5slots", binary(slots)))


# COMMIT and ABORT have the same body.
encode_commit = encode_slots
encode_abort = encode_slots


def encode_close(req: int, gen: int) -> bytes:
    """CLOSE."""
    return b"\x82" + _owner(req, gen)


def encode_bye(reason: str) -> bytes:
    """BYE; the reason is for people."""
    return b"\x81\xa6reason" + text(reason)


def encode_resume(session: int, agent_nonce: int, granted: bytes, pinned: bytes) -> bytes:
    """RESUME; both lists are packed slots, together at most MAX_RESUME_SLOTS."""
    count, rest = divmod(len(granted) + len(pinned), 16)
    if rest or len(granted) % 16 or count > MAX_RESUME_SLOTS:
        raise ValueError(
            f"RESUME: {len(granted)} and {len(pinned)} bytes, want 16 for each of at most "
            f"{MAX_RESUME_SLOTS} slots"
        )
    return encode(
        {"session": session, "agent_nonce": agent_nonce, "granted": granted, "pinned": pinned}
    )


def encode_reset() -> bytes:
    """RESET."""
    return b"\x80"


def encode_stats(counters: Mapping[str, int]) -> bytes:
    """STATS: cumulative counters since the connection began, and gauges, by name."""
    return encode(counters)


def encode_cached(number: int, hashes: bytes, final: bool, unavailable: bool = False) -> bytes:
    """CACHED: a part of list `number`, packed hashes, at most MAX_LISTED_PER_FRAME of them.

    unavailable: there is no list; then hashes is empty and final true.
    """
    count, rest = divmod(len(hashes), 8)
    if rest or count > MAX_LISTED_PER_FRAME:
        raise ValueError(
            f"CACHED hashes: {len(hashes)} bytes, want at most {MAX_LISTED_PER_FRAME} times 8"
        )
    body: dict[str, Any] = {"list": number, "hashes": hashes, "final": final}
    if unavailable:
        body["unavailable"] = True
    return encode(body)
