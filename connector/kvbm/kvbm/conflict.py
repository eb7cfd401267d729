"""Tells whether KVBM's own distribution shares this directory.

Both distributions install a package `kvbm`, and whichever is installed last overwrites files of
the other. The package index knows no conflicts between distributions, so this is found at import.
"""

from __future__ import annotations

import importlib.metadata
import pathlib

_ADVICE = (
    "kvbm-blockyard takes the place of kvbm. Run: pip uninstall -y kvbm kvbm-blockyard && "
    "pip install dist/kvbm_blockyard-*.whl, which `make wheels` of Blockyard builds "
    "(or install kvbm alone to go back)"
)


def refuse_both() -> None:
    """ImportError when a distribution `kvbm`, or the compiled module of one, is here too."""
    found = _other_distribution() or _compiled_module(pathlib.Path(__file__).parent)
    if found:
        raise ImportError(f"two packages named kvbm are installed: {found}. {_ADVICE}")


def _other_distribution() -> str:
    try:
        version = importlib.metadata.version("kvbm")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return f"beside kvbm-blockyard there is the distribution kvbm {version}"


def _compiled_module(directory: pathlib.Path) -> str:
    """KVBM's compiled core, which stays behind when its metadata has been removed."""
    for path in sorted(directory.glob("_core*")):
        if path.suffix in (".so", ".pyd"):
            return f"{path} belongs to KVBM"
    return ""
