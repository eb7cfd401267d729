"""The identity of a request's blocks, and the requests that must not share blocks."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Any

from blockyard.fingerprint import LoraFiles, lora_fingerprint
from blockyard.namespace import BASE, Identity, bounded
from blockyard.vllm.guard import Faults

log = logging.getLogger("blockyard.vllm")

# Limit of loaded adapters in one engine. Further adapters are not cached. No adapter is removed,
# because its files may have changed meanwhile.
MAX_ADAPTERS = 16384
# How long requests wait for the fingerprint of an adapter's files.
READ_SECONDS = 1.0
# Interval between checks of an adapter's files for lookups.
CHECK_SECONDS = 1.0

PENDING = Identity("pending")  # the answer while an adapter's files are being read


class Adapter:
    """One loaded LoRA adapter, named by vLLM's lora_int_id.

    The id does not identify files. When the files change after the load, the engine may
    compute with the old or the new files. Then the adapter is barred: its requests load and store
    no block.
    """

    __slots__ = ("_checked", "barred", "files", "name", "path", "reading", "since", "stacked")

    def __init__(self, lora: Any) -> None:
        self.name = str(lora.lora_name)
        self.path = lora.lora_path
        self.stacked = _is_stacked(lora)
        self.barred = False
        self.reading = False
        self.since = time.monotonic()
        self.files: LoraFiles | None = None  # None while reading and after a failed read
        self._checked = 0.0

    def read(self) -> None:
        """Takes the fingerprint. Only the reader's thread calls it."""
        try:
            self.files = lora_fingerprint(self.path)
            self._checked = time.monotonic()
        except Exception as err:  # unreadable files are not cached
            log.warning("LoRA adapter %s is not cached: %s", self.name, err)
        self.reading = False

    def bar(self, why: str) -> None:
        """Ends caching for this id."""
        if not self.barred:
            log.warning(
                "LoRA adapter %s: %s; its blocks are not cached until another id loads it",
                self.name,
                why,
            )
        self.barred = True

    def intact(self) -> bool:
        """Whether the engine computes with the files of the fingerprint.

        Every offer calls it. Files that are unchanged after a block's computation were unchanged
        when the engine loaded them. Costs one stat for each file.
        """
        if self.barred or self.files is None:
            return False
        if not self.files.unchanged():
            self.bar("its files changed while it was loaded")
        return not self.barred

    def lately_intact(self) -> bool:
        """intact(), as of CHECK_SECONDS ago at most."""
        now = time.monotonic()
        if now - self._checked < CHECK_SECONDS:
            return not self.barred and self.files is not None
        self._checked = now
        return self.intact()

    def overdue(self) -> bool:
        """Whether the fingerprint takes longer than a request should wait."""
        return time.monotonic() - self.since > READ_SECONDS


class Adapters:
    """The identities of requests, with the fingerprints of their LoRA adapters."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._known: dict[int, Adapter] = {}
        self._unread: queue.SimpleQueue[Adapter | None] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None

    def identity_of(self, request: Any) -> Identity | None:
        """The identity of a request's blocks, None when they must not be shared (counted).

        PENDING while the files of its adapter are read, which takes milliseconds: ask again.
        """
        reason = _why_skipped(request)
        if reason:
            self._skip(reason)
            return None
        lora, salt = request.lora_request, request.cache_salt
        if lora is None and not salt:
            return BASE
        fingerprint = name = ""
        if lora is not None:
            adapter = self.adapter_of(lora)
            if adapter is not None and adapter.reading and not adapter.barred:
                if not adapter.overdue():
                    return PENDING
            if adapter is None or not adapter.lately_intact():
                self._skip("a LoRA adapter whose files cannot be identified")
                return None
            assert adapter.files is not None
            fingerprint = adapter.files.text + ("-3d" if adapter.stacked else "")
            name = bounded(lora.lora_name)
        return Identity(fingerprint, name, bounded(salt) if salt else "")

    def adapter_of(self, lora: Any) -> Adapter | None:
        """The adapter of a request. None when there are too many adapters."""
        number = lora.lora_int_id
        adapter = self._known.get(number)
        if adapter is None:
            if len(self._known) >= MAX_ADAPTERS:
                return None
            adapter = self._known[number] = Adapter(lora)
            self._read_later(adapter)
        # For a known id with another path, vLLM keeps the loaded files. With load_inplace, vLLM
        # reloads at an unknown time. Either way the id's KV may have the old or the new files.
        if getattr(lora, "load_inplace", False):
            adapter.bar("it is loaded in place")
        elif (adapter.path, adapter.stacked) != (lora.lora_path, _is_stacked(lora)):
            adapter.bar(f"another adapter has its id {number}")
        return adapter

    def _read_later(self, adapter: Adapter) -> None:
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, name="blockyard-lora", daemon=True)
            self._reader.start()
        adapter.reading = True
        self._unread.put(adapter)

    def _read(self) -> None:
        while (adapter := self._unread.get()) is not None:
            adapter.read()

    def close(self) -> None:
        """Ends the reader's thread."""
        self._unread.put(None)

    def _skip(self, reason: str) -> None:
        if self._faults.is_first(f"not shared: {reason}"):
            log.info("requests with %s are not shared (logged once)", reason)


def _is_stacked(lora: Any) -> bool:
    """Whether the engine reads the adapter's expert weights as one tensor for all experts."""
    return bool(getattr(lora, "is_3d_lora_weight", False))


def _why_skipped(request: Any) -> str:
    if request.mm_features:
        return "multimodal input"
    if request.prompt_embeds is not None or getattr(request, "prompt_is_token_ids", None):
        return "prompt embeddings"
    if request.prompt_token_ids is None:
        return "no token ids"
    if getattr(request, "resumable", False):
        return "streaming input"
    return ""
