"""Cases of faults: bytes change and processes die, and the tokens stay right."""

from __future__ import annotations

import os

from e2e import faults, model
from e2e.case import SharedTestBed
from e2e.cases_reload import hit, resident, same
from e2e.engineproc import EngineProcess
from e2e.runner import case
from tests.agentproc import AgentProcess

# The index of the damaged block in a prompt. The blocks before it are good.
_BAD = 3
_GOOD_TOKENS = _BAD * model.BLOCK_TOKENS


def control(bed: SharedTestBed) -> str:
    """Checks that damaged blocks in live host memory change the tokens.

    The connector trusts live memory and loads the damaged blocks. If the tokens do not change,
    equal tokens prove nothing in any case. The exchanged blocks are of two prompts. An exchange
    within one prompt changes nothing, because a key carries its position.
    """
    agent, engine = bed.main, bed.first
    for damage in (_zero, _exchange):
        one, other = bed.prompt(330), bed.prompt(330)
        tokens = [bed.stored(agent, engine, prompt).tokens for prompt in (one, other)]
        damage(*(faults.host_location(resident(agent, prompt)[_BAD]) for prompt in (one, other)))
        for prompt, right in zip((one, other), tokens, strict=True):
            out = engine.generate(prompt)
            bed.reset_cache(agent, engine)
            assert out.cached == hit(len(prompt)), f"{out.cached} tokens were cached"
            assert out.tokens != right, f"blind: the tokens are equal after {damage.__name__}"
        agent.post("/v1/reset", {"tier": "all"})
    return "a zeroed and an exchanged block change the tokens"


def _zero(one: faults.Location, other: faults.Location) -> None:
    faults.write(one, bytes(model.BLOCK_BYTES))
    faults.write(other, bytes(model.BLOCK_BYTES))


def _exchange(one: faults.Location, other: faults.Location) -> None:
    kept = faults.read(one), faults.read(other)
    faults.write(one, kept[1])
    faults.write(other, kept[0])


@case("flipped-byte-disk", "a block with changed bytes on disk is a miss")
def flipped_byte_disk(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    prompt = bed.prompt(330)
    tokens = bed.stored(agent, engine, prompt).tokens
    faults.flip(faults.disk_location(resident(agent, prompt)[_BAD]))
    agent.post("/v1/reset", {"tier": "host"})
    before = bed.count(agent, "corrupt_reads")
    same(engine.generate(prompt), tokens, _GOOD_TOKENS)
    found = bed.count(agent, "corrupt_reads") - before
    assert found == 1, f"{found} corrupt blocks were found"
    bed.reset_cache(agent, engine)
    return f"{_GOOD_TOKENS} of {hit(len(prompt))} tokens loaded"


@case("flipped-byte-host-while-agent-down", "the next agent finds bytes that changed meanwhile")
def flipped_byte_host(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    prompt = bed.prompt(330)
    tokens = bed.stored(agent, engine, prompt).tokens
    bad = resident(agent, prompt)[_BAD]
    faults.drop(agent, "disk", [bad])  # otherwise the agent reads the good copy
    bed.kill(agent)
    faults.flip(faults.host_location(bad))
    _restart(bed, agent, engine)
    same(engine.generate(prompt), tokens, _GOOD_TOKENS)
    found = bed.count(agent, "corrupt_host")
    assert found == 1, f"{found} corrupt blocks were found in host memory"
    bed.reset_cache(agent, engine)
    return f"{_GOOD_TOKENS} of {hit(len(prompt))} tokens loaded"


@case("agent-kill-restart", "engines outlive the agent, and the next agent has the same blocks")
def agent_kill_restart(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    prompt, running = bed.prompt(500), bed.prompt(100)
    reference = bed.computed(engine, running, 400)
    tokens = bed.stored(agent, engine, prompt).tokens
    arena = _files(resident(agent, prompt))
    request = engine.begin(running, 400)
    request.started()
    bed.kill(agent)
    out = request.output()
    assert out.tokens == reference, "the agent's death changed the tokens of a running request"
    engine.reset_cache()
    same(engine.generate(prompt), tokens, 0)  # without an agent the engine computes
    _restart(bed, agent, engine)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    granted = bed.count(agent, "granted")
    assert granted == 0, f"{granted} slots were granted before the first hit"
    assert _files(resident(agent, prompt)) == arena, "the blocks are not in the same files"
    bed.reset_cache(agent, engine)
    bed.settled(agent)
    return f"{hit(len(prompt))} tokens from the files of the dead agent"


def _files(blocks: list[faults.Block]) -> set[tuple[str, int]]:
    """Path and inode of the host files of blocks."""
    paths = {faults.host_location(b).path for b in blocks}
    return {(path, os.stat(path).st_ino) for path in paths}


def _restart(bed: SharedTestBed, agent: AgentProcess, engine: EngineProcess) -> None:
    """Starts a killed agent, waits for its engines, and resets the engine's own cache."""
    agent.start()
    bed.connected(agent)
    engine.reset_cache()


@case("first-block-fails", "the engine computes a load that fails at its first block")
def first_block_fails(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    prompt = bed.prompt(330)
    tokens = bed.stored(agent, engine, prompt).tokens
    claims = agent.stats()["engines"]["claims"]
    # Between the answer and the copy, the slot gets another block.
    with faults.reassigned(faults.host_location(resident(agent, prompt)[0])):
        out = engine.generate(prompt)
    same(out, tokens, 0)
    tried = agent.stats()["engines"]["claims"] - claims
    assert tried == 1, f"the load was tried {tried} times"
    bed.reset_cache(agent, engine)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    bed.reset_cache(agent, engine)
    return "one try, then computed"


def fail_one(bed: SharedTestBed, engine: EngineProcess) -> tuple[list[int], list[int]]:
    """Checks that a failed load ends its request, and no other one that runs. Returns the prompt of
    the failed request and the tokens that it should have had."""
    agent = bed.main
    prompt, other = bed.prompt(330), bed.prompt(330)
    tokens = bed.stored(agent, engine, prompt).tokens
    others = bed.stored(agent, engine, other).tokens
    with faults.reassigned(faults.host_location(resident(agent, prompt)[0])):
        running = engine.begin(other)
        out = engine.generate(prompt)
        same(running.output(), others, hit(len(other)))
    assert out.finish == "error", f"the request ended with {out.finish}"
    assert not out.tokens, f"{len(out.tokens)} tokens of a request without its blocks"
    return prompt, tokens


@case("first-block-fails-policy-fail", "under `fail` a failed load ends its request and no other")
def first_block_fails_request(bed: SharedTestBed) -> str:
    agent = bed.main
    engine = bed.engine("strict", agent, policy="fail")
    prompt, tokens = fail_one(bed, engine)
    failed = engine.failed_loads(1)
    assert failed == 1, f"vLLM's metrics have {failed} failed loads"
    bed.reset_cache(agent, engine)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    bed.reset_cache(agent, engine)
    bed.stop(engine)
    return "one request ended with an error, the next one was loaded"
