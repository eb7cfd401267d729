"""Stand-in for vllm.v1.metrics.cache_hit_source."""

from enum import Enum


class CacheHitSource(str, Enum):
    """The origin of cached tokens' KV."""

    DEVICE = "device"
    HOST = "host"
    P2P = "p2p"
    DISK = "disk"
    EXTERNAL_UNSPECIFIED = "external_unspecified"
