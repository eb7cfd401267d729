"""A consumer of the native event stream, written with nats-py alone.

Follows every publisher of a cluster by the rules of docs/events.md: gaps are
noticed and asked for, late joins are a gap, digests are compared. For each line
on its standard input it prints one line of JSON, what it knows:

    {"owners": [{"kind": "worker", "id": 1, "rank": 0, "exact": true,
                 "blocks": {"device": ["0123456789abcdef", ...]}}],
     "questions": N}

and it ends when its standard input ends. The server's URL is in $NATS_URL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from residency import TIERS, Residency
from unpack import unpack

ANSWER_TIMEOUT = 5.0
# What an empty map of two keys, start_event_id and end_event_id, begins with.
_START, _END = b"\x82\xaestart_event_id", b"\xacend_event_id\xc0"

Owner = tuple[str, int, int]


class Consumer:
    """All publishers of a cluster. Everything in it runs on one event loop."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._cluster = cluster
        self._publishers: dict[int, Residency] = {}
        self._owners: dict[Owner, int] = {}
        self._last: dict[int, dict[str, Any]] = {}  # announcements
        self._tasks: set[asyncio.Task[None]] = set()
        self.questions = 0

    async def receive(self, message: Msg) -> None:
        """Takes an envelope or an announcement; what else there is, is not for us."""
        kind = message.subject.split(".")[2]
        if kind == "kv-events":
            envelope = unpack(message.data)
            state = self._publishers.setdefault(envelope["publisher_id"], Residency())
            gap = False
            for event in unpack(envelope["payload"]):
                gap = not state.offer(event) or gap
            if gap:
                self._ask(envelope["publisher_id"], state.cursor + 1)
        elif kind == "announce":
            self._announced(unpack(message.data))

    def _announced(self, said: dict[str, Any]) -> None:
        publisher = said["publisher_id"]
        owner = (said["owner_kind"], said["owner_id"], said["dp_rank"])
        before = self._owners.get(owner)
        if said["health"] == "gone":
            self._forget(publisher)
            if before == publisher:
                del self._owners[owner]
            return
        if before is not None and before != publisher:
            self._forget(before)
        self._owners[owner] = publisher
        self._last[publisher] = said
        state = self._publishers.setdefault(publisher, Residency())
        if state.cursor < said["last_event_id"]:
            self._ask(publisher, state.cursor + 1)
        elif state.cursor == said["last_event_id"] and not state.agrees(said):
            self._ask(publisher, None)

    def _forget(self, publisher: int) -> None:
        self._publishers.pop(publisher, None)
        self._last.pop(publisher, None)

    def _ask(self, publisher: int, start: int | None) -> None:
        """Asks in the background, one question at a time for each publisher."""
        state = self._publishers.get(publisher)
        if state is None or state.asking:  # gone meanwhile, or asked already
            return
        state.asking = True
        self.questions += 1
        task = asyncio.get_running_loop().create_task(self._repair(publisher, state, start))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _repair(self, publisher: int, state: Residency, start: int | None) -> None:
        try:
            kind, last, events = await self._question(publisher, start)
        except (asyncio.TimeoutError, ValueError, nats.errors.Error) as err:
            print(f"question to {publisher:016x}: {err!r}", file=sys.stderr)
            return  # the next announcement shows the gap again
        finally:
            state.asking = False
        if kind == "tree_dump":
            state.replace(events, last)
        elif kind == "events":
            for event in events:
                state.offer(event)
        if not state.catch_up():
            self._ask(publisher, state.cursor + 1)

    async def _question(
        self, publisher: int, start: int | None
    ) -> tuple[str, int, list[dict[str, Any]]]:
        """Asks for the events from start on, or for everything, and puts the answer together."""
        inbox = self._client.new_inbox()
        answer = await self._client.subscribe(inbox)
        number = b"\xc0" if start is None else b"\xcf" + start.to_bytes(8, "big")
        subject = f"blockyard.{self._cluster}.kv-query.{publisher:016x}"
        try:
            await self._client.publish(subject, _START + number + _END, reply=inbox)
            events: list[dict[str, Any]] = []
            chunk = 0
            while True:
                part = unpack((await answer.next_msg(timeout=ANSWER_TIMEOUT)).data)
                if part["chunk"] != chunk:
                    raise ValueError(f"chunk {part['chunk']}: want {chunk}")
                events += part["events"]
                if part["final"]:
                    return part["kind"], part["last_event_id"], events
                chunk += 1
        finally:
            await answer.unsubscribe()

    def describe(self) -> dict[str, Any]:
        """Everything that is known, for a line of JSON."""
        owners = []
        for (kind, number, rank), publisher in sorted(self._owners.items()):
            state, said = self._publishers[publisher], self._last[publisher]
            blocks = {
                name: sorted(f"{h:016x}" for h, t in state.held if t == tier)
                for name, tier in TIERS.items()
            }
            exact = (
                said["health"] == "exact"
                and not state.asking
                and state.cursor == said["last_event_id"]
                and state.agrees(said)
            )
            owners.append(
                {"kind": kind, "id": number, "rank": rank, "exact": exact, "blocks": blocks}
            )
        return {"owners": owners, "questions": self.questions}


async def serve(cluster: str) -> None:
    """Consumes until standard input ends."""
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    consumer = Consumer(client, cluster)
    # One subscription for both kinds of messages keeps them in order.
    await client.subscribe(f"blockyard.{cluster}.*.*", cb=consumer.receive)
    await client.flush()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps({"ready": True}), flush=True)
    while await reader.readline():
        print(json.dumps(consumer.describe()), flush=True)
    await client.close()


def main() -> None:
    """Reads the command line and serves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="default")
    asyncio.run(serve(parser.parse_args().cluster))


if __name__ == "__main__":
    main()
