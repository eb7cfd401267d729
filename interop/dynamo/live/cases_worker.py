"""Cases in which Blockyard's router reads the events of Dynamo's workers."""

from __future__ import annotations

from e2e.runner import Case, case
from live.child import wait_until
from live.compare import agree, on_device
from live.overlap import NOTHING, Overlaps, Worker
from live.testbed import TestBed, Probe, Router

_RANKS = 2


def _workers(probe: Probe) -> list[Worker]:
    ids = wait_until("the real router sees the mocker", probe.workers)
    assert len(ids) == 1, f"workers {ids}, want one"
    return [Worker(ids[0], rank) for rank in range(_RANKS)]


def _exact(router: Router, ranks: int) -> None:
    """Waits until the router reports the quality "exact" for every rank."""

    def exact() -> bool:
        found = router.get("/v1/workers")
        return len(found) == ranks and all(w["quality"] == "exact" for w in found)

    wait_until(lambda: f"{ranks} exact ranks: {router.get('/v1/workers')}", exact)


def _total(found: dict[str, Overlaps]) -> int:
    return sum(o.disk for overlaps in found.values() for o in overlaps.values())


@case(
    "we-read-its-worker",
    "our router credits a real worker's blocks like a real KvRouter, in every tier and rank",
)
def we_read_its_worker(bed: TestBed) -> str:
    """Stores, shared prefixes, two ranks, evictions with a host tier, and a late router of ours."""
    bed.mocker(
        "--num-gpu-blocks-override=24",
        f"--data-parallel-size={_RANKS}",
        "--num-host-blocks=32",
        "--kv-bytes-per-token=64",
    )
    probe, early = bed.probe(), bed.follower()
    ranks = _workers(probe)
    views = {"kv-router": probe.overlaps, "ours": early.overlaps}

    prompts = {"first": bed.prompt(8), "other": bed.prompt(5)}
    prompts["branch"] = prompts["first"][: 4 * 16] + bed.prompt(4)
    probe.generate(ranks[0], prompts["first"])
    probe.generate(ranks[0], prompts["branch"])
    probe.generate(ranks[1], prompts["other"])
    agree(
        "stores of both ranks",
        views,
        prompts,
        lambda f: on_device(f, "first", ranks[0]) >= 8 and on_device(f, "other", ranks[1]) >= 5,
    )
    _exact(early, _RANKS)

    fill = {f"fill {i}": bed.prompt(7) for i in range(8)}
    for i, tokens in enumerate(fill.values()):
        probe.generate(ranks[i % _RANKS], tokens, output=20)
    prompts |= fill

    def evicted(f: dict[str, Overlaps]) -> bool:
        off_device = [o for x in f.values() for o in x.values() if o.host > o.device]
        gone = [n for n, x in f.items() if not x]
        return bool(off_device) and bool(gone)

    found = agree("evictions, with some blocks only in host memory", views, prompts, evicted)

    late = bed.follower()
    _exact(late, _RANKS)
    views["ours, late"] = late.overlaps
    agree("our router, started late", views, prompts, lambda f: f == found)
    probe.generate(ranks[0], prompts["first"] + bed.prompt(2))
    probe.generate(ranks[1], prompts["branch"])
    found = agree("reloads after that", views, prompts)
    _exact(late, _RANKS)
    gaps = sum(f["gaps"] + f["divergences"] for f in early.get("/v1/feeds"))
    assert gaps == 0, f"gaps or divergences between transport and index: {early.get('/v1/feeds')}"
    return f"{len(prompts)} prompts, {_total(found)} blocks with equal credit"


@case(
    "its-worker-leaves",
    "our router removes a dead worker, and reads a new worker from its start",
)
def its_worker_leaves(bed: TestBed) -> str:
    """Kill -9 of the mocker, whose records remain until they are stale. Then another mocker."""
    first = bed.mocker("--num-gpu-blocks-override=24")
    probe, ours = bed.probe(), bed.follower()
    before = wait_until("the real router sees the mocker", probe.workers)
    tokens = bed.prompt(6)
    probe.generate(Worker(before[0], 0), tokens)
    views = {"kv-router": probe.overlaps, "ours": ours.overlaps}
    agree("the stores", views, {"p": tokens}, lambda f: bool(f["p"]))
    first.kill9()
    wait_until("our router removes the dead worker", lambda: not ours.get("/v1/workers"), 30.0)
    bed.mocker("--num-gpu-blocks-override=24")
    after = wait_until(
        "the real router sees the new mocker",
        lambda: [w for w in probe.workers() if w not in before],
        30.0,
    )
    probe.generate(Worker(after[0], 0), tokens[: 4 * 16 + 1])
    agree("the new worker's stores", views, {"p": tokens}, lambda f: set(f["p"]) == {(after[0], 0)})
    return "removed, and the new worker read"


@case(
    "its-events-are-lost",
    "our router finds a worker's stores during an outage of NATS, without a further event",
)
def its_events_are_lost(bed: TestBed) -> str:
    """NATS is killed, the worker stores blocks, and NATS restarts."""
    bed.mocker("--num-gpu-blocks-override=64")
    probe, ours = bed.probe(), bed.follower()
    worker = Worker(wait_until("the real router sees the mocker", probe.workers)[0], 0)
    prompts = {"before": bed.prompt(6), "meanwhile": bed.prompt(5), "after": bed.prompt(4)}
    views = {"kv-router": probe.overlaps, "ours": ours.overlaps}
    probe.generate(worker, prompts["before"])
    agree("the stores", views, prompts, lambda f: on_device(f, "before", worker) == 6)
    bed.stop_nats()
    probe.generate(worker, prompts["meanwhile"])
    bed.start_nats()
    wait_until(
        lambda: f"our router has the lost stores: {ours.get('/v1/feeds')}",
        lambda: ours.overlaps(prompts["meanwhile"]).get(worker, NOTHING).device == 5,
        30.0,
    )
    _exact(ours, 1)
    probe.generate(worker, prompts["after"])
    agree("stores after that", views, prompts, lambda f: on_device(f, "after", worker) == 4)
    return "found before the worker's next event"


CASES: list[Case] = [we_read_its_worker, its_events_are_lost, its_worker_leaves]
