"""The profiler in a program of your own: a context manager, and a callback per step.

    with Profile("runs/mine", on_step=print) as profile:
        for x, y in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

Enter it before the process group is made, or after: groups that exist are listened to from then on. The same folder may
be given on every rank. `torch_profiler=True` runs a torch.profiler beside it and stores its trace in the folder.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cpdp import jsonfile, machine
from cpdp.profiler import install as installing
from cpdp.profiler import place
from cpdp.profiler.monitor import Monitor
from cpdp.rundir import RunDir


class Profile:
    """Profiles this process from enter to exit; a process can do so once, because hooks stay in place."""

    def __init__(
        self,
        folder: str | Path,
        *,
        on_step: Callable[[Mapping[str, Any]], None] | None = None,
        torch_profiler: bool = False,
    ) -> None:
        """`folder` is the run's; `on_step` gets {"n", "step_ns"} after every step."""
        self.run = RunDir(Path(folder).resolve())
        self._on_step = on_step
        self._wants_torch = torch_profiler
        self._torch: Any = None
        self._state: installing.Profiling | None = None
        self._name = f"{os.environ.get('NETLAB_WORKER', 'local')}-{uuid.uuid4().hex[:6]}"
        self._monitor: Monitor | None = None

    def __enter__(self) -> Self:
        """Put the hooks in place; make the event file if there is a process group already."""
        self._describe()
        os.environ.setdefault("CPDP_PROFILE_LAUNCH", self._name)
        self._monitor = Monitor(self.run.path / "network" / f"{self._name}.jsonl")
        self._monitor.__enter__()
        self._state = state = installing.install(self.run.path)
        self._join_existing(state)
        state.on_step = self._on_step
        if state.tracer is not None:
            state.tracer.on_step = self._on_step
        if self._wants_torch:
            import torch

            self._torch = torch.profiler.profile()
            self._torch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the end."""
        state = self._state
        assert state is not None
        if self._torch is not None:
            self._torch.__exit__(None, None, None)
            rank = 0 if state.tracer is None else state.rank
            self._torch.export_chrome_trace(str(self.run.path / f"torch-profiler-rank-{rank}.json"))
        if error is not None:
            state.reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        state.close()
        assert self._monitor is not None
        self._monitor.__exit__(None, None, None)
        self._record(0 if error is None else 1)

    def _join_existing(self, state: installing.Profiling) -> None:
        """Listen to the process groups that were made before."""
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            return
        import torch.distributed.distributed_c10d as c10d

        state.activate(dist.get_rank(), dist.get_world_size(), place.token(c10d._get_default_store()))
        state.compare_clocks(c10d._get_default_store())
        for group in list(c10d._world.pg_map):
            ranks = dist.get_process_group_ranks(group)
            watched = state.watch(group, str(getattr(group, "group_name", "")), ranks)
            if watched is not None and hasattr(group, "register_pre_hook"):
                watched.attach()

    def _describe(self) -> None:
        """A run folder that `cpdp show` reads; the rank that is first writes it."""
        for folder in ("launches", "network"):
            (self.run.path / folder).mkdir(parents=True, exist_ok=True)
        if not self.run.resolved.exists():
            jsonfile.write(self.run.machine, machine.describe())
            experiment = {"name": self.run.path.name, "kind": "profile", "phases": []}
            jsonfile.write(
                self.run.resolved,
                {"format": 1, "kind": "profile", "experiment": experiment, "cells": [], "versions": machine.versions(),
                 "started": datetime.now(UTC).isoformat(timespec="seconds")},
            )  # fmt: skip
        self._record(None)

    def _record(self, status: int | None) -> None:
        from cpdp.profiler import proof

        moved = self._monitor.moved() if self._monitor is not None else {}
        jsonfile.write(
            self.run.path / "launches" / f"{self._name}.json",
            {"name": self._name, "worker": os.environ.get("NETLAB_WORKER"), "status": status, "moved": moved,
             "paths": proof.environment_paths(os.environ), "invalid": []},
        )  # fmt: skip
