"""Detects KVBM's own distribution in this directory.

Both distributions install a package `kvbm`, and the later one overwrites files of the other. pip
has no conflicts between distributions, so the import checks.
"""

from __future__ import annotations

import importlib.metadata
import pathlib

_ADVICE = (
    "kvbm-blockyard replaces kvbm. Run: pip uninstall -y kvbm kvbm-blockyard && "
    "pip install dist/kvbm_blockyard-*.whl, which `make wheels` in Blockyard's repository builds. "
    "To return to KVBM, install only kvbm."
)


def refuse_both() -> None:
    """Raises ImportError when a distribution `kvbm` or its compiled module is installed too."""
    found = _other_distribution() or _compiled_module(pathlib.Path(__file__).parent)
    if found:
        raise ImportError(f"two packages named kvbm are installed: {found}. {_ADVICE}")


def _other_distribution() -> str:
    try:
        version = importlib.metadata.version("kvbm")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return f"kvbm-blockyard and the distribution kvbm {version}"


def _compiled_module(directory: pathlib.Path) -> str:
    """The path of KVBM's compiled core, which can remain after its metadata is removed."""
    for path in sorted(directory.glob("_core*")):
        if path.suffix in (".so", ".pyd"):
            return f"{path} belongs to KVBM"
    return ""
