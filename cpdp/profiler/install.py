"""Puts the hooks into a process: c10d groups, Work.wait, autograd, optimizers, modules, data loaders.

Called by `site/sitecustomize.py` right after torch was imported, or by `library`. Everything is found by looking for
it, never by a version; what is not there is left out and said in the start line. The event file is made at the first
process group or step, by the process that has it: a launcher or a data loader's worker leaves none.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cpdp.profiler import groups, offset, place, tracer
from cpdp.profiler.tracer import Tracer


class Profiling:
    """The state of one process."""

    def __init__(self, folder: str | Path) -> None:
        """`folder` is the run's folder."""
        self.folder = Path(folder)
        self.tracer: Tracer | None = None
        self.failed = False
        self.reason: str | None = None
        self.groups: list[groups.Group] = []
        self.missing: list[str] = []
        self.rank = 0
        self.on_step: Callable[[Mapping[str, Any]], None] | None = None
        self._forward: Any = None
        self._fd = -1

    def current(self) -> Tracer | None:
        """The tracer once there is one."""
        return self.tracer

    def activate(self, rank: int, world: int, token: str) -> Tracer | None:
        """Make the event file; None when that failed, which is said once."""
        if self.tracer is not None or self.failed:
            return self.tracer
        try:
            path = place.claim(self.folder, token, rank)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self.failed = True
            print(f"cpdp profile: rank {rank} is not profiled: {error}", file=sys.stderr)
            return None
        write = tracer.append_to(self._fd)
        clock = _clock()
        write(tracer.start_line(**self._facts(rank, world, clock)))
        self.tracer, self.rank = Tracer(write, clock), rank
        self.tracer.on_step = self.on_step
        self.tracer.counts = lambda: [group.counts() for group in self.groups]
        self.arm_forward()
        return self.tracer

    def compare_clocks(self, store: Any) -> None:
        """Measure how far this rank's clock is from rank 0's, where they are two."""
        if self.tracer is None or store is None:
            return
        try:
            if self.rank == 0:
                offset.serve(store, offset.clock_identity())
            else:
                offset.follow(store, offset.clock_identity(), self.tracer.say)
        except (OSError, RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
            print(f"cpdp profile: clocks are not compared: {error}", file=sys.stderr)

    def alone(self) -> Tracer | None:
        """A step begins where no process group was made."""
        if self.tracer is None and not self.failed:
            return self.activate(0, 1, f"alone-{socket.gethostname()}-{os.getpid()}-{time.monotonic_ns()}")
        return self.tracer

    def _facts(self, rank: int, world: int, clock: Any) -> dict[str, Any]:
        import torch

        return {
            "rank": rank,
            "world": world,
            "strategy": "profile",
            "clock": "monotonic" if clock is None else clock.name,
            "boot": offset.clock_identity(),
            "host": socket.gethostname(),
            "worker": os.environ.get("NETLAB_WORKER"),
            "launch": os.environ.get("CPDP_PROFILE_LAUNCH"),
            "pid": os.getpid(),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "missing": self.missing,
        }

    def arm_forward(self) -> None:
        """Be called at the next module call, once: nested modules cost nothing."""
        if self._forward is None:
            from torch.nn.modules.module import register_module_forward_pre_hook

            self._forward = register_module_forward_pre_hook(self._entered)

    def disarm_forward(self) -> None:
        """Be called no more."""
        handle, self._forward = self._forward, None
        if handle is not None:
            handle.remove()

    def _entered(self, _module: Any, _inputs: Any) -> None:
        import torch

        self.disarm_forward()
        training = torch.is_grad_enabled()
        found = self.alone() if training else self.tracer
        if found is not None:
            found.forward(training=training)

    def watch(self, group: Any, name: str, ranks: list[int]) -> groups.Group | None:
        """Listen to a process group."""
        if self.tracer is None:
            return None
        watched = groups.Group(self.tracer, len(self.groups), group, name, ranks)
        self.groups.append(watched)
        return watched

    def close(self) -> None:
        """Write the end."""
        if self.tracer is not None:
            self.tracer.close(ok=self.reason is None, reason=self.reason)

    def forked(self) -> None:
        """A forked child is a process of its own: it has written nothing yet."""
        if self._fd >= 0:
            os.close(self._fd)
        self.tracer, self._fd, self.failed, self.reason = None, -1, False, None
        self.groups = []
        groups.reset()
        self.arm_forward()


PROFILING: Profiling | None = None


def install(folder: str | Path) -> Profiling:
    """Put every hook in place, once per process."""
    global PROFILING
    if PROFILING is not None:
        return PROFILING
    PROFILING = state = Profiling(folder)
    for part in (_watch_groups, _watch_autograd, _watch_optimizers, _watch_data, _watch_end):
        try:
            part(state)
        except (ImportError, AttributeError, TypeError) as error:
            state.missing.append(f"{part.__name__.removeprefix('_watch_')}: {error}")
    state.arm_forward()
    return state


def _clock() -> Any:
    """CUDA events once this process uses a GPU; None for the host's monotonic clock."""
    import torch

    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return None
    from cpdp.clock import CudaEventClock

    return CudaEventClock()


def _watch_groups(state: Profiling) -> None:
    import torch.distributed as dist

    if not dist.is_available():
        return
    import torch.distributed.distributed_c10d as c10d

    c10d.Work.wait = groups.wait_of(c10d.Work.wait, state.current)  # type: ignore[method-assign]
    hooked = hasattr(dist.ProcessGroup, "register_pre_hook") and not os.environ.get("CPDP_PROFILE_NO_HOOKS")
    if not hooked:
        from cpdp.profiler import functions

        state.missing.append("process groups have no hooks: the functions of torch.distributed are wrapped")
        functions.wrap(state)
    make = c10d._new_process_group_helper

    def made(*arguments: Any, **named: Any) -> Any:
        result = make(*arguments, **named)
        try:
            group = result[0] if isinstance(result, tuple) else result
            watched = _attach(state, group, arguments, named)
            if watched is not None and hooked:
                watched.attach()
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            print(f"cpdp profile: a process group is not profiled: {error}", file=sys.stderr)
        return result

    c10d._new_process_group_helper = made


def _attach(state: Profiling, group: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> groups.Group | None:
    """Listen to a group that was just made; the first one, which holds every rank, makes the event file.

    c10d's helper takes (group size, rank in the group, global ranks, backend, store, ...).
    """
    import torch.distributed as dist

    if group is None or group is getattr(dist.GroupMember, "NON_GROUP_MEMBER", None):
        return None
    members = list(named.get("global_ranks_in_group", arguments[2] if len(arguments) > 2 else []))
    if state.tracer is None and not members:
        store = named.get("store", arguments[4] if len(arguments) > 4 else None)
        state.activate(group.rank(), group.size(), place.token(store))
        state.compare_clocks(store)
    name = str(getattr(group, "group_name", "") or len(state.groups))
    return state.watch(group, name, members or list(range(group.size())))


def _watch_autograd(state: Profiling) -> None:
    import torch

    original = torch.autograd.backward
    queue = torch.autograd.Variable._execution_engine.queue_callback

    def backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
        found = state.alone()
        if found is None:
            return original(tensors, *arguments, **named)
        before = found.backward(lambda: queue(lambda: setattr(found, "computed", found.mark())))
        try:
            return original(tensors, *arguments, **named)
        finally:
            found.backward_over(before)
            state.arm_forward()

    backward.__wrapped__ = original  # type: ignore[attr-defined]
    torch.autograd.backward = backward


def _watch_optimizers(state: Profiling) -> None:
    import torch
    from torch.optim import optimizer

    def before(*_: Any) -> None:
        found = state.alone()
        if found is not None:
            found.optimizer()

    def after(*_: Any) -> None:
        if state.tracer is not None:
            state.tracer.optimizer_over()
            state.arm_forward()

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)
    zero = torch.optim.Optimizer.zero_grad

    def zero_grad(self: Any, *arguments: Any, **named: Any) -> Any:
        if state.tracer is not None and state.tracer.step is not None:
            state.tracer.begin_if_over()
        return zero(self, *arguments, **named)

    zero_grad.__wrapped__ = zero  # type: ignore[attr-defined]
    torch.optim.Optimizer.zero_grad = zero_grad  # type: ignore[method-assign]


def _watch_data(state: Profiling) -> None:
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def watched(call: Any) -> Any:
        def run(self: Any) -> Any:
            found = state.tracer
            if found is None:
                return call(self)
            found.data()
            try:
                return call(self)
            finally:
                found.got_data()
                state.arm_forward()

        run.__wrapped__ = call  # type: ignore[attr-defined]
        return run

    _BaseDataLoaderIter.__next__ = watched(_BaseDataLoaderIter.__next__)  # type: ignore[method-assign]
    DataLoader.__iter__ = watched(DataLoader.__iter__)  # type: ignore[method-assign]


def _watch_end(state: Profiling) -> None:
    leave, report = os._exit, sys.excepthook

    def _exit(status: int) -> Any:
        state.close()
        leave(status)

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        state.reason = f"{kind.__name__}: {error}".splitlines()[0][:300]
        report(kind, error, trace)

    os._exit = _exit
    sys.excepthook = excepthook
    atexit.register(state.close)
    os.register_at_fork(after_in_child=state.forked)
