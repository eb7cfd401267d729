"""Envoy forwards each request to the worker that a dry run of the router names."""

from __future__ import annotations

from collections.abc import Callable

from e2e.runner import case
from front.bed import Bed
from front.door import Answer, Door, Endpoint
from front.envoy import Envoy
from front.server import VllmServer

_WARM = 12  # prompts that one server has computed
_NEW = 4  # prompts that no server has, while one server is busy
_BUSY_TOKENS = 512  # of the booking that makes a server busy


@case("envoy-picks", "Envoy in front forwards to the workers that dry runs name")
def envoy_picks(bed: Bed) -> str:
    servers = bed.plain()
    door = bed.door("--ext-proc=127.0.0.1:0", servers=servers)
    assert door.ext_proc, "the router's ready line has no ext_proc"
    envoy = Envoy(bed.dir, door.ext_proc, servers)
    try:
        fleet = _Fleet(door, servers)
        _warm(bed, door, fleet, Endpoint(envoy.url))
        _new(bed, door, fleet, Endpoint(envoy.url))
    except Exception:
        print(envoy.log())
        raise
    finally:
        envoy.close()
    return f"{_WARM} prompts went to the server with their blocks, {2 * _NEW} to the idle one"


class _Fleet:
    """The servers by the names that the router gives them."""

    def __init__(self, door: Door, servers: list[VllmServer]) -> None:
        self._door = door
        self._servers = {door.worker_of(s.url): s for s in servers}
        self.names = list(self._servers)

    def forwarded(
        self, what: str, prompt: list[int], want: str, ask: Callable[[], Answer]
    ) -> Answer:
        """Asks the router for a dry run, then Envoy, and compares the two.

        prompt: the tokens of the request. want: the worker that the dry run has to name. ask:
        sends the request to Envoy. Returns Envoy's answer.
        """
        dry = self._door.route("new", tokens=prompt, update_states=False)
        named = f"{dry['worker_id']}/{dry['dp_rank']}"
        assert named == want, f"{what}: the dry run names {named}, want {want}"
        assert dry["endpoint"] == self._servers[want].url, f"{what}: {dry}"
        before = self._answers()
        got = ask()
        assert got.worker == named, f"{what}: Envoy used {got.worker}, the dry run names {named}"
        before[named] += 1
        assert self._answers() == before, f"{what}: answers {self._answers()}, want {before}"
        return got

    def _answers(self) -> dict[str, float]:
        """Answers that each server has counted."""
        counter = "vllm:request_success_total"
        return {name: s.metric(counter) for name, s in self._servers.items()}


def _warm(bed: Bed, door: Door, fleet: _Fleet, envoy: Endpoint) -> None:
    """Token ids and chats that one server has computed. The servers take turns."""
    for number in range(_WARM):
        what = f"prompt {number}"
        home = fleet.names[number % 2]
        if number % 4 < 2:
            ids = bed.tokens(160)
            first = door.pinned(home).complete(ids)
            door.caught_up(first)
            got = fleet.forwarded(what, ids, home, lambda p=ids: envoy.complete(p))
        else:
            talk = [{"role": "user", "content": bed.text(90)}]
            first = door.pinned(home).chat(talk)
            door.caught_up(first)
            got = fleet.forwarded(what, first.prompt, home, lambda t=talk: envoy.chat(t))
        bed.compare(what, got.tokens, first.tokens)
        assert got.cached, f"{what}: nothing was cached"
        assert got.predicted == got.cached, f"{what}: predicted {got.predicted}, {got.cached}"
        door.idle()


def _new(bed: Bed, door: Door, fleet: _Fleet, envoy: Endpoint) -> None:
    """New prompts go to one server while a booking makes the other one busy."""
    for busy, idle in (fleet.names, fleet.names[::-1]):
        worker, rank = map(int, busy.split("/"))
        pinned = {"worker_id": worker, "dp_rank": rank}
        held = {"request_id": f"held-{worker}"}
        door.route("new", tokens=bed.tokens(_BUSY_TOKENS), pinned_worker=pinned, **held)
        for number in range(_NEW):
            ids = bed.tokens(96)
            what = f"new prompt {number} while {busy} is busy"
            got = fleet.forwarded(what, ids, idle, lambda p=ids: envoy.complete(p))
            assert got.cached == 0, f"{what}: {got.cached} tokens cached"
            door.booked(1)
        door.route("mark_free", **held)
        door.idle()
