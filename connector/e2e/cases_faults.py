"""Cases: bytes change and processes die, and the tokens stay right all the same."""

from __future__ import annotations

import os

from e2e import faults, model
from e2e.case import Yard, case
from e2e.cases_reload import hit, resident, same
from e2e.engineproc import EngineProcess
from tests.agentproc import AgentProcess

# The block of a prompt that is damaged: what lies before it is still good.
_BAD = 3
_GOOD_TOKENS = _BAD * model.BLOCK_TOKENS


def control(yard: Yard) -> str:
    """A block zeroed, or exchanged for that of another prompt, in live host memory changes the
    tokens. Live memory is trusted, so that the connector must load what is there: when the tokens
    stay the same, they tell nothing about the KV, and none of the cases means anything.

    Two blocks of one prompt exchanged would change nothing: their keys carry their positions, and
    attention does not care where they lie.
    """
    agent, engine = yard.main, yard.first
    for damage in (_zero, _exchange):
        one, other = yard.prompt(330), yard.prompt(330)
        tokens = [yard.stored(agent, engine, prompt).tokens for prompt in (one, other)]
        damage(*(faults.host_place(resident(agent, prompt)[_BAD]) for prompt in (one, other)))
        for prompt, right in zip((one, other), tokens, strict=True):
            out = engine.generate(prompt)
            yard.forget(agent, engine)
            assert out.cached == hit(len(prompt)), f"{out.cached} tokens were cached"
            assert out.tokens != right, f"blind: tokens are the same after {damage.__name__}"
        agent.post("/v1/reset", {"tier": "all"})
    return "a zeroed and an exchanged block change the tokens"


def _zero(one: faults.Place, other: faults.Place) -> None:
    faults.write(one, bytes(model.BLOCK_BYTES))
    faults.write(other, bytes(model.BLOCK_BYTES))


def _exchange(one: faults.Place, other: faults.Place) -> None:
    kept = faults.read(one), faults.read(other)
    faults.write(one, kept[1])
    faults.write(other, kept[0])


@case("flipped-byte-disk", "a block whose bytes changed on disk is a miss")
def flipped_byte_disk(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    prompt = yard.prompt(330)
    tokens = yard.stored(agent, engine, prompt).tokens
    faults.flip(faults.disk_place(resident(agent, prompt)[_BAD]))
    agent.post("/v1/reset", {"tier": "host"})
    before = yard.count(agent, "corrupt_reads")
    same(engine.generate(prompt), tokens, _GOOD_TOKENS)
    found = yard.count(agent, "corrupt_reads") - before
    assert found == 1, f"{found} corrupt blocks were found"
    yard.forget(agent, engine)
    return f"{_GOOD_TOKENS} of {hit(len(prompt))} tokens loaded"


@case("flipped-byte-host-while-agent-down", "a change nobody watched is found by the next agent")
def flipped_byte_host(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    prompt = yard.prompt(330)
    tokens = yard.stored(agent, engine, prompt).tokens
    bad = resident(agent, prompt)[_BAD]
    faults.drop(agent, "disk", [bad])  # else it would be read from there, rightly
    yard.kill(agent)
    faults.flip(faults.host_place(bad))
    _restart(yard, agent, engine)
    same(engine.generate(prompt), tokens, _GOOD_TOKENS)
    found = yard.count(agent, "corrupt_host")
    assert found == 1, f"{found} corrupt blocks were found in host memory"
    yard.forget(agent, engine)
    return f"{_GOOD_TOKENS} of {hit(len(prompt))} tokens loaded"


@case("agent-kill-restart", "engines outlive the agent, and the next one has what it had")
def agent_kill_restart(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    prompt, running = yard.prompt(500), yard.prompt(100)
    reference = yard.computed(engine, running, 400)
    tokens = yard.stored(agent, engine, prompt).tokens
    arena = _files(resident(agent, prompt))
    request = engine.begin(running, 400)
    request.started()
    yard.kill(agent)
    out = request.output()
    assert out.tokens == reference, "the request that ran when the agent died went wrong"
    engine.forget()
    same(engine.generate(prompt), tokens, 0)  # nobody there: computed again
    _restart(yard, agent, engine)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    granted = yard.count(agent, "granted")
    assert granted == 0, f"{granted} slots were granted before the first hit"
    assert _files(resident(agent, prompt)) == arena, "the blocks lie in other files than before"
    yard.forget(agent, engine)
    yard.settled(agent)
    return f"{hit(len(prompt))} tokens from the files of the dead agent"


def _files(blocks: list[faults.Block]) -> set[tuple[str, int]]:
    """Path and inode of the host files in which blocks lie."""
    paths = {faults.host_place(b).path for b in blocks}
    return {(path, os.stat(path).st_ino) for path in paths}


def _restart(yard: Yard, agent: AgentProcess, engine: EngineProcess) -> None:
    """Starts a killed agent, waits for its engines and empties the engine's own cache."""
    agent.start()
    yard.connected(agent)
    engine.forget()


@case("first-block-fails", "a load that fails at its first block is computed, not tried for ever")
def first_block_fails(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    prompt = yard.prompt(330)
    tokens = yard.stored(agent, engine, prompt).tokens
    claims = agent.stats()["engines"]["claims"]
    # As if the slot had been given to another block between the answer and the copy.
    with faults.given_away(faults.host_place(resident(agent, prompt)[0])):
        out = engine.generate(prompt)
    same(out, tokens, 0)
    tried = agent.stats()["engines"]["claims"] - claims
    assert tried == 1, f"the load was tried {tried} times"
    yard.forget(agent, engine)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    yard.forget(agent, engine)
    return "one try, then computed"
