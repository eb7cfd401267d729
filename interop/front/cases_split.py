"""Prefill on one server and decode on the other, through the agent's pool."""

from __future__ import annotations

import concurrent.futures
from typing import Any

from e2e import model
from e2e.runner import case
from front.bed import Bed
from front.cases_cache import reusable
from front.door import Answer, Door, Endpoint
from front.server import VllmServer
from tests.agentproc import AgentProcess, wait_until

_LENGTHS = (96, 97, 127, 256, 300, 352, 400, 511)
_PREFILL = "X-Blockyard-Prefill-Worker"


@case("prefill-decode", "one server computes prompts, the other decodes them, with equal tokens")
def prefill_decode(bed: Bed) -> str:
    first, second = bed.with_agent()
    agent = bed.agent
    assert agent is not None
    flags = (f"--worker={first.url},role=prefill", f"--worker={second.url},role=decode")
    # A busy machine may take more than the usual second to store the blocks.
    waits = ("--router-prefill-min-tokens=64", "--router-hand-over-wait-secs=30")
    door = bed.door(f"--agents={agent.admin}", *waits, *flags, workers=2)
    roles = {first.url: door.worker_of(first.url), second.url: door.worker_of(second.url)}
    assert {s["role"] for s in door.ready_servers()} == {"prefill", "decode"}, door.ready_servers()
    before = _hand_overs(agent)
    for tokens in _LENGTHS:
        prompt = bed.tokens(tokens)
        want = Endpoint(first.url).complete(prompt, 16, cache_salt=bed.salt()).tokens
        got = door.complete(prompt, 16, n=1, min_tokens=4)
        what = f"{tokens} tokens"
        bed.compare(what, got.tokens, want)
        used = (got.headers[_PREFILL], got.worker)
        assert used == tuple(roles.values()), f"{what}: {used}, want {roles}"
        assert got.reused == tokens // model.BLOCK_TOKENS * model.BLOCK_TOKENS, f"{what}: {got}"
        assert got.predicted == got.reused, f"{what}: predicted {got.predicted}, {got.reused}"
    chats = _chats(bed, door, first)
    whole = _whole(bed, door, first)
    same = _same_moment(bed, first, second)
    door.idle()

    def counted() -> bool:
        done = len(_LENGTHS) + chats + same
        return _hand_overs(agent) == (before[0] + done, before[1])

    wait_until(f"all hand-overs are counted, without a missing block: {before}", counted, 20.0)
    alone = _prefill_server_dies(bed, door, first, second)
    return f"{len(_LENGTHS) + chats} prompts, {same} in one moment, {whole} whole, {alone} alone"


def _hand_overs(agent: AgentProcess) -> tuple[int, int]:
    """Hand-overs and missing blocks, of all engines."""
    rows = agent.stats()["connectors"]
    return (
        sum(row.get("hand_overs", 0) for row in rows),
        sum(row.get("hand_over_missing", 0) for row in rows),
    )


def _chats(bed: Bed, door: Door, reference: VllmServer) -> int:
    """A conversation in the official client. Its later turns are computed in part only."""
    talk: list[dict[str, Any]] = [{"role": "user", "content": bed.text(120)}]
    last: Answer | None = None
    turns = 3
    for turn in range(turns):
        want = Endpoint(reference.url).chat(talk, 12, cache_salt=bed.salt())
        got = door.chat(talk, 12)
        bed.compare(f"turn {turn}", got.tokens, want.tokens)
        assert got.headers[_PREFILL], f"turn {turn} was not split: {got.headers}"
        if last is not None:
            want_cached = reusable(last.prompt, got.prompt)
            assert got.cached >= want_cached, f"turn {turn}: {got.cached} cached, {want_cached}"
        talk.append({"role": "assistant", "content": got.text})
        talk.append({"role": "user", "content": bed.text(90)})
        last = got
    return turns


def _whole(bed: Bed, door: Door, reference: VllmServer) -> int:
    """Short prompts and answers, which the decode server serves whole."""
    kinds = ((40, 8), (200, 1))
    for tokens, count in kinds:
        prompt = bed.tokens(tokens)
        want = Endpoint(reference.url).complete(prompt, count, cache_salt=bed.salt())
        got = door.complete(prompt, count)
        what = f"{tokens} tokens, {count} to generate"
        bed.compare(what, got.tokens, want.tokens)
        assert _PREFILL not in got.headers, f"{what}: split: {got.headers}"
    return len(kinds)


def _same_moment(bed: Bed, first: VllmServer, second: VllmServer) -> int:
    """Asks both servers at once, without a router. Returns the number of prompts.

    The second server waits until the first one has computed and stored the blocks.
    """
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for tokens in _LENGTHS:
            prompt = bed.tokens(tokens)
            want = Endpoint(first.url).complete(prompt, 12, cache_salt=bed.salt()).tokens
            blocks = tokens // model.BLOCK_TOKENS
            wait = {"blockyard": {"await": blocks, "deadline_ms": 30_000}}
            ask = Endpoint(second.url).complete
            answer = pool.submit(ask, prompt, 12, kv_transfer_params=wait)
            pool.submit(Endpoint(first.url).complete, prompt, 1)
            got = answer.result()
            bed.compare(f"{tokens} tokens in one moment", got.tokens, want)
            assert got.reused == blocks * model.BLOCK_TOKENS, f"{tokens}: {got.reused} cached"
    return len(_LENGTHS)


def _prefill_server_dies(bed: Bed, door: Door, first: VllmServer, second: VllmServer) -> int:
    """The decode server serves alone while the prefill server is dead. Returns the requests."""
    prompts = [bed.tokens(200) for _ in range(4)]
    wants = [Endpoint(second.url).complete(p, 8, cache_salt=bed.salt()).tokens for p in prompts]
    first.kill9()
    for prompt, want in zip(prompts, wants, strict=True):
        got = door.complete(prompt, 8)
        bed.compare("alone", got.tokens, want)
        assert _PREFILL not in got.headers, f"split with a dead server: {got.headers}"
    first.start()
    first.ready()
    return len(prompts)
