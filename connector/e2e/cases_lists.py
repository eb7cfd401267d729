"""Case: the engine's list of its prefix cache agrees with its events."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import zmq

from e2e.runner import case
from e2e.testbed import DEVICE_BLOCKS
from e2e.case import LORA, SharedTestBed, free_ports
from e2e.scripted_agent import ScriptedAgent
from tests.agentproc import wait_until

_REPLAY_MS = 10_000
_END = b"\xff" * 8  # the sequence number that ends a replay


@case("events-list", "an engine lists the same hashes as its events")
def events_list(bed: SharedTestBed) -> str:
    agent = ScriptedAgent(bed.dir)
    bed.at_end(agent.close)
    port, replay = free_ports(2)
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port}",
        "replay_endpoint": f"tcp://*:{replay}",
        "topic": "kv-events",
    }
    settings = {"socket": agent.socket}
    engine = bed.engine("listing", None, extra_config=settings, kv_events_config=events, **LORA)
    wait_until("the engine has sent HELLO", lambda: agent.hello, 30.0)
    assert agent.hello["lists_cached"], agent.hello
    sizes = [_compare(agent, replay)]
    name, path = next(iter(bed.adapters.items()))
    for kind in ({"salt": "tenant"}, {"lora": [name, 1, str(path)]}, {}, {}):
        engine.generate(bed.prompt(500), 4, **kind)  # all prompts together exceed the device
        sizes.append(_compare(agent, replay))
    shared = bed.prompt(300)
    pair = [engine.begin([*shared, *bed.prompt(40)], 40) for _ in range(2)]
    for pending in pair:
        pending.output()
    sizes.append(_compare(agent, replay))
    total = agent.stats.get("device_blocks_total")
    assert total == DEVICE_BLOCKS - 1, agent.stats
    wait_until("an idle engine uses no block", lambda: _idle(agent), 20.0)
    engine.reset_cache()
    engine.generate(bed.prompt(40), 1)  # vLLM publishes the reset in its next step
    sizes.append(_compare(agent, replay))
    assert max(sizes) > DEVICE_BLOCKS // 2 and sizes[-1] < 3, sizes
    bed.stop(engine)
    return f"{len(sizes)} lists of {min(sizes)} to {max(sizes)} blocks, each equal to the events"


def _idle(agent: ScriptedAgent) -> bool:
    absent = ("device_blocks_used", "running_requests", "waiting_requests")
    return not any(agent.stats.get(key) for key in absent)


def _compare(agent: ScriptedAgent, replay: int) -> int:
    """Waits until the list agrees with the events. Returns the number of listed blocks."""

    def same() -> bool:
        return Counter(agent.cached()) == _announced(replay)

    wait_until("the list agrees with the events", same, 20.0)
    return len(agent.cached())


def _announced(replay: int) -> Counter[int]:
    """The device's blocks by hash, according to all events of the engine so far."""
    held: Counter[int] = Counter()
    for event in _replayed(replay):
        if event["type"] == "AllBlocksCleared":
            held.clear()
        elif event["type"] == "BlockStored":
            held.update(event["block_hashes"])
        else:
            held.subtract(event["block_hashes"])
    assert all(count >= 0 for count in held.values()), "a block was removed that was not stored"
    return +held


def _replayed(port: int) -> list[dict[str, Any]]:
    """All published events of the engine, from its replay endpoint."""
    found: list[dict[str, Any]] = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send_multipart([b"", bytes(8)])
        while dealer.poll(_REPLAY_MS):
            *_, sequence, payload = dealer.recv_multipart()
            if sequence == _END:
                return found
            found.extend(msgspec.msgpack.decode(payload)[1])
    raise AssertionError(f"the replay did not end within {_REPLAY_MS} ms")
