"""Cases of KV events: the router's index of an engine."""

from __future__ import annotations

from typing import Any

from e2e import faults, hashes
from e2e.case import SharedTestBed
from e2e.runner import case
from e2e.services import Service
from tests.agentproc import wait_until


@case("events-to-router", "the router has the engine's blocks, under the agent's hashes")
def events_to_router(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    ports = ("--http=127.0.0.1:0", "--control=127.0.0.1:0")
    router = Service("router", *ports, env={"BLOCKYARD_NATS": bed.nats})
    bed.at_end(router.close)
    # Device and pool are empty from here on.
    bed.reset_cache(agent, engine)
    agent.post("/v1/reset", {"tier": "all"})
    name, path = next(iter(bed.adapters.items()))
    want: set[str] = set()
    for salt, lora in (("", ""), ("tenant-three", ""), ("", name)):
        prompt = bed.prompt(330)
        adapter = [lora, 1, str(path)] if lora else None
        engine.generate(prompt, 1, salt=salt or None, lora=adapter)
        want.update(hashes.chain(prompt, salt=salt, lora_name=lora))
    wait_until("the pool holds the blocks", lambda: _pool(agent.get("/v1/pools")) == want, 20.0)

    def known(kind: str, tier: str) -> set[str]:
        return {
            f"{b['block_hash']:016x}"
            for e in router.get("/v1/dump", "control")
            if e.get("owner_kind", "worker") == kind and e["storage_tier"] == tier
            for b in e["event"]["data"]["stored"]["blocks"]
        }

    text = f"the router has exactly these {len(want)} blocks"
    wait_until(f"{text} of the pool", lambda: known("pool", "host_pinned") == want, 20.0)
    wait_until(f"{text} of the device", lambda: known("worker", "device") == want, 20.0)
    assert {b.hash for b in faults.blocks(agent)} == want
    bed.reset_cache(agent, engine)
    engine.generate(after := bed.prompt(100), 1)  # vLLM publishes the reset in its next step
    left = set(hashes.chain(after))
    wait_until("the router removes the rest", lambda: known("worker", "device") == left, 20.0)
    bed.reset_cache(agent, engine)
    return f"{len(want)} blocks by engine, agent and router"


def _pool(pools: list[dict[str, Any]]) -> set[str]:
    return {b["hash"] for pool in pools for b in pool["blocks"]}
