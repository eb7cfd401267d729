"""Unmodified parts of Dynamo read us."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request

from live.case import Case, case
from live.child import wait_until
from live.overlap import Overlap, Overlaps, Worker
from live.place import BLOCK, ENDPOINT, Place
from live.records import PaperWorker
from live.script import Script
from live.yard import MODEL, Yard

_WORKER = 0x5555
_RANKS = 2


def _paper(place: Place) -> None:
    worker = PaperWorker(place.discovery, ENDPOINT, _WORKER, _RANKS, BLOCK, MODEL)
    place.at_end(worker.close)


@case(
    "router-reads-us",
    "a real KvRouter credits our agent's blocks as our own index does, through losses and restarts",
)
def router_reads_us(place: Place) -> str:
    """Engine frames, some of them lost on the way -> agent -> NATS -> KvRouter; then the agent
    is killed, NATS is away for a while, and a KvRouter starts late."""
    place.supports("agent", "--dynamo-endpoint")
    _paper(place)
    flags = [f"--dynamo-discovery={place.discovery}", f"--dynamo-endpoint={ENDPOINT}"]
    flags.append("--dynamo-recovery=127.0.0.1:0")
    yard = Yard(place, _WORKER, _RANKS, flags, drop_frames=6)
    script = Script(place, yard, _WORKER, _RANKS)
    script.views["kv-router"] = place.probe().overlaps
    script.stores()
    script.removals()
    script.clears()
    script.more("a clear of one rank")
    script.views["kv-router, late"] = place.probe().overlaps
    script.agree("a KvRouter that started late, and has seen no event", script.in_host)
    place.stop_nats()
    for rank in range(_RANKS):
        yard.generate(rank, place.prompt(5))
    place.start_nats()
    script.more("an outage of NATS")
    yard.restart_agent()
    script.more("a restart of the agent")
    script.views["kv-router, last"] = place.probe().overlaps
    script.agree("a KvRouter that started after all that", script.in_host)
    return f"{len(script.prompts)} prompts, {script.credited} blocks credited alike"


@case(
    "worker-publisher-reads-us",
    "Dynamo's own KvEventPublisher reads our vLLM-format stream, and a KvRouter reads that",
)
def worker_publisher_reads_us(place: Place) -> str:
    """Engine frames -> agent -> our ZMQ -> KvEventPublisher -> NATS -> KvRouter."""
    place.supports("agent", "--zmq-events")
    _paper(place)
    yard = Yard(place, _WORKER, _RANKS, ["--zmq-events"], drop_frames=6)
    script = Script(place, yard, _WORKER, _RANKS)
    for rank in range(_RANKS):
        command = [sys.executable, "-m", "live.relay", ENDPOINT, str(_WORKER), str(BLOCK)]
        relay = [*command, str(rank), yard.sink(rank)]
        child = place.child(f"publisher-{rank}", *relay, talks=True, dynamo=True)
        assert child.line() == {"ready": True}
    script.views["kv-router"] = place.probe().overlaps
    script.stores()
    script.removals()
    script.clears()
    script.more("a clear of one rank")
    script.views["kv-router, late"] = place.probe().overlaps
    script.agree("a KvRouter that started late", script.in_host)
    yard.restart_agent()
    script.more_without_tokens("a restart of the agent")
    return f"{len(script.prompts)} prompts, {script.credited} blocks credited alike"


class _Indexer:
    """Dynamo's standalone indexer, asked over HTTP."""

    def __init__(self, place: Place, yard: Yard) -> None:
        port = place.free_port()
        self._url = f"http://127.0.0.1:{port}"
        flags = [f"--port={port}", f"--block-size={BLOCK}", f"--model-name={MODEL}"]
        flags.append(f"--workers={_WORKER}={yard.sink(0)}")
        command = [sys.executable, "-m", "dynamo.indexer", *flags]
        self._child = place.child("indexer", *command, dynamo=True)
        wait_until("the indexer serves", self._serves)

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=5):
                return True
        except OSError:
            return False

    def overlaps(self, tokens: list[int]) -> Overlaps:
        """What it credits, which it says in tokens."""
        body = json.dumps({"token_ids": tokens, "model_name": MODEL}).encode()
        q = urllib.request.Request(f"{self._url}/query", data=body, method="POST")
        q.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(q, timeout=10) as answer:
                said = json.loads(answer.read())
        except urllib.error.HTTPError as err:
            raise AssertionError(f"/query: {err.code} {err.read()!r}") from None
        found = {}
        for worker, x in said["instances"].items():
            o = Overlap(*(x[tier] // BLOCK for tier in ("gpu", "cpu", "disk")))
            if any(o):
                found[Worker(int(worker), 0)] = o
        return found


@case("indexer-reads-us", "Dynamo's standalone indexer reads our vLLM-format stream")
def indexer_reads_us(place: Place) -> str:
    """Engine frames -> agent -> our ZMQ -> dynamo.indexer, which is asked over HTTP."""
    place.supports("agent", "--zmq-events")
    yard = Yard(place, _WORKER, 1, ["--zmq-events"], drop_frames=6)
    script = Script(place, yard, _WORKER, 1)
    script.stores()  # before it starts, so that it has to be told
    script.views["indexer"] = _Indexer(place, yard).overlaps
    script.agree("an indexer that started late")
    script.removals()
    script.clears()
    script.more("a clear")
    return f"{len(script.prompts)} prompts, {script.credited} blocks credited alike"


CASES: list[Case] = [router_reads_us, worker_publisher_reads_us, indexer_reads_us]
