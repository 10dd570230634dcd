"""Every process group of a rank: numbers its operations, and tells the tracer when each is issued, done and waited for.

c10d calls a group's pre- and post-hooks for each operation, whoever issues it: the script, DDP's C++ reducer, FSDP. All
members of a group issue the same operations in the same order, so group and number match an operation across ranks.
Sends and receives are numbered per peer instead. Where this torch's groups have no hooks, the functions of
torch.distributed are wrapped (`functions`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from cpdp.profiler.foreign import KEPT, keep_state
from cpdp.profiler.tracer import CALL, CALLED, FINISHED, FUTURE, HEAD, ISSUED, WORK, Op, Tracer

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


Hook = Callable[[Any], None]


class Group:
    """One process group while it is watched."""

    def __init__(self, tracer: Tracer, number: int, group: Any, name: str, ranks: list[int]) -> None:
        """Write down who is in it. `attach` starts listening."""
        self.tracer, self.number, self._group = tracer, number, group
        self._heads: dict[tuple[str, int, Any], int] = {}
        self._lanes: dict[Any, list[int]] = {None: [0]}
        """How many operations were issued: collectives under None, sends and receives under (kind, peer)."""
        self.operation = _operation(tracer)
        self.before, self.after = self._hooks()
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

    def _hooks(self) -> tuple[Hook, Hook]:
        """What c10d calls before and after it issues: closures over locals, because they run for every operation.

        A collective whose kind and size were seen before takes the short way through `usual`.
        """
        tracer, mark, ns = self.tracer, self.tracer.mark, time.monotonic_ns
        on_cpu, lane, called, new = tracer.clock is None, self._lanes[None], self.called, self.operation
        usual: dict[tuple[int, int], int] = {}
        opened: dict[int, tuple[Op, int]] = {}

        def before(args: Any) -> None:
            began = ns()
            issued = began if on_cpu else mark()
            tensors, head, key = args.input_tensors, None, None
            if len(tensors) == 1 and not isinstance(tensors[0], list):
                key = (args.name.value, tensors[0].nbytes)
                head = usual.get(key)
            if head is None:
                op = self._unusual(args, issued)
                if key is not None and args.name.name.lower() not in POINT_TO_POINT:
                    usual[key] = op[HEAD]
            else:
                op = new((head, lane[0], issued, 0, 0, 0, 0, None, None))
                lane[0] += 1
                tracer.ops.append(op)
            if tracer.ask is not None:
                tracer.asked()
            opened[args.op_id] = (op, began)
            tracer.spent += ns() - began

        def after(args: Any) -> None:
            now = ns()
            found = opened.pop(args.op_id, None)
            if found is None:
                return
            op, began = found
            work = args.work
            if work is None or now - began > BLOCKING_NS:
                called(op, work, now if on_cpu else mark(), now - began)
            else:  # the same, in short
                op[CALLED] = now if on_cpu else mark()
                op[WORK] = work
                tracer.works[id(work)] = op
                follow(op, work)
            tracer.spent += ns() - now

        return before, after

    def _unusual(self, args: Any, issued: Any) -> Op:
        """The long way: an operation of a kind or size not seen before, a send or a receive, or one without tensors."""
        kind = KINDS.get(args.name.name, args.name.name.lower())
        size = tensor_bytes(args.output_tensors) if kind == "all_gather" else 0
        size = size or tensor_bytes(args.input_tensors) or tensor_bytes(args.output_tensors)
        return self.begin(kind, size, getattr(args, "root", None), issued)

    def begin(self, kind: str, size: int, peer: Any, issued: Any) -> Op:
        """An operation is issued; numbered in its group, or per peer when it is a send or a receive."""
        lane = (kind, peer) if kind in POINT_TO_POINT else None
        head = self._heads.get((kind, size, lane))
        if head is None:
            head = self._heads[kind, size, lane] = next(_HEADS)
            whom = {} if lane is None else {"peer": peer}
            self.tracer.say({"k": "op", "h": head, "g": self.number, "kind": kind, "bytes": size, **whom})
        issued_before = self._lanes.setdefault(lane, [0])
        op = self.operation((head, issued_before[0], issued, 0, 0, 0, 0, None, None))
        issued_before[0] += 1
        self.tracer.ops.append(op)
        return op

    def called(self, op: Op, work: Any, now: Any, took_ns: int) -> None:
        """The call that issued it has returned `now`; a call without a work has stood still until the end.

        The end is stamped when the future says so; where a work has no future, when its wait returns.
        """
        op[CALLED] = now
        if work is None or took_ns > BLOCKING_NS:
            self.tracer.waited(op[ISSUED], now, op, CALL)
        if work is None:
            op[FINISHED] = now
            return
        op[WORK] = work
        self.tracer.works[id(work)] = op
        follow(op, work)

    def counts(self) -> list[int]:
        """The group's number, its operations, and how many of those have ended."""
        issued = sum(lane[0] for lane in list(self._lanes.values()))
        mine = set(self._heads.values())
        open_ops = sum(op[HEAD] in mine and not op[FINISHED] for op in list(self.tracer.works.values()))
        return [self.number, issued, issued - open_ops]


def follow(op: Op, work: Any) -> None:
    """Let the work's future, if it has one, tell of the end."""
    try:
        op[FUTURE] = future = work.get_future()
    except (RuntimeError, NotImplementedError):
        return
    future.add_done_callback(op)


KEEPING = 256
"""A group's first callbacks see to it that the states of its threads are kept."""


def _operation(tracer: Tracer) -> type[Op]:
    """The class of a tracer's operations: an `Op` that is its future's callback: nothing else is made."""
    mark = tracer.mark
    calls = itertools.count(1)

    def ended(op: Op, _future: Any) -> None:
        op[FINISHED], op[FUTURE], op[WORK] = mark(), None, None

    class Operation(list[Any]):
        __slots__ = ()

        def __call__(self, _future: Any) -> None:
            """The operation has ended; called by the library's thread."""
            ended(self, _future)
            if not KEPT.yes:
                keep_state()
            if next(calls) == KEEPING:
                Operation.__call__ = ended  # type: ignore[method-assign, assignment]

    return Operation


_HEADS = itertools.count()


def reset() -> None:
    """Forget everything, in a forked child."""
    global _HEADS
    _HEADS = itertools.count()


def wait_of(original: Any, current: Any) -> Any:
    """Work.wait, telling the tracer who waited and for what. `current()` is the tracer, or None."""

    def wait(self: Any, *arguments: Any, **named: Any) -> Any:
        tracer = current()
        if tracer is None:
            return original(self, *arguments, **named)
        op = tracer.works.get(id(self))
        if op is not None and op[WORK] is not self:  # another's, whose identity this one has taken over
            op = None
        began_ns, began = time.monotonic_ns(), tracer.mark()
        result = original(self, *arguments, **named)
        if time.monotonic_ns() - began_ns > SHORT_NS:
            tracer.waited(began, tracer.mark(), op)
        if op is not None and op[FUTURE] is None and not op[FINISHED]:  # nobody else reports its end
            op[FINISHED], op[WORK] = tracer.mark(), None
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
