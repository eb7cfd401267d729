"""A real Dynamo KvEventPublisher: from a vLLM-format ZMQ stream to the event plane.

python -m live.relay ENDPOINT WORKER_ID BLOCK_SIZE DP_RANK ZMQ_ENDPOINT
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from dynamo.llm import KvEventPublisher
from dynamo.runtime import DistributedRuntime


async def main() -> None:
    """Publishes until the process is killed."""
    runtime = DistributedRuntime(
        asyncio.get_running_loop(),
        os.environ["DYN_DISCOVERY_BACKEND"],
        "tcp",
        event_plane=os.environ["DYN_EVENT_PLANE"],
    )
    publisher = KvEventPublisher(
        endpoint=runtime.endpoint(sys.argv[1]),
        worker_id=int(sys.argv[2]),
        kv_block_size=int(sys.argv[3]),
        dp_rank=int(sys.argv[4]),
        zmq_endpoint=sys.argv[5],
        enable_local_indexer=True,
        zmq_topic="",
    )
    print(json.dumps({"ready": True}), flush=True)
    await asyncio.Event().wait()
    del publisher  # keeps the publisher alive until here


if __name__ == "__main__":
    asyncio.run(main())
