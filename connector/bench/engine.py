"""vLLM engines to measure: their configurations, and an engine in this process.

The benchmark calls every step of the engine in this process. So a stopwatch can time every hook of
both roles, and a request can arrive at a chosen step.
"""

from __future__ import annotations

import os
import pathlib
import random
import time
from typing import Any

from blockyard.native import Library
from blockyard.native_plane import NativePlane
from blockyard.plane import plane_for
from blockyard.settings import Settings

from . import model

# vLLM runs without network and warm-up, and with one compute thread. On small machines that leaves
# a core for the agent and the copier.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}

_DRAIN_SECONDS = 60.0


def native_library() -> Library | None:
    """The library with which engines that are started now copy. None: they copy in Python."""
    plane = plane_for(Settings.read())
    return plane.lib if isinstance(plane, NativePlane) else None


def ours(socket: str, **extra: Any) -> dict[str, Any]:
    """The transfer configuration of Blockyard's connector. By default every hit is loaded."""
    extra = {"min_load_blocks": 1, **extra}
    return {
        "kv_connector": "BlockyardConnector",
        "kv_connector_module_path": "blockyard.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": socket, **extra},
    }


def plain(directory: str) -> dict[str, Any]:
    """The transfer configuration of plain.py's connector, with files in the directory."""
    return {
        "kv_connector": "PlainConnector",
        "kv_connector_module_path": "bench.plain",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"directory": directory},
    }


def idle() -> dict[str, Any]:
    """The transfer configuration of plain.py's connector that does nothing, and hits nothing."""
    return {
        "kv_connector": "IdleConnector",
        "kv_connector_module_path": "bench.plain",
        "kv_role": "kv_both",
    }


def native(spec: str, host_bytes: int, tiers: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The transfer configuration of vLLM's own tiers. spec: a class of native_tiers.py."""
    extra: dict[str, Any] = {
        "spec_name": spec,
        "spec_module_path": "bench.native_tiers",
        "cpu_bytes_to_use": host_bytes,
    }
    if tiers is not None:
        extra["secondary_tiers"] = tiers
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


def arguments_of(
    directory: str, connector: dict[str, Any] | None, **arguments: Any
) -> dict[str, Any]:
    """The arguments of an engine with the model of the directory. Sets vLLM's environment.

    arguments: beside the common ones.
    """
    os.environ.update(ENVIRONMENT)
    from vllm.config import KVTransferConfig

    if connector is not None:
        arguments["kv_transfer_config"] = KVTransferConfig(**connector)
    return {
        "model": directory,
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "seed": 0,
        "enforce_eager": True,
        "block_size": model.BLOCK_TOKENS,
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": "sha256_cbor",
        "generation_config": "vllm",
        "disable_log_stats": False,
        **arguments,
    }


def start(directory: str, connector: dict[str, Any] | None, **arguments: Any) -> Any:
    """A vllm.LLM with the model of the directory. arguments: of LLM, beside the common ones."""
    made = arguments_of(directory, connector, **arguments)
    from vllm import LLM

    return LLM(**made)


def prompt(draw: random.Random, tokens: int) -> list[int]:
    """Random token ids of a prompt, which shares no block with other prompts."""
    return [draw.randrange(model.FIRST_TOKEN, model.LAST_TOKEN) for _ in range(tokens)]


class SteppedEngine:
    """An engine in this process that runs a step at each call of step()."""

    def __init__(self, options: dict[str, Any]) -> None:
        """options: `model` (directory), `connector` (or None) and `arguments` of vllm.LLM."""
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        directory = pathlib.Path(options["model"])
        self.llm = start(str(directory), options["connector"], **options["arguments"])
        self.engine = self.llm.llm_engine
        core = self.engine.engine_core.engine_core
        self.scheduler: Any = core.scheduler.connector
        self._draw = random.Random(options.get("seed", 7))
        self._count = 0

    @property
    def worker(self) -> Any:
        """The connector object of the worker role."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()

    def prompt(self, tokens: int) -> list[int]:
        """A new random prompt."""
        return prompt(self._draw, tokens)

    def add(self, tokens: list[int], max_tokens: int) -> str:
        """Adds a request, which begins with the next step. Returns its id."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        self._count += 1
        name = f"bench-{self._count}"
        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        self.engine.add_request(name, TokensPrompt(prompt_token_ids=tokens), params)
        return name

    def step(self) -> list[Any]:
        """Runs one step and returns its outputs."""
        return self.engine.step()

    def run(self, tokens: list[int]) -> int:
        """Runs one request to its first token. Returns its number of cached tokens."""
        name, cached = self.add(tokens, 1), None
        deadline = time.monotonic() + _DRAIN_SECONDS
        while cached is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(tokens)} tokens not computed in {_DRAIN_SECONDS:.0f} s")
            for output in self.step():
                if output.request_id == name and output.finished:
                    cached = output.num_cached_tokens or 0
            time.sleep(0.0005)  # releases the interpreter's lock, like the engine's own loop
        return cached

    def reset_cache(self) -> None:
        """Steps until the stores have ended, then resets the engine's own prefix cache."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        self.step()
        while self.scheduler.has_pending_push_work() or not self.engine.reset_prefix_cache():
            if time.monotonic() > deadline:
                raise RuntimeError(f"blocks are still referenced after {_DRAIN_SECONDS:.0f} s")
            time.sleep(0.001)
            self.step()

    def wait_for_hits(self) -> None:
        """Runs prompts until a stored prompt is a hit: then the connector works."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while True:
            tokens = self.prompt(4 * model.BLOCK_TOKENS)
            self.run(tokens)
            self.reset_cache()
            if self.run(tokens) > 0:
                self.reset_cache()
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"no hit of a stored prompt in {_DRAIN_SECONDS:.0f} s")
