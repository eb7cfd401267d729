"""Tenants with a salt, who share no blocks."""

from __future__ import annotations

import hashlib
import json
import secrets

import openai

from e2e import model
from e2e.runner import case
from front.bed import Bed
from front.door import Door, Endpoint

_PREFIX = "blockyard-tenant:"


@case("tenants-apart", "keys of two tenants with a salt share no hits, keys of one tenant do")
def tenants_apart(bed: Bed) -> str:
    servers = bed.plain()
    file = bed.dir / "keys.jsonl"
    keys = {name: secrets.token_hex(32) for name in ("ann", "ann-2", "bob", "open", "open-2")}
    lines = []
    for name, key in keys.items():
        tenant = name.partition("-")[0]
        line = {"tenant": tenant, "name": name, "sha256": hashlib.sha256(key.encode()).hexdigest()}
        # The tenant "open" has no salt, and shares blocks with whoever has none.
        lines.append(json.dumps(line | ({} if tenant == "open" else {"salt": True})))
    file.write_text("\n".join(lines) + "\n")
    door = bed.door(f"--api-keys={file}", servers=servers)
    clients = {name: Endpoint(door.url, key=key) for name, key in keys.items()}
    hits = _turns(bed, door, clients, Endpoint(servers[0].url))
    _refusals(bed, door, clients["open"])
    return f"{len(keys)} keys, hits of {hits} tokens within a tenant, none between tenants"


def _turns(bed: Bed, door: Door, clients: dict[str, Endpoint], direct: Endpoint) -> int:
    """Sends one prompt with every key, twice with the first. Returns the tokens of a hit."""
    text = bed.text(80)
    own = bed.salt()
    whole = len(direct.complete(text, 1, cache_salt=bed.salt()).prompt)
    hit = (whole - 1) // model.BLOCK_TOKENS * model.BLOCK_TOKENS
    assert hit, f"a prompt of {whole} tokens has no complete block"
    want = direct.complete(text, 12, cache_salt=bed.salt()).tokens
    turns: list[tuple[str, str, int]] = [
        ("ann", "", 0),
        ("ann", "", hit),
        ("bob", "", 0),  # not a block of ann's
        ("ann-2", "", hit),
        ("open", "", 0),
        ("open-2", "", hit),
        ("ann", own, 0),  # a salt of her own within her tenant
        ("bob", own, 0),  # the same salt in another tenant
        ("ann-2", own, hit),
        ("bob", "", hit),
        ("ann", f"{_PREFIX}bob:", 0),  # part of a salt of ann's, and not bob's salt
    ]
    for name, salt, expected in turns:
        what = f"{name} {salt}"
        got = clients[name].complete(text, 12, **({"cache_salt": salt} if salt else {}))
        bed.compare(what, got.tokens, want)
        counts = (got.predicted, got.cached)
        assert counts == (expected, expected), f"{what}: {counts} tokens cached, want {expected}"
        tenant = name.partition("-")[0]
        namespace = salt if tenant == "open" else f"{_PREFIX}{tenant}:{salt}"
        door.idle()
        door.caught_up(got, salt=namespace)
    return hit


def _refusals(bed: Bed, door: Door, unsalted: Endpoint) -> None:
    """Nobody gets in without a key, and no tenant without a salt takes that of another."""
    for key in ("none", secrets.token_hex(32)):
        try:
            Endpoint(door.url, key=key).complete(bed.text(8))
        except openai.AuthenticationError as err:
            assert err.code == "invalid_api_key", err
        else:
            raise AssertionError("an unknown key was served")
    try:
        unsalted.complete(bed.text(8), cache_salt=f"{_PREFIX}bob:")
    except openai.BadRequestError as err:
        assert err.param == "cache_salt", err
    else:
        raise AssertionError("a client has set the salt of another tenant")
