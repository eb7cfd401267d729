"""Which requests may share blocks, and under which identity."""

from __future__ import annotations

import logging
from typing import Any

from blockyard.fingerprint import LoraFiles, lora_fingerprint
from blockyard.namespace import BASE, Identity, bounded
from blockyard.vllm.guard import Faults

log = logging.getLogger("blockyard.vllm")

# How many loadings of adapters one engine can tell apart; it caches no more of them after that.
# None is forgotten, because its files may have changed since.
MAX_ADAPTERS = 16384


class Adapters:
    """Identities of requests; remembers the fingerprints of LoRA adapters."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._known: dict[tuple[int, str, str], LoraFiles | None] = {}

    def identity_of(self, request: Any) -> Identity | None:
        """The identity of a request's blocks, None when they must not be shared (counted)."""
        reason = _why_skipped(request)
        if reason:
            self._skip(reason)
            return None
        lora, salt = request.lora_request, request.cache_salt
        if lora is None and not salt:
            return BASE
        fingerprint = name = ""
        if lora is not None:
            files = self._files_of(lora)
            if files is None:
                self._skip("a LoRA adapter whose files cannot be told apart")
                return None
            fingerprint, name = files.text, bounded(lora.lora_name)
        return Identity(fingerprint, name, bounded(salt) if salt else "")

    def _files_of(self, lora: Any) -> LoraFiles | None:
        # The id is vLLM's for one loading of an adapter. Files that change afterwards may or may
        # not be what the engine computes with: then this id is shared no more.
        key = (lora.lora_int_id, lora.lora_name, lora.lora_path)
        if key not in self._known:
            if len(self._known) >= MAX_ADAPTERS:
                return None
            try:
                self._known[key] = lora_fingerprint(lora.lora_path)
            except (OSError, ValueError) as err:
                self._known[key] = None
                log.warning("LoRA adapter %s is not cached: %s", lora.lora_name, err)
        files = self._known[key]
        if files is not None and not files.unchanged():
            log.warning(
                "LoRA adapter %s: its files changed while it was loaded; it is cached no more"
                " until it is loaded under another id",
                lora.lora_name,
            )
            self._known[key] = files = None
        return files

    def _skip(self, reason: str) -> None:
        if self._faults.said(f"not shared: {reason}"):
            log.info("requests with %s are not shared (said once)", reason)


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
