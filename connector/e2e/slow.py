"""The connector under test with a gate before its copies, for cases with delayed copies.

vLLM loads SlowConnector by name. Only the worker's mover differs from BlockyardConnector: a copy
begins when the test opens the gate.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

from blockyard import mover, native_plane, numpy_mover
from blockyard.vllm.connector import BlockyardConnector
from e2e.slow_file import ENV, Throttle


class _Gated:
    """A copy that done() makes if the gate is open."""

    def __init__(self, kind: str, throttle: Throttle, copy: Callable[[], object]) -> None:
        self._kind = kind
        self._throttle = throttle
        self._copy = copy
        throttle.arrive(kind)

    def done(self) -> bool:
        if self._throttle.held(self._kind):
            return False
        self._copy()
        return True


class GatedMover(numpy_mover.NumpyMover):
    """The mover of vLLM on CPU, behind a gate."""

    def __init__(self, pages: mover.Pages) -> None:
        super().__init__(pages)
        self._throttle = Throttle(pathlib.Path(os.environ[ENV]))

    def load(self, *args: Any) -> Any:
        return _Gated("load", self._throttle, functools.partial(super().load, *args))

    def store(self, *args: Any) -> Any:
        return _Gated("store", self._throttle, functools.partial(super().store, *args))


def _mover(_: object, pages: mover.Pages) -> GatedMover:
    """Both planes use the gated mover; the plane in C calls it."""
    return GatedMover(pages)


class SlowConnector(BlockyardConnector):
    """BlockyardConnector with a GatedMover. vLLM loads it by kv_connector_module_path."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        numpy_mover.NumpyMover = GatedMover  # type: ignore[misc]
        native_plane.NativePlane.mover = _mover  # type: ignore[method-assign]
        super().__init__(vllm_config, role, kv_cache_config)
