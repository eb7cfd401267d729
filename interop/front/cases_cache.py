"""Requests go to the server that has their blocks, and get the hits that the router predicted."""

from __future__ import annotations

import os

from e2e import model
from e2e.runner import case
from front.bed import ADAPTERS, Bed
from front.door import Answer, Door, Endpoint
from front.server import MODEL

_CONVERSATIONS = 6
_TURNS = 4


@case("second-turn", "each turn goes where its blocks are, and delivered equals predicted")
def second_turn(bed: Bed) -> str:
    door = bed.door(servers=bed.plain())
    cached, used = converse(bed, door, exact=True)
    assert len(used) == 2, f"conversations used {used}"
    return f"{_CONVERSATIONS} conversations, {_TURNS} turns, {cached} tokens cached as predicted"


@case("plain-and-approximate", "without events, predictions keep a conversation on its server")
def plain_and_approximate(bed: Bed) -> str:
    servers = bed.rendering()
    remarks = []
    for flags in ((), ("--no-router-kv-events",)):
        door = bed.door(*flags, servers=servers)
        assert all(w["silent"] for w in door.workers()), door.workers()
        cached, used = converse(bed, door, exact=False)
        assert len(used) == 2, f"conversations used {used}"
        remarks.append(f"{cached} tokens cached {' '.join(flags) or 'by default'}")
        bed.close_doors()
    return ", ".join(remarks)


def converse(bed: Bed, door: Door, exact: bool) -> tuple[int, set[str]]:
    """Interleaved conversations: every later turn must stay and find the blocks of the one before.

    exact: the router has events, so that its prediction equals what the engine reports. Returns
    the cached tokens and the workers.
    """
    talks = [[{"role": "user", "content": bed.text(45)}] for _ in range(_CONVERSATIONS)]
    last: list[Answer | None] = [None] * _CONVERSATIONS
    total = 0
    # A first turn may go anywhere. Pinned ones make use of both workers.
    homes = [door.pinned(f"{w['worker_id']}/{w['dp_rank']}") for w in door.workers()]
    for turn in range(_TURNS):
        for number, talk in enumerate(talks):
            got = (homes[number % 2] if turn == 0 else door).chat(talk)
            what = f"conversation {number}, turn {turn}"
            before = last[number]
            if before is not None:
                _same_place(what, before, got, exact)
                total += got.cached
            delivered = int(got.headers["X-Blockyard-Cached-Delivered"])
            assert delivered == got.cached, (
                f"{what}: the header has {delivered}, usage {got.cached}"
            )
            assert got.known == "exact", f"{what}: tokens {got.known}"
            if exact:
                assert got.quality == "exact", f"{what}: quality {got.quality}"
                assert got.predicted == delivered, f"{what}: predicted {got.predicted}, {delivered}"
                door.caught_up(got)
            last[number] = got
            talk.append({"role": "assistant", "content": got.text})
            talk.append({"role": "user", "content": bed.text(15)})
    return total, {a.worker for a in last if a is not None}


def _same_place(what: str, before: Answer, got: Answer, exact: bool) -> None:
    assert got.worker == before.worker, f"{what}: on {got.worker}, before on {before.worker}"
    want = reusable(before.prompt + before.tokens, got.prompt)
    assert got.cached == want, f"{what}: {got.cached} tokens cached, want {want}"
    # A prediction has the prompts of earlier requests, and not their answers.
    sent = reusable(before.prompt, got.prompt)
    assert exact or sent <= got.predicted <= want, (
        f"{what}: predicted {got.predicted}, {sent}..{want}"
    )


def reusable(before: list[int], prompt: list[int]) -> int:
    """The tokens of the complete blocks that a prompt has in common with an earlier sequence."""
    # The engine computes the last token of a prompt itself. It never computes that of an answer.
    common = len(os.path.commonprefix([before[:-1], prompt[:-1]]))
    return common // model.BLOCK_TOKENS * model.BLOCK_TOKENS


@case("adapters-and-salts", "salts and adapters share no hits, and adapters are models")
def adapters_and_salts(bed: Bed) -> str:
    servers = bed.plain()
    door = bed.door(servers=servers)
    direct = Endpoint(servers[0].url)
    text = bed.text(80)
    whole = len(direct.complete(text, 1, cache_salt=bed.salt()).prompt)
    hit = (whole - 1) // model.BLOCK_TOKENS * model.BLOCK_TOKENS
    others = [{"cache_salt": bed.salt()}, {"cache_salt": bed.salt()}, {}]
    others += [{"model": name} for name in ADAPTERS]
    answers: dict[str, list[int]] = {}
    for fields in others:
        for want in (0, hit):
            got = door.complete(text, 16, **fields)
            assert (got.predicted, got.cached) == (want, want), (
                f"{fields}: predicted {got.predicted} and cached {got.cached}, want {want}"
            )
            assert got.quality == "exact", f"{fields}: quality {got.quality}"
            name = fields.get("model", MODEL)
            reference = direct.complete(text, 16, cache_salt=bed.salt(), model=name)
            bed.compare(f"{fields}", got.tokens, reference.tokens)
            answers[name] = got.tokens
            door.idle()
            _wait_for_hit(door, got, fields)
    assert len(set(map(tuple, answers.values()))) == 3, f"models answer alike: {answers}"
    return f"{len(others)} kinds, hits of {hit} tokens each"


def _wait_for_hit(door: Door, got: Answer, fields: dict[str, str]) -> None:
    door.caught_up(got, lora=fields.get("model", ""), salt=fields.get("cache_salt", ""))
