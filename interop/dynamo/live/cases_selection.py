"""Cases in which Dynamo's selection service and ours get the same requests."""

from __future__ import annotations

import json
import pathlib
import random
import sys
from typing import Any

import zmq

from e2e.runner import Case, case
from live.child import wait_until
from live.selection import Answer, Engine, Service, without_texts
from live.testbed import BLOCK, TestBed

_RECORDED = "router/api/selection/testdata/dynamo-1.6.1.txt"
_PROMPTS = 24
_REQUESTS = 60


def _services(bed: TestBed) -> tuple[Service, Service]:
    """Dynamo's service and ours, each in a process of its own."""
    bed.supports("router", "--selection-port")
    theirs, ours = bed.free_port(), bed.free_port()
    bed.child(
        "selection", sys.executable, "-m", "dynamo.select_service", f"--port={theirs}", dynamo=True
    )
    bed.router(f"--selection-port={ours}", "--router-track-output-blocks")
    return Service("dynamo", theirs), Service("blockyard", ours)


@case("selection", "Dynamo's selection service and ours answer a client's requests alike")
def selection(bed: TestBed) -> str:
    """Every route, with good and bad requests; the answers are those that the Go test has."""
    services = _services(bed)
    text = (pathlib.Path(__file__).resolve().parents[3] / _RECORDED).read_text()
    blocks = text.strip().split("\n\n")
    for block in blocks:
        request, recorded = block.split("\n", 1)
        method, path, body = (request.split(" ", 2) + [""])[:3]
        status, want = recorded.split(" ", 1)
        expected = Answer(int(status), json.loads(want) if want[0] in "[{" else {"error": ""})
        for service in services:
            answer = service.ask(method, path, body)
            assert (answer.status, without_texts(answer.body)) == (
                expected.status,
                without_texts(expected.body),
            ), f"{service.name}: {request}: {answer}; recorded {expected}"
    return f"{len(blocks)} requests with equal answers"


def _register(service: Service, engines: list[Engine]) -> None:
    for number, engine in enumerate(engines, 1):
        where = {"endpoint": f"http://w{number}", "kv_events_endpoint": engine.endpoint}
        body = service.post("/workers", worker_id=number, block_size=BLOCK, **where)
        assert body["lifecycle"] == "schedulable", body


def _cost(service: Service, prompt: list[int]) -> dict[int, float]:
    """The cost of each worker: tokens to compute in blocks, and blocks to keep."""
    loads = service.post("/potential_loads", token_ids=prompt)
    return {
        x["worker_id"]: x["potential_prefill_tokens"] / BLOCK + x["potential_decode_blocks"]
        for x in loads
    }


@case("selection-events", "both selection services choose alike by the events of three engines")
def selection_events(bed: TestBed) -> str:
    """Engines tell both what they hold; both are asked for, and told of, the same requests."""
    theirs, ours = services = _services(bed)
    context = zmq.Context()
    bed.at_end(context.term)
    engines = [Engine(context, BLOCK) for _ in range(3)]
    bed.at_end(lambda: [e.close() for e in engines])
    for service in services:
        _register(service, engines)
    for engine in engines:
        engine.wait_for(len(services))
    draw = random.Random(7)
    prompts = [bed.prompt(draw.randrange(1, 12)) for _ in range(_PROMPTS)]
    for number, prompt in enumerate(prompts):
        draw.choice(engines).stored(1000 * (number + 1), prompt[: BLOCK * draw.randrange(1, 12)])

    def scores(service: Service) -> list[Any]:
        return [service.post("/overlap_scores", token_ids=p) for p in prompts]

    wait_until(
        lambda: f"equal scores: {scores(theirs)}; ours {scores(ours)}",
        lambda: (s := scores(theirs)) == scores(ours)
        and all(any(w["device_blocks"] for w in x["workers"]) for x in s),
    )
    ties = 0
    for number in range(_REQUESTS):
        prompt = draw.choice(prompts) + bed.prompt(draw.randrange(3))
        costs = _cost(theirs, prompt)
        own = _cost(ours, prompt)
        assert costs == own, f"request {number}: {costs}; ours {own}"
        best = [w for w, c in costs.items() if c == min(costs.values())]
        ties += len(best) > 1
        chosen = [s.post("/select", token_ids=prompt) for s in services]
        assert all(c["worker_id"] in best for c in chosen), f"request {number}: {costs}; {chosen}"
        _book(services, number, prompt, draw.choice(best))
        if number > 8:
            _advance(services, draw.randrange(number - 8), draw)
    return f"{_REQUESTS} requests, {ties} of them with a tie"


def _book(services: tuple[Service, Service], number: int, prompt: list[int], worker: int) -> None:
    """Books a request on a worker; both must answer the same."""
    pinned = {"worker_id": worker, "dp_rank": 0}
    name = f"r{number}"
    booked = [
        s.post("/select_and_reserve", selection_id=name, token_ids=prompt, pinned_worker=pinned)
        for s in services
    ]
    assert booked[0] == booked[1], f"{name}: {booked}"


def _advance(services: tuple[Service, Service], number: int, draw: random.Random) -> None:
    """Tells both of the same step in the life of a request, which may have ended."""
    path = f"/reservations/r{number}"
    method, path, body = draw.choice(
        [
            ("POST", f"{path}/prefill_complete", ""),
            ("POST", f"{path}/output_block", '{"decay_fraction":0.5}'),
            ("DELETE", path, ""),
        ]
    )
    statuses = [s.ask(method, path, body).status for s in services]
    assert statuses[0] == statuses[1], f"{method} {path}: {statuses}"
    loads = [s.ask("GET", "/loads").body for s in services]
    assert loads[0] == loads[1], f"after {method} {path}: {loads[0]}; ours {loads[1]}"


CASES: list[Case] = [selection, selection_events]
