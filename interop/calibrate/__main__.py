"""Runs one vLLM server on CPU that records its steps: `python -m calibrate DIRECTORY`.

The first line of output is a JSON object with the server's URL, the file of the steps, and what
the simulator has to know of the engine. The server ends when standard input ends, and at SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import sys

import vllm
from bench import model
from e2e.case import free_ports
from e2e.testbed import engine_env
from front.server import VllmServer
from front.tokenizer import write_tokenizer

from calibrate.recorder import ENV

MAX_TOKENS = 1024
BLOCKS = 1024
STEP_TOKENS = 256  # longer prompts are computed in chunks
MAX_RUNNING = 16
# A step takes milliseconds, most of it in the compute thread.
SHAPE = model.Shape(layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, mlp=704)


def main() -> int:
    """Serves until it is told to end."""
    directory = pathlib.Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    weights = directory / "model"
    weights.mkdir()
    model.write(weights, SHAPE, MAX_TOKENS)
    write_tokenizer(weights)
    steps = directory / "steps.jsonl"
    env = {**engine_env(directory), ENV: str(steps)}
    env["PYTHONPATH"] += f":{pathlib.Path(__file__).resolve().parents[1]}"
    options = {
        "max_model_len": MAX_TOKENS,
        "max_num_batched_tokens": STEP_TOKENS,
        "max_num_seqs": MAX_RUNNING,
        "block_size": model.BLOCK_TOKENS,
        "num_gpu_blocks_override": BLOCKS,
        "kv_cache_memory_bytes": 2 * BLOCKS * SHAPE.token_bytes * model.BLOCK_TOKENS,
        "scheduler_cls": "calibrate.recorder.RecordingScheduler",
        "no_async_scheduling": True,
        "disable_uvicorn_access_log": True,
    }
    server = VllmServer("vllm", directory, weights, free_ports(1)[0], env, options)
    with contextlib.closing(server):
        server.ready()
        ready = {
            "url": server.url,
            "steps": str(steps),
            "about": f"vLLM {vllm.__version__} on CPU with one compute thread, a Llama of "
            f"{SHAPE.layers} layers of {SHAPE.hidden}, recorded by simulate --calibrate",
            "block_size": model.BLOCK_TOKENS,
            "blocks": BLOCKS,
            "budget": STEP_TOKENS,
            "max_running": MAX_RUNNING,
        }
        print(json.dumps(ready), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
