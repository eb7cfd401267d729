"""PdConnector: a cache connector and NIXL in one engine, for prefill/decode.

Dynamo names this class for its prefill workers. vLLM's MultiConnector tracks the loads and saves of
a request. PdConnector adds two things. It checks its children, and each child gets the handshakes
of its own workers. MultiConnector passes on only the first child's handshakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiConnector,
    MultiKVConnectorMetadata,
)

# Names instead of classes, so that the check imports no connector that is not installed.
CACHE_CONNECTORS = (
    "BlockyardConnector",
    "DynamoConnector",
    "LMCacheConnectorV1",
    "FlexKVConnectorV1",
)
TRANSFER_CONNECTORS = ("NixlConnector",)

Rank = TypeVar("Rank")
# Code for KVBM imports this name.
PdConnectorMetadata = MultiKVConnectorMetadata


@dataclass
class PdHandshakeMetadata(KVConnectorHandshakeMetadata):
    """The handshakes of one worker's children, in order. None for a child without a handshake."""

    children: tuple[KVConnectorHandshakeMetadata | None, ...]


class PdConnector(MultiConnector):
    """Two connectors of one engine: a cache connector and NixlConnector.

    kv_connector_extra_config.connectors has one kv_transfer_config for each, in this order. A load
    comes from the first child with a hit. Stores go to both. ValueError when there are not two
    connectors, TypeError for a connector of the wrong kind.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        if len(self._connectors) != 2:
            raise ValueError(
                f"PdConnector: kv_connector_extra_config.connectors has "
                f"{len(self._connectors)} connectors, want 2"
            )
        for position, child, allowed in zip(
            ("first", "second"), self._connectors, (CACHE_CONNECTORS, TRANSFER_CONNECTORS)
        ):
            if not {c.__name__ for c in type(child).__mro__} & set(allowed):
                raise TypeError(
                    f"PdConnector: the {position} connector is {type(child).__name__}, "
                    f"want one of {', '.join(allowed)}"
                )

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """The handshakes of both children. None when neither has one."""
        children = tuple(c.get_handshake_metadata() for c in self._connectors)
        if all(c is None for c in children):
            return None
        return PdHandshakeMetadata(children)

    def set_xfer_handshake_metadata(
        self, metadata: Mapping[int, KVConnectorHandshakeMetadata]
    ) -> None:
        """Gives each child the handshakes of its own workers, by rank."""
        self._distribute(metadata, lambda child, own: child.set_xfer_handshake_metadata(own))

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: Mapping[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Gives each child the handshakes of its own workers, by pipeline and tensor rank."""
        self._distribute(
            metadata, lambda child, own: child.set_xfer_handshake_metadata_pp_aware(own)
        )

    def _distribute(
        self,
        metadata: Mapping[Rank, KVConnectorHandshakeMetadata],
        give: Callable[[Any, dict[Rank, KVConnectorHandshakeMetadata]], None],
    ) -> None:
        for index, child in enumerate(self._connectors):
            own: dict[Rank, KVConnectorHandshakeMetadata] = {}
            for rank, composite in metadata.items():
                if not isinstance(composite, PdHandshakeMetadata):
                    raise TypeError(
                        f"PdConnector: worker {rank} sent {type(composite).__name__}: "
                        "all ranks of an engine must use the same connector"
                    )
                part = composite.children[index]
                if part is not None:
                    own[rank] = part
            if own:
                give(child, own)
