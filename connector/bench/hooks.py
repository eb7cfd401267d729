"""Child process: an engine with timed connector hooks.

    python -m bench.hooks OPTIONS     (see engine.SteppedEngine and child.Child)
"""

from __future__ import annotations

import pickle
import random
import time
from typing import Any

from . import child, model
from .engine import SteppedEngine
from .stopwatch import Stopwatch, hooks

_PROMPT_TOKENS = 2 * model.BLOCK_TOKENS
# Steps until the stores of new requests have ended, beside one step for each request.
_SETTLE_STEPS = 2 * model.BLOCK_TOKENS
_VOCABULARY = 128_000  # of the long prompts, which no model computes


class HookBench:
    """Operations of the child."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

        self._engine = SteppedEngine(options)
        if options["hits"]:
            self._engine.wait_for_hits()
        names = hooks(KVConnectorBase_V1)
        self._scheduler = Stopwatch(self._engine.scheduler, names)
        self._worker = Stopwatch(self._engine.worker, names)
        self._empty = self._empty_plan()

    def op_decode(self, running: int, steps: int, spread: bool) -> dict[str, Any]:
        """Nanoseconds of both roles' hooks in each of `steps` steps of `running` requests.

        In each step every request decodes one token. With `spread` the requests are at different
        positions of their blocks, and a step completes about running/32 blocks. Otherwise all
        requests complete their blocks in the same steps.
        """
        engine = self._engine
        settle = _SETTLE_STEPS + running
        names = [
            engine.add(
                engine.prompt(_PROMPT_TOKENS + (i % model.BLOCK_TOKENS if spread else 0)),
                # Extra tokens, so that no request ends before the last step.
                max_tokens=settle + steps + 2 * model.BLOCK_TOKENS,
            )
            for i in range(running)
        ]
        self._begin(set(names))
        for _ in range(settle):
            engine.step()
        self._scheduler.clear()
        self._worker.clear()
        scheduler, worker, quiet = [], [], []
        for _ in range(steps):
            began = time.perf_counter_ns()
            outputs = engine.step()
            took = time.perf_counter_ns() - began
            if len(outputs) != running:
                raise RuntimeError(f"a step of {len(outputs)} requests, want {running}")
            scheduler.append(self._scheduler.take())
            worker.append(self._worker.take())
            quiet.append(self._idle())
        calls = self._calls()
        engine.engine.abort_request(names)
        engine.reset_cache()
        return {"scheduler": scheduler, "worker": worker, "quiet": quiet, "step": took, **calls}

    def _begin(self, waiting: set[str]) -> None:
        """Steps until every request has its first token."""
        while waiting:
            waiting -= {output.request_id for output in self._engine.step()}

    def _idle(self) -> bool:
        """Whether the last step had no copies and no worker report."""
        report = self._worker.results["build_connector_worker_meta"]
        return report is None and self._plan_bytes() <= self._empty

    def _plan_bytes(self) -> int:
        """Pickled bytes of the last step's connector metadata."""
        return len(pickle.dumps(self._scheduler.results["build_connector_meta"]))

    def _empty_plan(self) -> int:
        """Pickled bytes of metadata without copies: the minimum while a request decodes."""
        engine, sizes = self._engine, []
        engine.add(engine.prompt(_PROMPT_TOKENS), max_tokens=model.BLOCK_TOKENS // 2)
        while engine.engine.has_unfinished_requests():
            engine.step()
            sizes.append(self._plan_bytes())
        engine.reset_cache()
        return min(sizes)

    def _calls(self) -> dict[str, dict[str, list[int]]]:
        def called(watch: Stopwatch) -> dict[str, list[int]]:
            return {name: list(calls) for name, calls in watch.calls.items() if calls}

        return {"scheduler_hooks": called(self._scheduler), "worker_hooks": called(self._worker)}

    def op_first_lookup(self, tokens: int, count: int) -> dict[str, list[int]]:
        """Nanoseconds of the scheduler's hooks from a prompt's arrival to the lookup's answer.

        Measures `count` prompts of `tokens` tokens. The engine computes no step meanwhile, and the
        requests never run.
        """
        from vllm import SamplingParams
        from vllm.v1.request import Request

        draw, connector = random.Random(5), self._engine.scheduler
        self._scheduler.clear()
        asked = 0
        for i in range(count):
            request = Request(
                f"long-{i}",
                [draw.randrange(_VOCABULARY) for _ in range(tokens)],
                SamplingParams(max_tokens=1),
                None,
            )
            connector.on_new_request(request)
            while connector.get_num_new_matched_tokens(request, 0)[0] is None:
                asked += 1
                time.sleep(0.001)  # about the time between two steps of the engine
            connector.request_finished_all_groups(request, ([],))
        return {"again": [asked], **self._calls()["scheduler_hooks"]}


if __name__ == "__main__":
    child.serve(HookBench)
