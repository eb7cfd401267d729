"""Packed lists of the protocol: tokens, device blocks and slots. Little-endian."""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

SLOT_BYTES = 16
GRANT_BYTES = 24  # u32 block, u32 extent, u32 index, 4 zero bytes, u64 generation

_slot = struct.Struct("<IIQ")
_grant = struct.Struct("<III4xQ")
# array.array packs fastest, where its items have the protocol's form.
_U32 = "I" if array.array("I").itemsize == 4 and sys.byteorder == "little" else ""


class Slot(NamedTuple):
    """A slot of an extent at one generation. Each new grant of a slot has a higher generation."""

    extent: int
    index: int
    generation: int


def pack_u32(values: Sequence[int]) -> bytes:
    """Packs tokens or device block ids. OverflowError or struct.error outside 0..2^32-1."""
    if _U32:
        return array.array(_U32, values).tobytes()
    return struct.pack(f"<{len(values)}I", *values)


def unpack_u32(packed: bytes) -> list[int]:
    """The values of a packed u32 list. ValueError when the length is no multiple of 4."""
    _check("u32 list", packed, 4)
    if _U32:
        return array.array(_U32, packed).tolist()
    return list(struct.unpack(f"<{len(packed) // 4}I", packed))


def pack_slots(slots: Iterable[Slot]) -> bytes:
    """Packs slots, 16 bytes each."""
    pack = _slot.pack
    return b"".join([pack(*s) for s in slots])


def unpack_slots(packed: bytes) -> list[Slot]:
    """The slots of a packed list. ValueError when the length is no multiple of 16."""
    _check("slots", packed, SLOT_BYTES)
    return [Slot._make(s) for s in _slot.iter_unpack(packed)]


def unpack_grants(packed: bytes) -> tuple[list[int], bytes]:
    """The blocks of a packed list of grants, and their packed slots."""
    _check("grants", packed, GRANT_BYTES)
    if _U32:
        words = array.array(_U32, packed)  # block, extent, index, zero, and the generation's two
        blocks = words[::6].tolist()
        del words[::6]
        del words[2::5]
        return blocks, words.tobytes()
    grants = list(_grant.iter_unpack(packed))
    return [grant[0] for grant in grants], pack_slots(Slot(*grant[1:]) for grant in grants)


def extents_of(slots: bytes, first: int) -> list[int]:
    """The extents of packed slots, from slot `first` on."""
    if _U32:
        return array.array(_U32, slots[SLOT_BYTES * first :])[::4].tolist()
    return [slot.extent for slot in unpack_slots(slots[SLOT_BYTES * first :])]


def _check(name: str, packed: bytes, size: int) -> None:
    if len(packed) % size:
        raise ValueError(f"{name}: {len(packed)} bytes is no multiple of {size}")
