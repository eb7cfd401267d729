"""Case: what the engine lists of its prefix cache is what its events say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import zmq

from e2e.bed import DEVICE_BLOCKS
from e2e.case import LORA, Yard, case, free_ports
from e2e.handagent import HandAgent
from tests.agentproc import wait_until

_REPLAY_MS = 10_000
_END = b"\xff" * 8  # the sequence number that ends a replay


@case("events-list", "the hashes that an engine lists are those of its events")
def events_list(yard: Yard) -> str:
    agent = HandAgent(yard.dir)
    yard.at_end(agent.close)
    port, replay = free_ports(2)
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port}",
        "replay_endpoint": f"tcp://*:{replay}",
        "topic": "kv-events",
    }
    settings = {"socket": agent.socket}
    engine = yard.engine("listing", None, by_hand=settings, kv_events_config=events, **LORA)
    wait_until("the engine has found the agent", lambda: agent.hello, 30.0)
    assert agent.hello["lists_cached"], agent.hello
    sizes = [_compare(agent, replay)]
    name, path = next(iter(yard.adapters.items()))
    for kind in ({"salt": "tenant"}, {"lora": [name, 1, str(path)]}, {}, {}):
        engine.generate(yard.prompt(500), 4, **kind)  # with the others more than the device holds
        sizes.append(_compare(agent, replay))
    shared = yard.prompt(300)
    pair = [engine.begin([*shared, *yard.prompt(40)], 40) for _ in range(2)]
    for pending in pair:
        pending.output()
    sizes.append(_compare(agent, replay))
    total = agent.stats.get("device_blocks_total")
    assert total == DEVICE_BLOCKS - 1, agent.stats
    wait_until("an idle engine uses no block", lambda: _idle(agent), 20.0)
    engine.forget()
    engine.generate(yard.prompt(40), 1)  # vLLM publishes the reset in its next step
    sizes.append(_compare(agent, replay))
    assert max(sizes) > DEVICE_BLOCKS // 2 and sizes[-1] < 3, sizes
    yard.stop(engine)
    return f"{len(sizes)} lists of {min(sizes)} to {max(sizes)} blocks, each equal to the events"


def _idle(agent: HandAgent) -> bool:
    absent = ("device_blocks_used", "running_requests", "waiting_requests")
    return not any(agent.stats.get(key) for key in absent)


def _compare(agent: HandAgent, replay: int) -> int:
    """Compares the list with the events, which may be on their way; how many there are."""

    def same() -> bool:
        return Counter(agent.cached()) == _announced(replay)

    wait_until("the list is what the events announced", same, 20.0)
    return len(agent.cached())


def _announced(replay: int) -> Counter[int]:
    """What all events of the engine so far leave on the device, by hash."""
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
    """Every event that the engine has published."""
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
