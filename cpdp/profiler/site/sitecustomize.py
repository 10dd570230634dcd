"""Runs at the start of every Python process below `cpdp profile`, because its folder stands first on PYTHONPATH.

It runs the sitecustomize that would have run without it, then waits for torch to be imported. Whatever goes wrong here
is said on stderr and never stops the program. `cpdp` is made importable behind everything the program itself can
import, so that no name of ours hides one of its own.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = str(HERE.parents[2])
"""The folder that holds the `cpdp` package."""


def _run_hidden() -> None:
    """Run the sitecustomize that ours hides, if there is one, under its own name."""
    path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class _Ours:
    """Last finder: `cpdp` from where this profiler runs, when nothing else provides it."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The package's place, for its name only."""
        return importlib.machinery.PathFinder.find_spec(name, [SOURCE]) if name == "cpdp" else None


class _AfterTorch:
    """First finder: calls `then` when torch has been imported, and is gone from then on."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """torch's real spec with a loader that calls us back."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return None
        loader, load, then = spec.loader, spec.loader.exec_module, self._then

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # what we put on the instance; the class's own is back
            load(module)
            then()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _install() -> None:
    try:
        from cpdp.profiler import install

        install.install(os.environ["CPDP_PROFILE"])
    except Exception as error:  # noqa: BLE001 - a profiler must not stop what it profiles
        print(f"cpdp profile: this process is not profiled: {type(error).__name__}: {error}", file=sys.stderr)


_run_hidden()
if "CPDP_PROFILE" in os.environ:
    sys.meta_path.append(_Ours())
    sys.meta_path.insert(0, _AfterTorch(_install))
