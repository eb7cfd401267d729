"""PdConnector: a cache connector and NIXL in one engine, for prefill/decode.

Dynamo names it for its prefill workers. It is vLLM's own MultiConnector, which tracks what a
request loads from where and when its saves have ended, with two differences: its children are
checked, and both get the handshake of their own workers. MultiConnector hands on only the first
child's, so that one of the two would never learn of its workers.
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

# By name, so that a connector that is not installed need not be imported to be refused.
CACHE_CONNECTORS = (
    "BlockyardConnector",
    "DynamoConnector",
    "LMCacheConnectorV1",
    "FlexKVConnectorV1",
)
TRANSFER_CONNECTORS = ("NixlConnector",)

Rank = TypeVar("Rank")
# Code that was written against KVBM names it; the metadata is MultiConnector's.
PdConnectorMetadata = MultiKVConnectorMetadata


@dataclass
class PdHandshakeMetadata(KVConnectorHandshakeMetadata):
    """What one worker's children tell their schedulers, in the order of the children.

    None for a child that has nothing to tell.
    """

    children: tuple[KVConnectorHandshakeMetadata | None, ...]


class PdConnector(MultiConnector):
    """Two connectors of one engine: one that keeps blocks, and NixlConnector.

    kv_connector_extra_config.connectors lists them in this order, each as its own
    kv_transfer_config. Loads come from the first that offers any, stores go to both. ValueError
    when there are not two, TypeError when one is of the wrong kind.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        if len(self._connectors) != 2:
            raise ValueError(
                f"PdConnector: kv_connector_extra_config.connectors has "
                f"{len(self._connectors)} connectors, and must have 2"
            )
        for place, child, allowed in zip(
            ("first", "second"), self._connectors, (CACHE_CONNECTORS, TRANSFER_CONNECTORS)
        ):
            if not {c.__name__ for c in type(child).__mro__} & set(allowed):
                raise TypeError(
                    f"PdConnector: the {place} connector is {type(child).__name__}, "
                    f"and must be one of {', '.join(allowed)}"
                )

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Both children's, or None when neither has any."""
        children = tuple(c.get_handshake_metadata() for c in self._connectors)
        if all(c is None for c in children):
            return None
        return PdHandshakeMetadata(children)

    def set_xfer_handshake_metadata(
        self, metadata: Mapping[int, KVConnectorHandshakeMetadata]
    ) -> None:
        """Gives each child what its own workers said, by rank."""
        self._distribute(metadata, lambda child, own: child.set_xfer_handshake_metadata(own))

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: Mapping[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """The same, by pipeline and tensor rank."""
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
