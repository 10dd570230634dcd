"""For a torch whose process groups have no hooks: wraps the functions of torch.distributed, and gives DDP a hook.

What the script issues through `dist.*` is seen here; DDP's buckets, which its C++ reducer issues, are seen by a
communication hook that does what DDP does without one. A script that registers a communication hook of its own keeps
it, and its buckets are then seen only if that hook goes through `dist.*`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpdp.profiler.groups import Group, tensor_bytes

FUNCTIONS = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
    "isend": "send",
    "irecv": "recv",
}


def wrap(state: Any) -> None:
    """Wrap what this torch has, and DDP."""
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d

    for name, kind in FUNCTIONS.items():
        original = getattr(c10d, name, None)
        if original is None:
            continue
        wrapped = _wrapped(state, original, kind)
        setattr(c10d, name, wrapped)
        setattr(dist, name, wrapped)
    _wrap_ddp(state)


def _group(state: Any, named: Any) -> Group | None:
    """The watched group that a call is about."""
    import torch.distributed as dist

    wanted = named.get("group") or dist.group.WORLD
    return next((one for one in state.groups if one._group is wanted), None)


def _wrapped(state: Any, original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        group = _group(state, named)
        if group is None:
            return original(*arguments, **named)
        blocking = not named.get("async_op", False) and kind not in ("send", "recv")
        tensors = [one for one in (*arguments, *named.values()) if _holds_tensors(one)]
        peer = next((one for one in arguments[1:] if isinstance(one, int)), named.get("dst", named.get("src")))
        op = group.begin(kind, tensor_bytes(tensors[:1]), peer, group.tracer.mark())
        group.tracer.asked()
        if blocking:
            named = {**named, "async_op": True}
        work = original(*arguments, **named)
        group.called(op, work, group.tracer.mark(), 0)
        if not blocking:
            return work
        if work is not None:
            work.wait()
        return None

    call.__wrapped__ = original  # type: ignore[attr-defined]
    return call


def _holds_tensors(value: Any) -> bool:
    return hasattr(value, "element_size") or (isinstance(value, list) and value != [] and _holds_tensors(value[0]))


def _wrap_ddp(state: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    make, register = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook

    def averaged(owner: Any, bucket: Any) -> Any:
        from torch.distributed import distributed_c10d as c10d

        group = owner.process_group
        tensor = bucket.buffer().div_(c10d.get_world_size(group))
        return c10d.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda done: done.value()[0])

    averaged.__annotations__.clear()  # DDP refuses a hook whose annotations are not the very classes it names

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        register(self, self, averaged)
        self._cpdp_hook = True

    def register_comm_hook(self: Any, *arguments: Any, **named: Any) -> None:
        if getattr(self, "_cpdp_hook", False):
            raise RuntimeError(
                "cpdp profile had to register a communication hook because this torch's process groups have none, and"
                " DDP takes only one: run this script without cpdp profile, or with a newer torch"
            )
        register(self, *arguments, **named)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    DistributedDataParallel.register_comm_hook = register_comm_hook  # type: ignore[method-assign]
