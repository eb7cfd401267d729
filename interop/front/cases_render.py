"""Chats reach the servers with the tokens that a render route has made of them."""

from __future__ import annotations

import contextlib
from typing import Any

from e2e.runner import case
from front.bed import Bed
from front.cases_cache import reusable
from front.door import Door, Endpoint
from front.recorder import Recorder

_CHAT = "/v1/chat/completions"


@case("render", "chats with tools and documents are exact, and servers take the rendered tokens")
def render(bed: Bed) -> str:
    servers = bed.rendering()
    direct = Endpoint(servers[0].url)
    kinds = _kinds(bed)
    with contextlib.ExitStack() as stack:
        recorders = [Recorder(s.url) for s in servers]
        for r in recorders:
            stack.callback(r.close)
        door = bed.door(servers=recorders)
        for name, fields in kinds.items():
            _twice(bed, door, direct, recorders, name, fields)
        # The router asks a new server without a prompt, to see which routes the server has.
        tokenized = [body for body in _posts(recorders, "/tokenize") if body]
        assert not tokenized, f"the router has tokenised what was rendered: {tokenized}"
        renders = sum(bool(body) for body in _posts(recorders, _CHAT + "/render"))
        bed.close_doors()
    _tokens_win(bed, direct)
    return f"{len(kinds)} kinds of chats, twice each, with {renders} render calls"


def _kinds(bed: Bed) -> dict[str, dict[str, Any]]:
    """Members of chats whose prompts are more than their messages, by name."""
    tool = {
        "type": "function",
        "function": {"name": "weather", "description": bed.text(30), "parameters": {}},
    }
    return {
        "plain": {},
        "tools": {"tools": [tool], "tool_choice": "none"},
        "documents": {"documents": [{"title": "yard", "text": bed.text(30)}]},
        "reasoning": {"reasoning_effort": "low"},
    }


def _twice(
    bed: Bed,
    door: Door,
    direct: Endpoint,
    recorders: list[Recorder],
    name: str,
    fields: dict[str, Any],
) -> None:
    """Sends a chat twice. Both requests must carry its tokens, and only the first is rendered."""
    talk = [{"role": "user", "content": bed.text(40)}]
    want = direct.chat(talk, 16, cache_salt=bed.salt(), **fields)
    earlier = len(_posts(recorders, _CHAT + "/render"))
    rendered = earlier
    for attempt in (1, 2):
        got = door.chat(talk, 16, **fields)
        what = f"{name}, request {attempt}"
        assert got.known == "exact", f"{what}: tokens {got.known}"
        bed.compare(what, got.tokens, want.tokens)
        bed.compare(f"{what}, prompt", got.prompt, want.prompt)
        bodies = [b for b in _posts(recorders, _CHAT) if b["messages"] == talk]
        assert len(bodies) == attempt, f"{what}: the servers got {len(bodies)} requests"
        carried = bodies[-1]["kv_transfer_params"]["prompt_token_ids"]
        bed.compare(f"{what}, tokens in the request", carried, want.prompt)
        calls = len(_posts(recorders, _CHAT + "/render"))
        # A slow render server has the router ask the other one too.
        allowed = range(earlier + 1, earlier + 3) if attempt == 1 else range(rendered, rendered + 1)
        assert calls in allowed, f"{what}: {calls - earlier} render calls"
        rendered = calls
    assert got.cached == reusable([*want.prompt, 0], want.prompt), f"{name}: {got.cached} cached"
    assert got.predicted == got.cached, f"{name}: predicted {got.predicted}, {got.cached}"
    logged = door.logged()[-1]["prompt_tokens"]
    assert logged == len(got.prompt), f"{name}: the router saw {logged} tokens"


def _posts(recorders: list[Recorder], route: str) -> list[Any]:
    return [body for r in recorders for body in r.posts(route)]


def _tokens_win(bed: Bed, direct: Endpoint) -> None:
    """A server computes the tokens that a request carries, and does not render its text."""
    ids = bed.tokens(64)
    want = direct.complete(ids, 16, cache_salt=bed.salt())
    talk = [{"role": "user", "content": bed.text(40)}]
    params = {"prompt_token_ids": ids}
    got = direct.chat(talk, 16, cache_salt=bed.salt(), kv_transfer_params=params)
    bed.compare("prompt of a request with tokens", got.prompt, ids)
    bed.compare("answer to a request with tokens", got.tokens, want.tokens)
