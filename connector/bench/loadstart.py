"""Child process: the delay of loads while the engine computes another request's prompt.

    python -m bench.loadstart OPTIONS     (see engine.SteppedEngine and child.Child)

The delay begins with vLLM's call of update_state_after_alloc, the decision to load. It ends with
the first copy of the connector's mover. All steps also compute and store a long prompt.
"""

from __future__ import annotations

import bisect
import time
from time import perf_counter_ns
from typing import Any

from blockyard.native import LOAD, Library

from . import child, model
from .engine import SteppedEngine, native_library
from .stopwatch import Stopwatch, hooks

_STORE_SECONDS = 20.0


class LoadStartBench:
    """Operations of the child: stores short prompts, then loads one in each step."""

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
        """Makes the copier record the start of every load."""
        library = native_library()
        if library is None:
            self._stamp_mover()
        else:
            self._stamp_ends(library)

    def _stamp_ends(self, library: Library) -> None:
        """The library says in the end of each job when the job began."""
        copies, take = self._copies, library.by_copier_take

        def stamped(copier: Any, ends: Any, room: int) -> int:
            count = take(copier, ends, room)
            copies.extend(e.began_ns for e in ends[:count] if e.kind == LOAD and e.began_ns)
            return count

        library.by_copier_take = stamped

    def _stamp_mover(self) -> None:
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
        """Computes `count` prompts of `tokens` tokens, each until all its blocks are stored.

        A growing pool may refuse some blocks at first.
        """
        least = tokens - model.BLOCK_TOKENS
        for _ in range(count):
            prompt = self._engine.prompt(tokens)
            deadline = time.monotonic() + _STORE_SECONDS
            while self._engine.run(prompt) < least:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"a prompt is not stored after {_STORE_SECONDS:.0f} s")
                self._engine.reset_cache()
            self._engine.reset_cache()
            self._prompts.append(prompt)

    def op_load(self, neighbour_tokens: int) -> dict[str, Any]:
        """Loads the stored prompts, one in each step.

        Every step also computes a prompt of `neighbour_tokens` tokens. Returns the delays in
        nanoseconds, the number of steps, and the nanoseconds of the scheduler's hooks by name.
        """
        engine = self._engine
        neighbour, steps = "", 0
        waiting = list(self._prompts)
        self._decisions.clear()
        self._hooks.clear()
        while waiting or len(self._decisions) < len(self._prompts):
            if not neighbour:
                neighbour = engine.add(engine.prompt(neighbour_tokens), 1)
                engine.step()  # the long prompt runs before a short prompt arrives
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
        engine.reset_cache()
        return {"delays": self._delays(), "steps": steps, "hooks": calls}

    def _delays(self) -> list[int]:
        """Nanoseconds from every decision to the first copy after it. No loads overlap."""
        self._copies.sort()
        starts = [bisect.bisect_left(self._copies, decided) for decided in self._decisions]
        return [
            self._copies[first] - decided
            for first, decided in zip(starts, self._decisions, strict=True)
        ]


if __name__ == "__main__":
    child.serve(LoadStartBench)
