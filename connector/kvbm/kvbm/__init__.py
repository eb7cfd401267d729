"""KVBM's import names for Blockyard's connector.

The connectors are in kvbm.vllm_integration and kvbm.trtllm_integration; importing this package
needs neither engine. ImportError when KVBM itself is installed beside it, because then nobody can
say whose files the two directories of the same name hold.
"""

from kvbm.conflict import refuse_both
from kvbm.version import __version__

__all__ = ["__version__"]

refuse_both()
