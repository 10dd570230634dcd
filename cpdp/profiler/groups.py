"""Every process group of a rank: numbers its operations, and tells the tracer when each is issued, done and waited for.

c10d calls a group's pre- and post-hooks for each operation, whoever issues it: the script, DDP's C++ reducer, FSDP. All
members of a group issue the same operations in the same order, so group and number match an operation across ranks.
Sends and receives are numbered per peer instead. Where this torch's groups have no hooks, the functions of
torch.distributed are wrapped (`functions`).
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from cpdp.profiler.tracer import CALL, Op, Tracer

_HOOK_ID = 0x63706470  # any number that no other hook of a group uses

KINDS = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce",
    "ALLGATHER": "all_gather",
    "ALLGATHER_COALESCED": "all_gather",
    "ALLGATHER_BASE": "all_gather",
    "_ALLGATHER_BASE": "all_gather",
    "_REDUCE_SCATTER_BASE": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
}
POINT_TO_POINT = ("send", "recv")
SHORT_NS = 2_000
"""A wait shorter than this found its operation complete."""
BLOCKING_NS = 5_000_000
"""A call that issues and takes longer than this stood still inside itself, even if it returned a work."""


def tensor_bytes(tensors: Any) -> int:
    """Summed size of all tensors in a nested list."""
    if hasattr(tensors, "element_size"):
        return int(tensors.numel() * tensors.element_size())
    return sum(tensor_bytes(item) for item in tensors or ())


class Group:
    """One process group while it is watched."""

    def __init__(self, tracer: Tracer, number: int, group: Any, name: str, ranks: list[int]) -> None:
        """Write down who is in it. `attach` starts listening."""
        self.tracer, self.number, self._group = tracer, number, group
        self._open: dict[Any, tuple[Op, int]] = {}
        self._heads: dict[tuple[str, int, Any], int] = {}
        self._next: dict[Any, int] = {}
        self._kinds: dict[Any, str] = {}
        backend, threads = _backend(group)
        tracer.say({"k": "group", "g": number, "name": name, "ranks": ranks, "backend": backend, "threads": threads})

    def attach(self) -> None:
        """Let c10d call us."""
        self._group.register_pre_hook(_HOOK_ID, self.before)
        self._group.register_post_hook(_HOOK_ID, self.after)

    def detach(self) -> None:
        """Take the hooks off."""
        self._group.unregister_pre_hook(_HOOK_ID)
        self._group.unregister_post_hook(_HOOK_ID)

    def before(self, args: Any) -> None:
        """c10d is about to issue."""
        began = time.monotonic_ns()
        kind = self._kinds.get(args.name)
        if kind is None:
            kind = self._kinds[args.name] = KINDS.get(args.name.name, args.name.name.lower())
        size = tensor_bytes(args.output_tensors) if kind == "all_gather" else 0
        size = size or tensor_bytes(args.input_tensors) or tensor_bytes(args.output_tensors)
        self._open[args.op_id] = (self.begin(kind, size, getattr(args, "root", None)), began)
        self.tracer.spend(time.monotonic_ns() - began)

    def after(self, args: Any) -> None:
        """c10d has issued; where it blocks, the operation is done."""
        began = time.monotonic_ns()
        found = self._open.pop(args.op_id, None)
        if found is None:
            return
        self.called(found[0], args.work, began - found[1])
        self.tracer.spend(time.monotonic_ns() - began)

    def begin(self, kind: str, size: int, peer: Any) -> Op:
        """An operation is issued now; numbered in its group, or per peer when it is a send or a receive."""
        lane = (kind, peer) if kind in POINT_TO_POINT else None
        seq = self._next.get(lane, 0)
        self._next[lane] = seq + 1
        head = self._heads.get((kind, size, lane))
        if head is None:
            head = self._heads[kind, size, lane] = next(_HEADS)
            whom = {} if lane is None else {"peer": peer}
            self.tracer.say({"k": "op", "h": head, "g": self.number, "kind": kind, "bytes": size, **whom})
        return self.tracer.issued(head, self.number, seq)

    def called(self, op: Op, work: Any, spent_ns: int) -> None:
        """The call that issued it has returned."""
        tracer = self.tracer
        op.called = tracer.mark()
        if work is None or spent_ns > BLOCKING_NS:
            tracer.waited(op.issued, op.called, op, CALL)
        if work is None:
            tracer.finished(op, self.number)
        else:
            self._follow(op, work)

    def _follow(self, op: Op, work: Any) -> None:
        """Stamp the end when the future says so; where a work has no future, when its wait returns."""
        tracer, number, key = self.tracer, self.number, id(work)
        WORKS[key] = (op, work, self)

        def done(_: Any) -> None:
            began = time.monotonic_ns()
            if op.finished is None:
                tracer.finished(op, number)
            WORKS.pop(key, None)
            tracer.spend(time.monotonic_ns() - began)

        try:
            child = work.get_future().then(done)
        except (RuntimeError, NotImplementedError):
            return
        # The future is complete a moment before its callback runs: a step written in that moment waits for it.
        op.settle = lambda: child.wait() if op.finished is None and work.is_completed() else None

    def finished_by_wait(self, op: Op) -> None:
        """A wait returned for an operation whose end nobody else reports."""
        if op.finished is None and op.settle is None:
            self.tracer.finished(op, self.number)


_HEADS = itertools.count()
WORKS: dict[int, tuple[Op, Any, Group]] = {}
"""Works on their way, by identity; pybind gives the same object back for the same work as long as one is held."""


def reset() -> None:
    """Forget everything, in a forked child."""
    global _HEADS
    _HEADS = itertools.count()
    WORKS.clear()


def wait_of(original: Any, current: Any) -> Any:
    """Work.wait, telling the tracer who waited and for what. `current()` is the tracer, or None."""

    def wait(self: Any, *arguments: Any, **named: Any) -> Any:
        tracer = current()
        if tracer is None:
            return original(self, *arguments, **named)
        found = WORKS.get(id(self))
        began_ns, began = time.monotonic_ns(), tracer.mark()
        result = original(self, *arguments, **named)
        if time.monotonic_ns() - began_ns > SHORT_NS:
            tracer.waited(began, tracer.mark(), found[0] if found is not None else None)
        if found is not None and found[0].settle is None:
            found[2].finished_by_wait(found[0])
            WORKS.pop(id(self), None)
        return result

    wait.__wrapped__ = original  # type: ignore[attr-defined]
    return wait


def _backend(group: Any) -> tuple[str, int | None]:
    """Name of the backend, and how many operations gloo runs at once."""
    try:
        backend = group._get_backend(group._device_types[0])
    except (AttributeError, RuntimeError, IndexError):
        return "unknown", None
    return str(backend.name()), getattr(getattr(backend, "options", None), "_threads", None)
