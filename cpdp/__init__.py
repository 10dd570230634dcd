"""Train across a wide-area network and see how much of every step is exposed synchronisation.

The names below are loaded on first use: a command that only reads a run must not pay for importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpdp.parallel import DataParallel as DataParallel

__version__ = "0.1.0"
__all__ = ["DataParallel", "__version__"]

_LAZY = {"DataParallel": "cpdp.parallel"}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'cpdp' has no attribute {name!r}")
