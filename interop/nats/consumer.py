"""A consumer of the native event stream that needs only nats-py.

Follows every publisher of a cluster by the rules of docs/events.md: it detects
gaps, queries the missing events, and compares digests. A late join counts as a
gap. Each line on standard input makes it print its state as one line of JSON:

    {"owners": [{"kind": "worker", "id": 1, "rank": 0, "exact": true,
                 "blocks": {"device": ["0123456789abcdef", ...]}}],
     "questions": N}

`questions` counts queries. The process ends when its standard input ends.
$NATS_URL is the server's URL.
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
# The packed query: a map of start_event_id, a number between these two, and end_event_id nil.
_START, _END = b"\x82\xaestart_event_id", b"\xacend_event_id\xc0"

Owner = tuple[str, int, int]


class Consumer:
    """The state of all publishers of a cluster. Runs on one event loop."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._cluster = cluster
        self._publishers: dict[int, Residency] = {}
        self._owners: dict[Owner, int] = {}
        self._last: dict[int, dict[str, Any]] = {}  # announcements
        self._tasks: set[asyncio.Task[None]] = set()
        self.questions = 0

    async def receive(self, message: Msg) -> None:
        """Takes an envelope or an announcement. Ignores other messages."""
        kind = message.subject.split(".")[2]
        if kind == "kv-events":
            envelope = unpack(message.data)
            state = self._publishers.setdefault(envelope["publisher_id"], Residency())
            gap = False
            for event in unpack(envelope["payload"]):
                gap = not state.offer(event) or gap
            if gap:
                self._query(envelope["publisher_id"], state.cursor + 1)
        elif kind == "announce":
            self._announced(unpack(message.data))

    def _announced(self, announcement: dict[str, Any]) -> None:
        publisher = announcement["publisher_id"]
        owner = (announcement["owner_kind"], announcement["owner_id"], announcement["dp_rank"])
        before = self._owners.get(owner)
        if announcement["health"] == "gone":
            self._forget(publisher)
            if before == publisher:
                del self._owners[owner]
            return
        if before is not None and before != publisher:
            self._forget(before)
        self._owners[owner] = publisher
        self._last[publisher] = announcement
        state = self._publishers.setdefault(publisher, Residency())
        if state.cursor < announcement["last_event_id"]:
            self._query(publisher, state.cursor + 1)
        elif state.cursor == announcement["last_event_id"] and not state.agrees(announcement):
            self._query(publisher, None)

    def _forget(self, publisher: int) -> None:
        self._publishers.pop(publisher, None)
        self._last.pop(publisher, None)

    def _query(self, publisher: int, start: int | None) -> None:
        """Queries a publisher in the background. A publisher has one query at a time."""
        state = self._publishers.get(publisher)
        if state is None or state.querying:  # the publisher is gone, or has a query already
            return
        state.querying = True
        self.questions += 1
        task = asyncio.get_running_loop().create_task(self._repair(publisher, state, start))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _repair(self, publisher: int, state: Residency, start: int | None) -> None:
        try:
            kind, last, events = await self._answer(publisher, start)
        except (asyncio.TimeoutError, ValueError, nats.errors.Error) as err:
            print(f"query to {publisher:016x}: {err!r}", file=sys.stderr)
            return  # the next announcement repeats the query
        finally:
            state.querying = False
        if kind == "tree_dump":
            state.replace(events, last)
        elif kind == "events":
            for event in events:
                state.offer(event)
        if not state.catch_up():
            self._query(publisher, state.cursor + 1)

    async def _answer(
        self, publisher: int, start: int | None
    ) -> tuple[str, int, list[dict[str, Any]]]:
        """Queries the events from `start` on, or a dump. Returns kind, last event id and events."""
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
        """The state of all owners, for a line of JSON."""
        owners = []
        for (kind, number, rank), publisher in sorted(self._owners.items()):
            state, announcement = self._publishers[publisher], self._last[publisher]
            blocks = {
                name: sorted(f"{h:016x}" for h, t in state.held if t == tier)
                for name, tier in TIERS.items()
            }
            exact = (
                announcement["health"] == "exact"
                and not state.querying
                and state.cursor == announcement["last_event_id"]
                and state.agrees(announcement)
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
