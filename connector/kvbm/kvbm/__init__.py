"""KVBM's import names for Blockyard's connector.

The connectors are in kvbm.vllm_integration and kvbm.trtllm_integration. The import of this package
needs neither engine. It raises ImportError when KVBM itself is installed too, because the files of
both packages are then mixed in one directory.
"""

from kvbm.conflict import refuse_both
from kvbm.version import __version__

__all__ = ["__version__"]

refuse_both()
