"""Child process: an engine that computes first tokens.

    python -m bench.ttft OPTIONS     (model, connector and arguments; see child.Child)

vLLM runs the engine core in a process of its own, as in serving.
"""

from __future__ import annotations

import time
from typing import Any

from . import child, engine

_DRAIN_SECONDS = 60.0


class FirstTokens:
    """Operations of the child."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._llm = engine.start(options["model"], options["connector"], **options["arguments"])

    def op_generate(self, tokens: list[int]) -> dict[str, Any]:
        """The time to the first token in ms, the number of cached prompt tokens, and the token."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
        prompt = TokensPrompt(prompt_token_ids=tokens)
        began = time.perf_counter()
        output = self._llm.generate([prompt], params, use_tqdm=False)[0]
        took = time.perf_counter() - began
        return {
            "ms": took * 1e3,
            "cached": output.num_cached_tokens or 0,
            "token": output.outputs[0].token_ids[0],
        }

    def op_reset_cache(self) -> None:
        """Waits until no store holds blocks, then resets the engine's own prefix cache."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while not self._llm.reset_prefix_cache():
            if time.monotonic() > deadline:
                raise RuntimeError(f"blocks are still referenced after {_DRAIN_SECONDS:.0f} s")
            time.sleep(0.02)


if __name__ == "__main__":
    child.serve(FirstTokens)
