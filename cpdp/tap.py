"""Sees every collective of a process group, DDP's own included, and reports it to the recorder.

torch calls a group's pre- and post-hooks in its dispatcher, so they also see the all-reduces that DDP's C++
reducer issues; a wrapper around `dist.all_reduce` would not. A collective is issued when its pre-hook runs
and finished when its future's callback runs. Issued to finished includes the wait in gloo's own queue. Where
torch has no such hooks (before 2.14) `hooked` is False; then `Collectives` reports its own operations and
gives DDP a communication hook.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from cpdp.recorder import PendingOperation, Recorder

_HOOK_ID = 0x6370  # any number that no other hook of this group uses

_KINDS = {
    "ALLREDUCE": "all_reduce",
    "BROADCAST": "broadcast",
    "ALLGATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "BARRIER": "barrier",
}


def tensor_bytes(tensors: Any) -> int:
    """Summed size of all tensors in a nested list."""
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(tensor_bytes(item) for item in tensors or ())


class Tap:
    """Reports the collectives of one process group while it is attached.

    What is issued while `travelling` is set may outlive its step. DDP issues operations without saying what for:
    its all-reduces carry gradients, its broadcasts `broadcasts`.
    """

    def __init__(self, recorder: Recorder, group: Any = None, *, scope: str = "") -> None:
        """Prepare; `group` None means the default group. `scope` is put before every purpose."""
        self.recorder = recorder
        self._group = group
        self._scope = scope
        self._purpose: str | None = None
        self.broadcasts = "buffers"
        self._open: dict[int, PendingOperation] = {}
        self.travelling = False
        self.hooked = False

    def attach(self) -> None:
        """Register the hooks, if this torch has them and something is to be recorded."""
        group = self._target()
        if self.recorder.recording and hasattr(group, "register_pre_hook"):
            group.register_pre_hook(_HOOK_ID, self._before)
            group.register_post_hook(_HOOK_ID, self._after)
            self.hooked = True

    def detach(self) -> None:
        """Remove the hooks."""
        if self.hooked:
            group = self._target()
            group.unregister_pre_hook(_HOOK_ID)
            group.unregister_post_hook(_HOOK_ID)
            self.hooked = False

    @contextmanager
    def purpose(self, purpose: str) -> Iterator[None]:
        """Say what the collectives issued inside the block carry."""
        before, self._purpose = self._purpose, purpose
        try:
            yield
        finally:
            self._purpose = before

    def note(self, work: Any, kind: str, purpose: str, size: int) -> None:
        """Report an operation that was just issued, where no hook did."""
        if self.recorder.recording and not self.hooked:
            operation = self.recorder.operation(kind, self._scope + purpose, size)
            operation.travels = self.travelling
            self.follow(operation, work)

    def follow(self, operation: PendingOperation, work: Any) -> None:
        """Stamp the operation's end when its future completes."""

        def stamp(done: Any) -> None:
            done.value()  # raises for a collective that failed: such a one is never finished
            self.recorder.finish(operation)

        future = work.get_future()
        stamped = future.then(stamp)
        # the future, not the work, is what DDP waits for: the work says that it is complete a moment later
        operation.settle = lambda: stamped.wait() if future.done() else None

    def _target(self) -> Any:
        return self._group or dist.group.WORLD

    def _before(self, args: Any) -> None:
        began = time.monotonic_ns()
        kind = _KINDS.get(args.name.name, args.name.name.lower())
        size = tensor_bytes(args.input_tensors)
        purpose = self._scope + (self._purpose or self._guess(kind))
        operation = self._open[args.op_id] = self.recorder.operation(kind, purpose, size)
        operation.travels = self.travelling
        self.recorder.spend(time.monotonic_ns() - began)

    def _after(self, args: Any) -> None:
        began = time.monotonic_ns()
        operation = self._open.pop(args.op_id, None)
        if operation is not None and args.work is not None:
            self.follow(operation, args.work)
        self.recorder.spend(time.monotonic_ns() - began)

    def _guess(self, kind: str) -> str:
        """What an operation carries that torch issued by itself."""
        return {"all_reduce": "gradients", "broadcast": self.broadcasts}.get(kind, "other")
