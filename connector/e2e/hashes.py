"""Block hashes from tokens, without code of the agent: docs/events.md, section 2.

XXH3-64 takes inputs of 9 to 128 bytes here. Blocks of 32 tokens, pairs of hashes and the names of
the tests have these sizes.
"""

from __future__ import annotations

import struct

from e2e import model

_MASK = 2**64 - 1
_SEED = 1337
# The first 128 bytes of the algorithm's fixed secret.
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
)


def chain(tokens: list[int], *, lora_name: str = "", salt: str = "") -> list[str]:
    """The SequenceHashes of a prompt's complete blocks, 16 hexadecimal digits each."""
    seed = _SEED
    if lora_name:
        seed += xxh3(lora_name.encode(), 0)
    if salt:
        seed += xxh3(salt.encode(), 1)
    hashes: list[int] = []
    for at in range(0, len(tokens) - model.BLOCK_TOKENS + 1, model.BLOCK_TOKENS):
        block = tokens[at : at + model.BLOCK_TOKENS]
        value = xxh3(struct.pack(f"<{len(block)}I", *block), seed & _MASK)
        if hashes:
            value = xxh3(struct.pack("<QQ", hashes[-1], value), _SEED)
        hashes.append(value)
    return [f"{value:016x}" for value in hashes]


def xxh3(data: bytes, seed: int) -> int:
    """The XXH3-64 of data. ValueError for a length outside 9..128."""
    size = len(data)
    if not 9 <= size <= 128:
        raise ValueError(f"{size} bytes, want 9..128")
    if size <= 16:
        low = _word(data, 0) ^ ((_word(_SECRET, 24) ^ _word(_SECRET, 32)) + seed) & _MASK
        high = _word(data, size - 8) ^ ((_word(_SECRET, 40) ^ _word(_SECRET, 48)) - seed) & _MASK
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(size + swapped + high + _fold(low, high))
    total = size * 0x9E3779B185EBCA87
    for pair in range((size - 1) // 32 + 1):
        total += _mix(data, 16 * pair, 32 * pair, seed)
        total += _mix(data, size - 16 * (pair + 1), 32 * pair + 16, seed)
    return _avalanche(total)


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product & _MASK) ^ (product >> 64)


def _mix(data: bytes, at: int, key: int, seed: int) -> int:
    low = _word(data, at) ^ (_word(_SECRET, key) + seed) & _MASK
    high = _word(data, at + 8) ^ (_word(_SECRET, key + 8) - seed) & _MASK
    return _fold(low, high)


def _avalanche(value: int) -> int:
    value &= _MASK
    value ^= value >> 37
    value = value * 0x165667919E3779F9 & _MASK
    return value ^ (value >> 32)
