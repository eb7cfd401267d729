"""Servers whose blocks an agent keeps in host memory."""

from __future__ import annotations

from e2e.runner import case
from front.bed import Bed
from front.cases_cache import reusable
from front.door import Answer, Door, Endpoint
from tests.agentproc import wait_until

_CONVERSATIONS = 16
_TURNS = 3
_FILLERS = 6  # prompts of 16 blocks, more than the device of one server holds


@case("with-agent", "conversations that do not fit the devices are served from host memory")
def with_agent(bed: Bed) -> str:
    servers = bed.with_agent()
    agent = bed.agent
    assert agent is not None
    door = bed.door(f"--agents={agent.admin}", workers=len(servers))
    direct = Endpoint(servers[0].url)
    talks = [[{"role": "user", "content": bed.text(90)}] for _ in range(_CONVERSATIONS)]
    last: list[Answer | None] = [None] * _CONVERSATIONS
    cached = 0
    for turn in range(_TURNS):
        for number, talk in enumerate(talks):
            got = door.chat(talk)
            what = f"conversation {number}, turn {turn}"
            before = last[number]
            if before is not None:
                want = reusable(before.prompt + before.tokens, got.prompt)
                assert got.cached >= want, f"{what}: {got.cached} tokens cached, want {want}"
                cached += got.cached
                assert got.predicted == got.cached, (
                    f"{what}: predicted {got.predicted}, {got.cached}"
                )
            last[number] = got
            talk.append({"role": "assistant", "content": got.text})
            talk.append({"role": "user", "content": bed.text(20)})
        wait_until("the agent is quiet", lambda: agent.stats()["quiet"], 20.0, pause=0.05)
    repeated = _repeated(bed, door, direct)
    loaded = agent.stats()["cache"]["onboarded_host"]
    assert loaded, "no block was loaded from host memory"
    return f"{cached} tokens cached as predicted, {repeated}, {loaded} blocks loaded"


def _repeated(bed: Bed, door: Door, direct: Endpoint) -> str:
    """Sends prompts again, from the device and from host memory.

    The length of a prompt decides how much of it a load covers. Returns a remark.
    """
    remarks = []
    for tokens in (96, 97, 127):
        prompt = bed.tokens(tokens)
        want = direct.complete(prompt, 12, cache_salt=bed.salt()).tokens
        first = door.complete(prompt, 12)
        assert (first.predicted, first.cached) == (0, 0), f"new prompt: {first}"
        bed.compare(f"{tokens} tokens, computed", first.tokens, want)
        door.caught_up(first)
        near = door.complete(prompt, 12)
        bed.compare(f"{tokens} tokens, from the device", near.tokens, want)
        for _ in range(_FILLERS):  # other prompts evict the blocks from the device
            door.pinned(first.worker).complete(bed.tokens(512), 1)
        wait_until("the device has no block", lambda: not door.overlap(prompt, first.worker), 20.0)
        far = door.pinned(first.worker).complete(prompt, 12)
        bed.compare(f"{tokens} tokens, from host memory", far.tokens, want)
        for again in (near, far):
            assert again.predicted == again.reused, f"{tokens}: {again.predicted}, {again.reused}"
        remarks.append(f"{far.cached} of {tokens}")
    return ", ".join(remarks)
