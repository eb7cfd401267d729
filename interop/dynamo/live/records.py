"""The discovery records of a Dynamo worker without a process."""

from __future__ import annotations

import json
import os
import pathlib
import threading
from typing import Any

_TOUCH_SECONDS = 3.0


def _escaped(key: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else f"%{ord(c):02X}" for c in key)


class WorkerRecords:
    """The endpoint record and the model card of a worker that serves no requests.

    Routers follow the worker's event sources. The records stay fresh until close().
    """

    def __init__(
        self, discovery: pathlib.Path, endpoint: str, worker: int, ranks: int, block: int, name: str
    ) -> None:
        namespace, component, served = endpoint.split(".")
        key = f"{namespace}/{component}/{served}/{worker:x}"
        address = {"namespace": namespace, "component": component, "endpoint": served}
        instance = {
            "type": "Endpoint",
            **address,
            "instance_id": worker,
            "transport": {"tcp": f"127.0.0.1:9/{worker:x}/{namespace}/{component}/{served}"},
            "device_type": "cuda",
            "request_plane_codec": "msgpack",
        }
        self._files = [
            _put(discovery / "v1" / "instances", key, instance),
            _put(discovery / "v1" / "mdc", key, _card(address, worker, ranks, block, name)),
        ]
        self._ended = threading.Event()
        self._toucher = threading.Thread(target=self._touch, daemon=True)
        self._toucher.start()

    def _touch(self) -> None:
        while not self._ended.wait(_TOUCH_SECONDS):
            for file in self._files:
                os.utime(file)

    def close(self) -> None:
        """Removes the records."""
        self._ended.set()
        self._toucher.join()
        for file in self._files:
            file.unlink(missing_ok=True)


def _put(directory: pathlib.Path, key: str, record: dict[str, Any]) -> pathlib.Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / _escaped(key)
    draft = directory.parent / f".{file.name}"
    draft.write_text(json.dumps(record))
    return draft.rename(file)


def _card(
    address: dict[str, str], worker: int, ranks: int, block: int, name: str
) -> dict[str, Any]:
    runtime = {
        "context_length": 4096,
        "total_kv_blocks": 512,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "data_parallel_start_rank": 0,
        "data_parallel_size": ranks,
        "enable_local_indexer": True,
        "kv_event_publishing_enabled": True,
        "enable_eagle": False,
    }
    card = {
        "display_name": name,
        "slug": name,
        "source_path": name,
        "model_info": None,
        "tokenizer": None,
        "prompt_formatter": None,
        "context_length": 4096,
        "kv_cache_block_size": block,
        "migration_limit": 0,
        "model_type": "Chat | Completions",
        "model_input": "Tokens",
        "worker_type": "aggregated",
        "needs": [],
        "runtime_config": runtime,
        "media_decoder": None,
        "media_fetcher": None,
    }
    return {"type": "Model", **address, "instance_id": worker, "card_json": card}
