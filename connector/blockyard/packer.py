"""A thread that sends long prompts to the agent in slices, and the question what is resident.

Packing a prompt of 100,000 tokens takes longer than a hook of the engine may. The thread gives
the interpreter lock back after every slice, so that the engine never waits for more than one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence

from . import frames
from .connection import Connection
from .namespace import Identity
from .packed import pack_u32
from .request import Request
from .transport import LinkClosed, LinkFull

_log = logging.getLogger(__name__)

INLINE_TOKENS = 1024  # what a hook packs itself
SLICE_TOKENS = 2048  # about 20 us
_FULL_SECONDS = 1.0  # how long an agent that does not read is waited for
_FULL_PAUSE = 0.0005
# A call that returns at once gives the interpreter lock back and takes it again before a thread
# that waits for it has woken up. So the pause must be a real one.
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
    """The body of OPEN; PackError for what it cannot carry."""
    lora, lora_name, salt = identity
    for name, text in (("lora", lora), ("lora_name", lora_name), ("salt", salt)):
        if len(text) > 256 and len(text.encode(errors="replace")) > 1024:
            raise PackError(f"{name}: more than 1024 bytes")
    packed = pack_tokens(tokens)
    try:
        return frames.encode_open(number, generation, lora, lora_name, salt, packed)
    except ValueError as err:
        raise PackError(f"request {number}: {err}") from None


class Pack:
    """One request's tokens on their way: `end` tokens of generation `generation`.

    asks: correlation and body of the LOOKUPs that follow them. cancelled may be set by the engine's
    thread. opened, sent, asked and error are the outcome, for the engine's thread once it finds
    this in Packer.done; asked: the LOOKUPs go out, or have gone.
    """

    __slots__ = (
        "request",
        "connection",
        "generation",
        "end",
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
        asks: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        self.request = request
        self.connection = connection
        self.generation = request.generation
        self.end = end
        self.asks = asks
        self.cancelled = False
        self.opened = False
        self.sent = 0
        self.asked = False
        self.error = ""


class Packer:
    """The thread, which starts with the first prompt that it gets."""

    def __init__(self) -> None:
        self.done: deque[Pack] = deque()
        self.progress = 0.0  # when it last got on, with whichever prompt
        self._closing = False
        self._queue: queue.SimpleQueue[Pack | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, pack: Pack) -> None:
        """Hands over a prompt. It comes back in done, whatever happens."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="blockyard-packer", daemon=True)
            self._thread.start()
        self._queue.put(pack)

    def close(self) -> None:
        """Ends the thread. Prompts that were not sent yet come back as cancelled."""
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
        """Sends the tokens, and puts the outcome into done."""
        try:
            self._send_all(pack)
        except (PackError, LinkClosed, LinkFull) as err:
            pack.error = str(err) or type(err).__name__
        except Exception as err:  # a bug must not leave a request without an answer
            _log.exception("packing request %s", pack.request.rid)
            pack.error = str(err) or type(err).__name__
        pack.asked = not (pack.error or pack.cancelled)
        self.done.append(pack)

    def _ask(self, pack: Pack) -> None:
        """Sends the LOOKUPs, after the prompt has come into done: whoever sees an answer finds it
        there. From here, because the engine may look into done only milliseconds later."""
        if pack.asked and pack.asks:
            pack.connection.ask(frames.LOOKUP, pack.asks)

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
                connection.flush()  # what gives room at the agent goes first
                if connection.backlog:
                    raise LinkFull(f"{frames.name(kind)}: other frames wait to be sent")
                connection.link.tell(kind, body)
                return
            except LinkFull:
                if pack.cancelled or self._closing or connection.stalled:
                    raise
                if _now() > give_up:
                    connection.stall()  # so that the prompts behind it do not wait as long each
                    raise
                time.sleep(_FULL_PAUSE)
