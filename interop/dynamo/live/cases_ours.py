"""Cases in which unmodified parts of Dynamo read Blockyard's streams."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request

from e2e.runner import Case, case
from live.child import wait_until
from live.overlap import Overlap, Overlaps, Worker
from live.testbed import BLOCK, ENDPOINT, TestBed
from live.records import WorkerRecords
from live.script import Script
from live.cluster import MODEL, Cluster

_WORKER = 0x5555
_RANKS = 2


def _register_worker(bed: TestBed) -> None:
    worker = WorkerRecords(bed.discovery, ENDPOINT, _WORKER, _RANKS, BLOCK, MODEL)
    bed.at_end(worker.close)


@case(
    "router-reads-us",
    "a real KvRouter credits our agent's blocks like our index, despite losses and restarts",
)
def router_reads_us(bed: TestBed) -> str:
    """Engine frames with losses -> agent -> NATS -> KvRouter.

    Then NATS stops for a while, the agent is killed, and other KvRouters start late.
    """
    bed.supports("agent", "--dynamo-endpoint")
    _register_worker(bed)
    flags = [f"--dynamo-discovery={bed.discovery}", f"--dynamo-endpoint={ENDPOINT}"]
    flags.append("--dynamo-recovery=127.0.0.1:0")
    cluster = Cluster(bed, _WORKER, _RANKS, flags, drop_frames=6)
    script = Script(bed, cluster, _WORKER, _RANKS)
    script.views["kv-router"] = bed.probe().overlaps
    script.stores()
    script.removals()
    script.clears()
    script.more("a clear of one rank")
    script.views["kv-router, late"] = bed.probe().overlaps
    script.agree("a KvRouter that started late, without any event", script.in_host)
    bed.stop_nats()
    for rank in range(_RANKS):
        cluster.generate(rank, bed.prompt(5))
    bed.start_nats()
    script.more("an outage of NATS")
    cluster.restart_agent()
    script.more("a restart of the agent")
    script.views["kv-router, last"] = bed.probe().overlaps
    script.agree("a KvRouter that started last", script.in_host)
    return f"{len(script.prompts)} prompts, {script.credited} blocks with equal credit"


@case(
    "worker-publisher-reads-us",
    "Dynamo's own KvEventPublisher reads our vLLM-format stream, and a KvRouter its events",
)
def worker_publisher_reads_us(bed: TestBed) -> str:
    """Engine frames -> agent -> our ZMQ -> KvEventPublisher -> NATS -> KvRouter."""
    bed.supports("agent", "--zmq-events")
    _register_worker(bed)
    cluster = Cluster(bed, _WORKER, _RANKS, ["--zmq-events"], drop_frames=6)
    script = Script(bed, cluster, _WORKER, _RANKS)
    for rank in range(_RANKS):
        command = [sys.executable, "-m", "live.relay", ENDPOINT, str(_WORKER), str(BLOCK)]
        relay = [*command, str(rank), cluster.sink(rank)]
        child = bed.child(f"publisher-{rank}", *relay, piped=True, dynamo=True)
        assert child.line() == {"ready": True}
    script.views["kv-router"] = bed.probe().overlaps
    script.stores()
    script.removals()
    script.clears()
    script.more("a clear of one rank")
    script.views["kv-router, late"] = bed.probe().overlaps
    script.agree("a KvRouter that started late", script.in_host)
    cluster.restart_agent(resume=True)
    script.more_without_tokens("a restart of the agent")
    return f"{len(script.prompts)} prompts, {script.credited} blocks with equal credit"


class _Indexer:
    """Dynamo's standalone indexer, queried over HTTP."""

    def __init__(self, bed: TestBed, cluster: Cluster) -> None:
        port = bed.free_port()
        self._url = f"http://127.0.0.1:{port}"
        flags = [f"--port={port}", f"--block-size={BLOCK}", f"--model-name={MODEL}"]
        flags.append(f"--workers={_WORKER}={cluster.sink(0)}")
        command = [sys.executable, "-m", "dynamo.indexer", *flags]
        self._child = bed.child("indexer", *command, dynamo=True)
        wait_until("the indexer serves", self._serves)

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=5):
                return True
        except OSError:
            return False

    def overlaps(self, tokens: list[int]) -> Overlaps:
        """The blocks that the indexer credits to each worker. Its answer counts tokens."""
        body = json.dumps({"token_ids": tokens, "model_name": MODEL}).encode()
        q = urllib.request.Request(f"{self._url}/query", data=body, method="POST")
        q.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(q, timeout=10) as answer:
                result = json.loads(answer.read())
        except urllib.error.HTTPError as err:
            raise AssertionError(f"/query: {err.code} {err.read()!r}") from None
        found = {}
        for worker, x in result["instances"].items():
            o = Overlap(*(x[tier] // BLOCK for tier in ("gpu", "cpu", "disk")))
            if any(o):
                found[Worker(int(worker), 0)] = o
        return found


@case("indexer-reads-us", "Dynamo's standalone indexer reads our vLLM-format stream")
def indexer_reads_us(bed: TestBed) -> str:
    """Engine frames -> agent -> our ZMQ -> dynamo.indexer, queried over HTTP."""
    bed.supports("agent", "--zmq-events")
    cluster = Cluster(bed, _WORKER, 1, ["--zmq-events"], drop_frames=6)
    script = Script(bed, cluster, _WORKER, 1)
    script.stores()  # before the indexer starts, so that it needs a replay
    script.views["indexer"] = _Indexer(bed, cluster).overlaps
    script.agree("an indexer that started late")
    script.removals()
    script.clears()
    script.more("a clear")
    return f"{len(script.prompts)} prompts, {script.credited} blocks with equal credit"


CASES: list[Case] = [router_reads_us, worker_publisher_reads_us, indexer_reads_us]
