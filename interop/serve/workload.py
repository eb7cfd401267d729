"""Conversations of a run, and the share of them that an infinite cache would serve."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bench.model import BLOCK_TOKENS
from front.tokenizer import words

# Words of a text. A word is about three tokens of the tests' tokenizer.
SYSTEM_WORDS = 75
FIRST_WORDS = 55
NEXT_WORDS = 22
ANSWER_WORDS = 15

Message = dict[str, str]


class Request(NamedTuple):
    """One request of a plan.

    scenario: the kind of its conversation. after: index of the request that must end first; -1
    without one.
    """

    scenario: str
    messages: list[Message]
    after: int


class _Texts:
    """Random texts. Texts of another seed or another run have no prefix in common."""

    def __init__(self, run: str, seed: int) -> None:
        self._run, self._seed, self._count = run, seed, 0

    def __call__(self, count: int) -> str:
        self._count += 1
        return f"{self._run} {words(self._seed * 100_003 + self._count, count)}"


def _turns(texts: _Texts, count: int, start: Sequence[Message] = ()) -> list[list[Message]]:
    """The messages of each turn of a conversation that begins with `start`.

    The answers are part of the workload: every router and tier gets the same prompts, whatever
    the engine has said.
    """
    messages = list(start)
    turns = []
    for turn in range(count):
        size = NEXT_WORDS if turn or start else FIRST_WORDS
        messages = [*messages, {"role": "user", "content": texts(size)}]
        turns.append(messages)
        messages = [*messages, {"role": "assistant", "content": texts(ANSWER_WORDS)}]
    return turns


def _sequential(texts: _Texts, size: int) -> list[list[list[Message]]]:
    """Conversations one after the other: all turns of one before the next one begins."""
    return [_turns(texts, 4) for _ in range(max(size // 2, 1))]


def _interleaved(texts: _Texts, size: int) -> list[list[list[Message]]]:
    """Conversations that all run at once, turn by turn."""
    return [_turns(texts, 4) for _ in range(size)]


def _shared(texts: _Texts, size: int) -> list[list[list[Message]]]:
    """Interleaved conversations. Every four have a system prompt in common."""
    found = []
    for _ in range(max(size // 4, 1)):
        system = [{"role": "system", "content": texts(SYSTEM_WORDS)}]
        found += [_turns(texts, 3, system) for _ in range(4)]
    return found


def _forks(texts: _Texts, size: int) -> list[list[list[Message]]]:
    """Interleaved conversations. Every four continue the same two turns in different ways."""
    found = []
    for _ in range(max(size // 4, 1)):
        trunk = _turns(texts, 3)
        # The last list of the trunk ends with a question. Its forks ask others.
        start = trunk[-1][:-1]
        found += [trunk[:2] + _turns(texts, 2, start)]
        found += [_turns(texts, 2, start) for _ in range(3)]
    return found


SCENARIOS: dict[str, Callable[[_Texts, int], list[list[list[Message]]]]] = {
    "sequential": _sequential,
    "interleaved": _interleaved,
    "shared": _shared,
    "forks": _forks,
}


def plan(run: str, seed: int, size: int) -> list[Request]:
    """The requests of a run, in the order in which clients send them.

    run: a word that no other run has, so that runs share no prefix. size: conversations at once.
    """
    texts = _Texts(run, seed)
    requests: list[Request] = []
    for scenario, make in SCENARIOS.items():
        conversations = make(texts, size)
        last = [-1] * len(conversations)
        for number, turn in _order(scenario, [len(c) for c in conversations]):
            messages = conversations[number][turn]
            requests.append(Request(scenario, messages, last[number]))
            last[number] = len(requests) - 1
    return requests


def _order(scenario: str, lengths: list[int]) -> Iterator[tuple[int, int]]:
    """The order of the turns: pairs of conversation and turn."""
    if scenario == "sequential":
        yield from ((c, t) for c, length in enumerate(lengths) for t in range(length))
        return
    for turn in range(max(lengths)):
        yield from ((c, turn) for c, length in enumerate(lengths) if turn < length)


class Ideal(NamedTuple):
    """The tokens of a prompt, and how many of them an infinite cache would serve."""

    prompt: int
    cached: int


class Infinite:
    """A cache that keeps every block, for all servers together."""

    def __init__(self, model: pathlib.Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(model))

    def serve(self, requests: list[Request]) -> list[Ideal]:
        """What the cache would serve when the requests were computed in their order."""
        known: set[int] = set()
        found = []
        for request in requests:
            ids = self._tokenizer.apply_chat_template(
                request.messages, add_generation_prompt=True, return_dict=False
            )
            chain = list(_chain(ids))
            usable = chain[: (len(ids) - 1) // BLOCK_TOKENS]  # an engine computes the last token
            hit = next((i for i, key in enumerate(usable) if key not in known), len(usable))
            found.append(Ideal(len(ids), hit * BLOCK_TOKENS))
            known.update(chain)
        return found


def _chain(ids: list[int]) -> Iterator[int]:
    """An identity for each complete block with its prefix."""
    key = 0
    for end in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS):
        key = hash((key, *ids[end - BLOCK_TOKENS : end]))
        yield key
