"""Threads that are not Python's own, such as gloo's, and call back into it.

For each call from such a thread Python makes a thread state and throws it away afterwards: a mapping and unmapping of
memory, and several times the cost of what is called. A state on which `PyGILState_Ensure` was called once more than
`PyGILState_Release` stays until its thread ends, and the next call finds it.
"""

from __future__ import annotations

import ctypes
import threading


class _Kept(threading.local):
    """Per thread state: a thread whose state was thrown away finds its attributes gone, too."""

    yes = False


KEPT = _Kept()


def keep_state() -> None:
    """Keep the calling thread's state until the thread ends; to be called once per state, see `KEPT`."""
    KEPT.yes = True
    api = getattr(ctypes, "pythonapi", None)
    if api is not None:
        api.PyGILState_Ensure()
