"""The packer: a thread that sends a long prompt to the agent in slices, and then its LOOKUPs.

Packing 100,000 tokens takes longer than the limit of an engine's hook. The packer releases the
interpreter lock after every slice, so the engine waits for one slice at most.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from . import frames
from .connection import Connection
from .namespace import Identity
from .packed import pack_u32
from .request import Request
from .transport import LinkClosed, LinkFull

_log = logging.getLogger(__name__)

INLINE_TOKENS = 1024  # a hook packs prompts up to this length
SLICE_TOKENS = 2048  # packed in about 20 us
_FULL_SECONDS = 1.0  # limit for an agent that does not read its socket
_FULL_PAUSE = 0.0005
# A pause of 0 would take the interpreter lock again before a waiting thread has woken up.
_PAUSE = 50e-6
_JOIN_SECONDS = 1.0

_now = time.monotonic


class PackError(ValueError):
    """Tokens or an identity that the protocol cannot carry."""


def pack_tokens(tokens: list[int]) -> bytes:
    """Packed tokens; PackError for a token outside 0..2^32-1."""
    try:
        return pack_u32(tokens)
    except (OverflowError, TypeError) as err:
        raise PackError(f"token: {err}") from None


def pack_open(number: int, generation: int, identity: Identity, tokens: list[int]) -> bytes:
    """The body of OPEN. PackError when the protocol cannot carry the request."""
    lora, lora_name, salt = identity
    for name, text in (("lora", lora), ("lora_name", lora_name), ("salt", salt)):
        if len(text) > 256 and len(text.encode(errors="replace")) > 1024:
            raise PackError(f"{name}: more than 1024 bytes")
    packed = pack_tokens(tokens)
    try:
        return frames.encode_open(number, generation, lora, lora_name, salt, packed)
    except ValueError as err:
        raise PackError(f"request {number}: {err}") from None


def pack_append(r: Request, generation: int, first: int, end: int) -> bytes | None:
    """The body of APPEND for tokens of r, which the engine only appends to.

    None for tokens that the protocol cannot carry: r stores nothing more. Any thread may call it.
    """
    if r.unpackable:
        return None
    try:
        packed = pack_tokens(list(r.tokens[first:end]))
    except PackError:
        r.unpackable = True
        return None
    return frames.encode_append(r.number, generation, first, packed)


def pack_store(r: Request, generation: int, first: int, count: int, group: int) -> bytes | None:
    """The body of STORE. None when an APPEND before it could not be encoded."""
    if r.unpackable:
        return None
    return frames.encode_store(r.number, generation, first, count, group=group)


class Pack:
    """A prompt in the packer: `end` tokens of a request's generation.

    questions: makes the questions that follow the tokens, in the packer's thread. asks: type,
    correlation and body of each. The engine's thread may set cancelled. opened, sent, asks, asked
    and error are the outcome. The engine's thread reads them once the Pack is in Packer.done.
    asked: the packer sends, or has sent, the questions.
    """

    __slots__ = (
        "request",
        "connection",
        "generation",
        "end",
        "questions",
        "asks",
        "cancelled",
        "opened",
        "sent",
        "asked",
        "error",
    )

    def __init__(
        self,
        request: Request,
        connection: Connection,
        end: int,
        questions: Callable[[], Sequence[tuple[int, int, bytes]]] = tuple,
    ) -> None:
        self.request = request
        self.connection = connection
        self.generation = request.generation
        self.end = end
        self.questions = questions
        self.asks: Sequence[tuple[int, int, bytes]] = ()
        self.cancelled = False
        self.opened = False
        self.sent = 0
        self.asked = False
        self.error = ""


class Packer:
    """The packer's thread. The first prompt starts it."""

    def __init__(self) -> None:
        self.done: deque[Pack] = deque()
        self.progress = 0.0  # when a slice of any prompt was last begun
        self._closing = False
        self._queue: queue.SimpleQueue[Pack | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, pack: Pack) -> None:
        """Queues a prompt. The prompt always appears in done, even after an error."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="blockyard-packer", daemon=True)
            self._thread.start()
        self._queue.put(pack)

    def close(self) -> None:
        """Ends the thread. Unsent prompts appear in done as cancelled."""
        self._closing = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_JOIN_SECONDS)
            self._thread = None

    def _run(self) -> None:
        while (pack := self._queue.get()) is not None:
            self._pack(pack)
            self._ask(pack)

    def _pack(self, pack: Pack) -> None:
        """Sends the tokens and appends the pack with its outcome to done."""
        try:
            self._send_all(pack)
            if not pack.cancelled:
                pack.asks = pack.questions()
        except (PackError, LinkClosed, LinkFull) as err:
            pack.error = str(err) or type(err).__name__
        except Exception as err:  # the request must end even after a bug
            _log.exception("packing request %s", pack.request.rid)
            pack.error = str(err) or type(err).__name__
        pack.asked = not (pack.error or pack.cancelled)
        self.done.append(pack)

    def _ask(self, pack: Pack) -> None:
        """Sends the LOOKUPs after the prompt is in done, so that no answer precedes the prompt.

        The packer sends them, because the engine may read done only milliseconds later.
        """
        if pack.asked and pack.asks:
            pack.connection.ask(pack.asks)

    def _send_all(self, pack: Pack) -> None:
        request = pack.request
        while not pack.opened or pack.sent < pack.end:
            self.progress = _now()
            pack.cancelled = pack.cancelled or self._closing
            if pack.cancelled:
                return
            piece = list(request.tokens[pack.sent : min(pack.sent + SLICE_TOKENS, pack.end)])
            if pack.opened:
                kind = frames.APPEND
                body = frames.encode_append(
                    request.number, pack.generation, pack.sent, pack_tokens(piece)
                )
            else:
                kind = frames.OPEN
                body = pack_open(request.number, pack.generation, request.identity, piece)
            self._send(pack, kind, body)
            pack.opened = True
            pack.sent += len(piece)
            if pack.sent < pack.end:
                time.sleep(_PAUSE)  # the engine goes first

    def _send(self, pack: Pack, kind: int, body: bytes) -> None:
        give_up = _now() + _FULL_SECONDS
        connection = pack.connection
        while True:
            try:
                connection.flush()  # the outbox goes first: RELEASE and ABORT free the agent's room
                if connection.backlog:
                    raise LinkFull(f"{frames.name(kind)}: other frames wait to be sent")
                connection.link.tell(kind, body)
                return
            except LinkFull:
                if pack.cancelled or self._closing or connection.stalled:
                    raise
                if _now() > give_up:
                    connection.stall()  # the next prompts need not wait as long
                    raise
                time.sleep(_FULL_PAUSE)
