"""Child process: how soon a load begins while the engine computes another request's prompt.

    python -m bench.loadstart OPTIONS     (see engine.SteppedEngine; asked by child.Child)

The clock runs from the scheduler's call of update_state_after_alloc, which is its decision to
load, to the first copy by the connector's mover. A long prompt is computed in the same steps all
the time, and its blocks are stored.
"""

from __future__ import annotations

import bisect
import time
from time import perf_counter_ns
from typing import Any

from . import child, model
from .engine import SteppedEngine
from .stopwatch import Stopwatch, hooks

_STORE_SECONDS = 20.0


class LoadStartBench:
    """Operations of the child. `count` short prompts are stored and then loaded, one a step."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._copies: list[int] = []
        self._stamp_copies()
        self._engine = SteppedEngine(options)
        self._engine.wait_for_hits()
        self._decisions: list[int] = []
        self._hooks = self._time_hooks(self._engine.scheduler)
        self._stamp_decisions(self._engine.scheduler)
        self._prompts: list[list[int]] = []

    def _stamp_copies(self) -> None:
        """Makes the worker's mover note when it begins to copy into the engine's memory."""
        from blockyard.copying import Copier

        build, copies = Copier.__init__, self._copies

        def stamped(copier: Copier, mover: Any, *args: Any) -> None:
            copy = mover.load

            def load(*slots_and_blocks: Any) -> Any:
                copies.append(perf_counter_ns())
                return copy(*slots_and_blocks)

            mover.load = load
            build(copier, mover, *args)

        Copier.__init__ = stamped  # type: ignore[method-assign]

    def _time_hooks(self, connector: Any) -> Stopwatch:
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

        return Stopwatch(connector, hooks(KVConnectorBase_V1))

    def _stamp_decisions(self, connector: Any) -> None:
        hook, decisions = connector.update_state_after_alloc, self._decisions

        def decided(request: Any, blocks: Any, num_external_tokens: int) -> Any:
            if num_external_tokens > 0:
                decisions.append(perf_counter_ns())
            return hook(request, blocks, num_external_tokens)

        connector.update_state_after_alloc = decided

    def op_store(self, count: int, tokens: int) -> None:
        """Computes the prompts that are loaded later, each until all of it is found stored: a
        pool that has just begun to grow may refuse some."""
        least = tokens - model.BLOCK_TOKENS
        for _ in range(count):
            prompt = self._engine.prompt(tokens)
            deadline = time.monotonic() + _STORE_SECONDS
            while self._engine.run(prompt) < least:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"a prompt is not stored after {_STORE_SECONDS:.0f} s")
                self._engine.forget()
            self._engine.forget()
            self._prompts.append(prompt)

    def op_load(self, neighbour_tokens: int) -> dict[str, Any]:
        """Loads every stored prompt, one a step, beside a prompt of `neighbour_tokens` tokens
        that is always being computed. Nanoseconds from each decision to its first copy, steps
        that this took, and nanoseconds of the scheduler's hooks by name."""
        engine = self._engine
        neighbour, steps = "", 0
        waiting = list(self._prompts)
        self._decisions.clear()
        self._hooks.clear()
        while waiting or len(self._decisions) < len(self._prompts):
            if not neighbour:
                neighbour = engine.add(engine.prompt(neighbour_tokens), 1)
                engine.step()  # the long prompt runs before a short one asks
            if waiting:
                engine.add(waiting.pop(), 1)
            steps += 1
            ended = {output.request_id for output in engine.step() if output.finished}
            if neighbour in ended:
                neighbour = ""
            if steps > 4 * len(self._prompts):
                raise RuntimeError(
                    f"{len(self._decisions)} of {len(self._prompts)} loads began in {steps} steps"
                )
        if neighbour:
            engine.engine.abort_request([neighbour])
        calls = {name: list(calls) for name, calls in self._hooks.calls.items() if calls}
        engine.forget()
        return {"delays": self._delays(), "steps": steps, "hooks": calls}

    def _delays(self) -> list[int]:
        """From every decision to the first copy after it: loads come one at a time, and each
        has ended long before the next is decided."""
        starts = [bisect.bisect_left(self._copies, decided) for decided in self._decisions]
        return [
            self._copies[first] - decided
            for first, decided in zip(starts, self._decisions, strict=True)
        ]


if __name__ == "__main__":
    child.serve(LoadStartBench)
