"""One vLLM engine as a child process that speaks lines of JSON.

    python -m e2e.engine OPTIONS    (one JSON object: arguments of AsyncEngineArgs)

A request is a line on standard input with `id` and `op`. An answer is a line on the original
standard output with the same `id`. Answers leave when they are ready, in any order. vLLM logs to
standard output, so the process redirects it to standard error. The operation `shutdown` and the
end of standard input end the engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, TextIO

import prometheus_client
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.config.kv_events import KVEventsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

# Limit of a request line in bytes, enough for a prompt of some thousand tokens.
_LINE_LIMIT = 1 << 22


class Engine:
    """Runs the operations. The coroutine `op_NAME` is the operation NAME."""

    def __init__(self, options: dict[str, Any], answers: TextIO) -> None:
        self._answers = answers
        for key, kind in (
            ("kv_transfer_config", KVTransferConfig),
            ("kv_events_config", KVEventsConfig),
        ):
            if options.get(key) is not None:
                options[key] = kind(**options[key])
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**options))
        self._tasks: set[asyncio.Task[None]] = set()

    def answer(self, number: int, **fields: Any) -> None:
        """Sends one line."""
        self._answers.write(json.dumps({"id": number, **fields}) + "\n")
        self._answers.flush()

    async def run(self, requests: AsyncIterator[dict[str, Any]]) -> None:
        """Serves until the requests end or `shutdown` arrives."""
        self.answer(0, ready=True)
        async for request in requests:
            if request["op"] == "shutdown":
                break
            task = asyncio.create_task(self._serve(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._llm.shutdown()

    async def _serve(self, request: dict[str, Any]) -> None:
        number, op = request.pop("id"), request.pop("op")
        try:
            fields = await getattr(self, "op_" + op)(number, **request)
        except Exception as err:  # the test process gets the error
            self.answer(number, error=f"{type(err).__name__}: {err}")
        else:
            self.answer(number, **fields)

    async def op_generate(
        self,
        number: int,
        tokens: list[int],
        max_tokens: int,
        salt: str | None = None,
        lora: list[Any] | None = None,
        priority: int = 0,
        rank: int | None = None,
    ) -> dict[str, Any]:
        """Greedy tokens of a prompt. Sends `started` after the first token.

        cached: number of the prompt's tokens that were not computed.
        """
        prompt = TokensPrompt(prompt_token_ids=tokens)
        if salt is not None:
            prompt["cache_salt"] = salt
        adapter = LoRARequest(*lora) if lora else None
        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        last = None
        outputs = self._llm.generate(
            prompt,
            params,
            f"r{number}",
            lora_request=adapter,
            priority=priority,
            data_parallel_rank=rank,
        )
        async for output in outputs:
            if last is None and output.outputs[0].token_ids:
                self.answer(number, started=True)
            last = output
        if last is None:
            raise RuntimeError("the engine ended the request without an output")
        result = last.outputs[0]
        return {
            "tokens": list(result.token_ids),
            "cached": last.num_cached_tokens or 0,
            "finish": result.finish_reason,
        }

    async def op_abort(self, number: int, request: int) -> dict[str, Any]:
        """Aborts the `generate` with the id `request`, which answers with its finish reason."""
        await self._llm.abort(f"r{request}")
        return {}

    async def op_reset(self, number: int, connector: bool = False) -> dict[str, Any]:
        """Resets the engine's prefix cache, and with `connector` the connector's too.

        done: false while a block is referenced.
        """
        return {"done": await self._llm.reset_prefix_cache(reset_connector=connector)}

    async def op_metrics(self, number: int, prefix: str) -> dict[str, Any]:
        """Logs vLLM's statistics. Answers the metrics with a prefix in vLLM's registry, by name."""
        await self._llm.do_log_stats()
        found: dict[str, float] = {}
        for line in prometheus_client.generate_latest().decode().splitlines():
            if line.startswith(prefix) and "_created{" not in line:
                name, _, value = line.partition("{")[0], *line.rpartition(" ")[1:]
                found[name] = found.get(name, 0.0) + float(value)
        return {"metrics": found}

    async def op_load_adapter(self, number: int, lora: list[Any]) -> dict[str, Any]:
        """Loads a LoRA adapter before its first request."""
        return {"done": await self._llm.add_lora(LoRARequest(*lora))}


async def _requests() -> AsyncIterator[dict[str, Any]]:
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def _main(options: dict[str, Any], answers: TextIO) -> None:
    engine = Engine(options, answers)
    await engine.run(_requests())


if __name__ == "__main__":
    private = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(_main(json.loads(sys.argv[1]), private))
