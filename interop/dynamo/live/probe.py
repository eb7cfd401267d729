"""A real Dynamo KvRouter that answers requests: python -m live.probe ENDPOINT BLOCK_SIZE.

Every line of input is a request in JSON, and every line of output an answer:

    {"op": "overlap", "tokens": [...], "lora": null, "salt": null}   the credit of each worker
    {"op": "generate", "tokens": [...], "worker": W, "rank": R, "output": N}   runs a request
    {"op": "workers"}    the ids of the workers

An answer {"error": text} means that the router raised an exception. Dynamo's own environment
variables configure its discovery.
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
        case "workers":
            return client.instance_ids()
    raise ValueError(f"unknown op {q['op']!r}")


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
            result = await answer(router, client, json.loads(line))
        except Exception as err:  # the test process gets the error
            result = {"error": repr(err)}
        print(json.dumps(result), flush=True)
    runtime.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
