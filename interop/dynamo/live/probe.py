"""A real Dynamo KvRouter that can be asked: python -m live.probe ENDPOINT BLOCK_SIZE.

Reads one request as JSON per line and answers each with one line:

    {"op": "overlap", "tokens": [...], "lora": null, "salt": null}   what it credits to each worker
    {"op": "generate", "tokens": [...], "worker": W, "rank": R, "output": N}   runs a request
    {"op": "dump"}       the router's events
    {"op": "workers"}    the instances it sees

An answer {"error": text} says that the router refused. Where it finds Dynamo is said by Dynamo's
own environment variables.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from dynamo.llm import KvRouter, KvRouterConfig
from dynamo.runtime import DistributedRuntime


async def answer(router: Any, client: Any, q: dict[str, Any]) -> Any:
    """The answer to one request."""
    match q["op"]:
        case "overlap":
            return await router.get_overlap_scores(
                q["tokens"], None, None, q.get("lora"), True, q.get("salt")
            )
        case "generate":
            stream = await router.generate(
                q["tokens"],
                "tiny",
                stop_conditions={"max_tokens": q["output"], "ignore_eos": True},
                worker_id=q["worker"],
                dp_rank=q["rank"],
            )
            return {"items": len([item async for item in stream])}
        case "dump":
            return json.loads(await router.dump_events())
        case "workers":
            return client.instance_ids()
    raise ValueError(f"op {q['op']!r} is not known")


async def main() -> None:
    """Serves until the input ends."""
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(
        loop,
        os.environ["DYN_DISCOVERY_BACKEND"],
        "tcp",
        event_plane=os.environ["DYN_EVENT_PLANE"],
    )
    endpoint = runtime.endpoint(sys.argv[1])
    client = await endpoint.client()
    router = KvRouter(
        endpoint=endpoint,
        block_size=int(sys.argv[2]),
        kv_router_config=KvRouterConfig(use_kv_events=True),
    )
    print(json.dumps({"ready": True}), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            said = await answer(router, client, json.loads(line))
        except Exception as err:  # whatever Dynamo raises is its answer
            said = {"error": repr(err)}
        print(json.dumps(said), flush=True)
    runtime.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
