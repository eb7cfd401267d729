"""Stand-in for vLLM's registry of connectors."""

from __future__ import annotations


class KVConnectorFactory:
    """The known connectors by the names of their classes."""

    _registry: dict[str, tuple[str, str]] = {}

    @classmethod
    def register_connector(cls, name: str, module_path: str, class_name: str) -> None:
        """ValueError for a known name."""
        if name in cls._registry:
            raise ValueError(f"Connector '{name}' is already registered.")
        cls._registry[name] = (module_path, class_name)
