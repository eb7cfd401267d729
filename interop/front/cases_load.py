"""A load generator that others publish, in front of the door."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import Any

from e2e.runner import case
from front.bed import Bed
from front.server import MODEL

_SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "load-env.sh"
_INSTALL_SECONDS = 1200.0
_RUN_SECONDS = 300.0
_CONVERSATIONS = 24
_TURNS = 3
_AT_ONCE = 6
_OUTPUT = 24  # tokens of an answer


@case("load-tool", "AIPerf from PyPI completes a run of streamed conversations")
def load_tool(bed: Bed) -> str:
    servers = bed.plain()
    installed = subprocess.run(
        [str(_SCRIPT)], stdout=subprocess.PIPE, timeout=_INSTALL_SECONDS, check=True, text=True
    )
    door = bed.door(servers=servers)
    report = _profile(bed, installed.stdout.strip(), door.url)
    wanted = _CONVERSATIONS * _TURNS
    sent = int(report["request_count"]["avg"])
    assert sent == wanted, f"AIPerf counts {sent} requests, want {wanted}"
    assert not report["was_cancelled"] and not report["error_summary"], report["error_summary"]
    length = report["output_sequence_length"]["avg"]
    assert length == _OUTPUT, f"answers have {length} tokens, want {_OUTPUT}"
    door.idle()
    served = int(door.metric("blockyard_frontend_requests_total"))
    assert served == wanted, f"the door has served {served} requests, AIPerf has sent {wanted}"
    cached = int(sum(s["cached_delivered"] for s in door.logged()))
    assert cached, "no turn found the blocks of the turn before"
    first = report["time_to_first_token"]
    return (
        f"AIPerf: {sent} requests, {report['request_throughput']['avg']:.1f} a second, none failed, "
        f"first token after {first['p50']:.0f} ms (p50) and {first['p99']:.0f} ms (p99); "
        f"{cached} tokens cached"
    )


def _profile(bed: Bed, program: str, url: str) -> dict[str, Any]:
    """Runs AIPerf without a network but the door. Returns its report."""
    out = bed.dir / "aiperf"
    home = out / "home"
    home.mkdir(parents=True)
    arguments = {
        "model": MODEL,
        "url": url,
        "endpoint-type": "chat",
        "tokenizer": str(bed.model),
        "conversation-num": _CONVERSATIONS,
        "conversation-turn-mean": _TURNS,
        "conversation-turn-stddev": 0,
        "concurrency": _AT_ONCE,
        "isl": 120,
        "osl": _OUTPUT,
        "random-seed": 7,
        "output-artifact-dir": str(out),
        "ui": "none",
    }
    command = [program, "profile", "--streaming", "--no-gpu-telemetry", "--no-server-metrics"]
    command += ["--use-server-token-count", "--extra-inputs", "ignore_eos:true"]
    command += [word for key, value in arguments.items() for word in (f"--{key}", str(value))]
    # With HF_HUB_OFFLINE AIPerf takes the tokenizer's directory for the name of a repository.
    offline = {"HF_ENDPOINT": "http://127.0.0.1:9", "HOME": str(home)}
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "HF_HUB_OFFLINE")}
    done = subprocess.run(
        command,
        cwd=out,
        env=kept | offline,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_RUN_SECONDS,
        text=True,
    )
    assert done.returncode == 0, f"aiperf: status {done.returncode}\n{done.stdout[-4000:]}"
    return json.loads((out / "profile_export_aiperf.json").read_text())
