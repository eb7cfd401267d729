"""The connector under test with a gate in front of its copies, for cases that need slow ones.

vLLM loads SlowConnector by name. It is BlockyardConnector; only the mover of its worker is
another: it copies as a device does, later than it is told to, and not before the test says so.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

from blockyard import mover, numpy_mover
from blockyard.vllm.connector import BlockyardConnector
from e2e.slow_file import ENV, Throttle


class _Gated:
    """A copy that is made when it is looked at and the gate is open."""

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
    """The mover that a vLLM on CPU gets, behind a gate."""

    def __init__(self, pages: mover.Pages) -> None:
        super().__init__(pages)
        self._throttle = Throttle(pathlib.Path(os.environ[ENV]))

    def load(self, *args: Any) -> Any:
        return _Gated("load", self._throttle, functools.partial(super().load, *args))

    def store(self, *args: Any) -> Any:
        return _Gated("store", self._throttle, functools.partial(super().store, *args))


class SlowConnector(BlockyardConnector):
    """Loaded by vLLM through kv_connector_module_path."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        numpy_mover.NumpyMover = GatedMover  # type: ignore[misc]
        super().__init__(vllm_config, role, kv_cache_config)
