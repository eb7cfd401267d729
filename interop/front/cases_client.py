"""The official OpenAI client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import openai

from e2e.runner import case
from front.bed import ADAPTERS, Bed
from front.door import Door, Endpoint, sampling
from front.server import MODEL


@case("openai-client", "the official client gets the server's own answers, streamed and whole")
def openai_client(bed: Bed) -> str:
    servers = bed.plain()
    door = bed.door(servers=servers)
    direct = Endpoint(servers[0].url)
    names = [m.id for m in door.client.models.list()]
    assert sorted(names) == sorted([MODEL, *ADAPTERS]), f"models: {names}"
    compared = _completions(bed, door, direct) + _chats(bed, door, direct)
    _errors(door)
    return f"{compared} tokens compared"


def _completions(bed: Bed, door: Door, direct: Endpoint) -> int:
    text = bed.text(60)
    want = direct.complete(text, 16, cache_salt=bed.salt())
    bed.compare("text completion", door.complete(text, 16).tokens, want.tokens)
    ids = door.complete(want.prompt, 16)
    bed.compare("token-id completion", ids.tokens, want.tokens)
    assert ids.known == "exact", ids.known
    for usage in (None, True, False):
        options = {} if usage is None else {"stream_options": {"include_usage": usage}}
        stream = door.client.completions.create(
            prompt=text, stream=True, **options, **sampling(16, {})
        )
        tokens, content = _streamed(stream, bool(usage), len(want.prompt))
        bed.compare(f"streamed completion, include_usage {usage}", tokens, want.tokens)
        assert content == want.text, f"text: {content!r}, want {want.text!r}"
    return 5 * 16


def _chats(bed: Bed, door: Door, direct: Endpoint) -> int:
    messages = [
        {"role": "system", "content": bed.text(20)},
        {"role": "user", "content": bed.text(40)},
    ]
    want = direct.chat(messages, 16, cache_salt=bed.salt())
    bed.compare("chat", door.chat(messages, 16).tokens, want.tokens)
    for usage in (None, True, False):
        options = {} if usage is None else {"stream_options": {"include_usage": usage}}
        stream = door.client.chat.completions.create(
            messages=messages, stream=True, **options, **sampling(16, {})
        )
        tokens, content = _streamed(stream, bool(usage), len(want.prompt))
        bed.compare(f"streamed chat, include_usage {usage}", tokens, want.tokens)
        assert content == want.text, f"text: {content!r}, want {want.text!r}"
    return 4 * 16


def _streamed(stream: Iterable[Any], usage: bool, prompt: int) -> tuple[list[int], str]:
    """The tokens and the text of a stream. Usage must be there exactly if it was asked for."""
    tokens: list[int] = []
    pieces: list[str] = []
    reported = []
    for chunk in stream:
        if chunk.usage is not None:
            reported.append(chunk.usage.prompt_tokens)
        assert chunk.choices or chunk.usage is not None, f"an empty chunk: {chunk}"
        for choice in chunk.choices:
            tokens += getattr(choice, "token_ids", None) or []  # a role has no tokens
            delta = getattr(choice, "delta", None)
            pieces.append((delta.content if delta else choice.text) or "")
    assert reported == ([prompt] if usage else []), f"usage: {reported}, asked for: {usage}"
    return tokens, "".join(pieces)


def _errors(door: Door) -> None:
    client = door.client
    ask = [{"role": "user", "content": "hello"}]
    unknown = _refused(
        openai.NotFoundError, lambda: client.chat.completions.create(model="nobody", messages=ask)
    )
    assert unknown.code == "model_not_found" and MODEL in str(unknown), unknown
    by_door = _refused(
        openai.BadRequestError, lambda: client.completions.create(model=MODEL, prompt={"a": 1})
    )
    assert by_door.param == "prompt", by_door
    by_server = _refused(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=MODEL, messages=ask, temperature=-7),
    )
    assert "temperature" in str(by_server), by_server
    _refused(
        openai.BadRequestError,
        lambda: client.completions.create(model=MODEL, prompt=[5] * 5000, max_tokens=8),
    )
    _refused(openai.NotFoundError, lambda: client.files.list())


def _refused(kind: type[openai.APIStatusError], call: Any) -> openai.APIStatusError:
    try:
        call()
    except kind as err:
        return err
    raise AssertionError(f"want {kind.__name__}, got an answer")
