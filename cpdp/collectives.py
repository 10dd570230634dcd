"""The only caller of torch.distributed's collectives: averaging in chunks, broadcasts, barriers, and torch's
DDP.

Flow: strategies -> `Collectives` -> the process group that `transport` opened; `tap` tells the recorder what
moved. One rank alone (or no process group at all) is a world of one: nothing is sent, sums are what they
were.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import chain, repeat
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cpdp.errors import PeerLost
from cpdp.recorder import Recorder
from cpdp.tap import Tap, tensor_bytes
from cpdp.transport import first_line

_NO_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"  # its name before torch 2.14
)

DEFAULT_BUCKET_MB = 25
"""torch's default, under which its first bucket is of 1 MiB, so that gradients leave early. A size that is named makes
all buckets of that size.
"""

CHUNK_BYTES = 2 << 20
"""Size of one all-reduce when a buffer is averaged. Large enough that gloo's ring (segments of up to 1 MiB) runs at
full speed, small enough that several are on their way at once, that their phases interleave, and that arithmetic on
one hides beneath the others.
"""

RAMP = (CHUNK_BYTES // 4, CHUNK_BYTES // 2)
RAMP_OPERATIONS = 8
"""The first operations are smaller: `RAMP_OPERATIONS` of each size in `RAMP`. After a pause for computation TCP sends
what its windows allow at the speed of the local interface; a burst larger than the bottleneck's queue is lost and costs
the connections their windows. Short first operations bound that burst, and later ones follow arriving data.
"""


Hook = tuple[Any, Callable[[Any, Any], Any]]
"""State and function of a communication hook of torch's DDP."""


class Collectives:
    """The operations of one rank on a process group (the default one unless given), or on none.

    `rank` and `world` count within the group. `scope` goes before the purpose of what is reported.
    """

    def __init__(
        self, recorder: Recorder | None = None, *, chunk_bytes: int = CHUNK_BYTES, group: Any = None, scope: str = ""
    ) -> None:
        """Look at the process group and start reporting its collectives to the recorder."""
        self.recorder = recorder or Recorder()
        self.chunk_bytes = chunk_bytes
        self.group = group
        opened = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank(group) if opened else 0
        self.world = dist.get_world_size(group) if opened else 1
        self._tap = Tap(self.recorder, group, scope=scope)
        self._parts: list[Collectives] = []
        if self.world > 1:
            self._tap.attach()

    def close(self) -> None:
        """Stop reporting, in parts that were split off, too. The process groups stay open."""
        for part in self._parts:
            part.close()
        self._tap.detach()

    def names(self, name: str) -> list[str]:
        """Every rank's name, by rank. Collective; for the start of a run."""
        if self.world == 1:
            return [name]
        found: list[Any] = [None] * self.world
        with self._tap.purpose("start"):
            dist.all_gather_object(found, name, group=self.group)
        return [str(one) for one in found]

    def part(self, ranks: Sequence[int], scope: str = "") -> Collectives | None:
        """The collectives of some of the ranks; None on a rank outside. Every rank must ask for the same parts in the
        same order.
        """
        if self.world == 1:
            return self if 0 in ranks else None
        group = dist.new_group(list(ranks), timeout=self._timeout())
        if self.rank not in ranks:
            return None
        made = Collectives(self.recorder, chunk_bytes=self.chunk_bytes, group=group, scope=scope)
        self._parts.append(made)
        return made

    def _timeout(self) -> timedelta | None:
        """This group's time limit: torch would give a new group its own default, half an hour."""
        group: Any = self.group or dist.group.WORLD
        options = getattr(group._get_backend(torch.device("cpu")), "options", None)
        limit: timedelta | None = getattr(options, "_timeout", None)
        return limit

    def launch(self, flats: Sequence[tuple[Tensor, str]], fill: Callable[[int, slice], None] | None = None) -> Flight:
        """Start to sum flat tensors, each with its purpose, over all ranks in place, and return at once.

        `fill` is called for each chunk before it leaves. Nobody may touch the tensors before they have arrived.
        """
        pieces = [(which, piece) for which, (flat, _) in enumerate(flats) for piece in self.chunks(flat)]
        works: list[Arriving] = []
        self._tap.travelling = True
        for which, piece in pieces:
            flat, purpose = flats[which]
            if fill is not None:
                fill(which, piece)
            if self.world > 1:
                works.append((self.all_reduce(flat[piece], purpose), f"all_reduce of {purpose}", None))
        self._tap.travelling = False
        return Flight(self, works, pieces)

    def launch_gather(self, tensor: Tensor, purpose: str) -> tuple[Tensor, Flight]:
        """Start to send a flat tensor to all ranks; returns room for theirs by rank (world, n), and the flight."""
        room = tensor.new_empty((self.world, tensor.numel()))
        if self.world == 1:
            room[0] = tensor
            return room, Flight(self, [])
        self._tap.travelling = True
        works = [self._gather(tensor[piece], room[:, piece], purpose) for piece in self.chunks(tensor)]
        self._tap.travelling = False
        return room, Flight(self, works)

    def _gather(self, tensor: Tensor, room: Tensor, purpose: str) -> tuple[Any, str, Callable[[], None]]:
        """Start to gather one chunk; gloo needs a contiguous tensor for each rank's, copied into its row on arrival."""
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        with self._tap.purpose(purpose):
            work = dist.all_gather(parts, tensor, group=self.group, async_op=True)
        self._tap.note(work, "all_gather", purpose, tensor_bytes(tensor))

        def keep() -> None:
            room.copy_(torch.stack(parts))

        return work, f"all_gather of {purpose}", keep

    def sum_in_chunks(self, flats: Sequence[tuple[Tensor, str]]) -> Iterator[tuple[int, slice]]:
        """Sum flat tensors, each with its purpose, over all ranks in place; yield (which, chunk) as sums
        arrive.

        All chunks are issued at once and gloo runs as many at a time as it has threads, so what the caller
        does with a chunk happens while later ones are on their way. Every rank receives the same bits: each
        element is summed on one rank and copied from there. Raises PeerLost.
        """
        pieces = [(which, piece) for which, (flat, _) in enumerate(flats) for piece in self.chunks(flat)]
        if self.world == 1:
            yield from pieces
            return
        works = [self.all_reduce(flats[which][0][piece], flats[which][1]) for which, piece in pieces]
        for (which, piece), work in zip(pieces, works, strict=True):
            self._wait(work, f"all_reduce of {flats[which][1]}")
            yield which, piece

    def chunks(self, flat: Tensor) -> list[slice]:
        """The slices in which a flat tensor travels: small ones first, then `chunk_bytes` each, a rest last."""
        ramp = [size for size in RAMP for _ in range(RAMP_OPERATIONS)]
        sizes = chain((min(size, self.chunk_bytes) for size in ramp), repeat(self.chunk_bytes))
        pieces, start, end = [], 0, flat.numel()
        while start < end:
            stop = min(start + max(1, next(sizes) // flat.element_size()), end)
            pieces.append(slice(start, stop))
            start = stop
        return pieces

    def broadcast(self, tensors: list[Tensor], purpose: str, source: int = 0) -> None:
        """Copy rank `source`'s tensors to all ranks, in place. Raises PeerLost."""
        if self.world == 1:
            return
        with self._tap.purpose(purpose), torch.no_grad():
            works = [
                dist.broadcast(tensor.detach(), group=self.group, group_src=source, async_op=True) for tensor in tensors
            ]
        for tensor, work in zip(tensors, works, strict=True):
            self._tap.note(work, "broadcast", purpose, tensor_bytes(tensor))
            self._wait(work, f"broadcast of {purpose}")

    def barrier(self) -> None:
        """Wait until every rank is here. Raises PeerLost."""
        if self.world == 1:
            return
        try:
            with self._tap.purpose("barrier"):
                dist.barrier(self.group)
        except RuntimeError as error:
            raise self._lost("barrier", error) from error

    @contextmanager
    def purpose(self, purpose: str) -> Iterator[None]:
        """Say what the collectives carry that torch issues by itself inside the block, in parts as well."""
        with ExitStack() as stack:
            for one in (self, *self._parts):
                stack.enter_context(one._tap.purpose(purpose))
            yield

    def label_broadcasts(self, purpose: str) -> None:
        """Say what DDP's next broadcasts carry: "buffers", or the "buckets" it agrees on after its first
        backward.
        """
        self._tap.broadcasts = purpose
        for part in self._parts:
            part.label_broadcasts(purpose)

    @contextmanager
    def averaged(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Hold the workers' mean in each tensor for the length of the block, then what was there before."""
        saved = [tensor.detach().clone() for tensor in tensors]
        with torch.no_grad():
            for tensor in tensors:
                mean = tensor.detach().clone().flatten()
                for _, chunk in self.sum_in_chunks([(mean, "evaluation")]):
                    mean[chunk].div_(self.world)
                tensor.copy_(mean.view_as(tensor))
        yield
        with torch.no_grad():
            for tensor, before in zip(tensors, saved, strict=True):
                tensor.copy_(before)

    def data_parallel(
        self, module: nn.Module, *, bucket_mb: int, find_unused: bool, forward_buffers: bool, hook: Hook | None = None
    ) -> nn.Module:
        """Torch's DistributedDataParallel around a module; a world of one keeps the module itself.

        `forward_buffers`: before each forward pass after a synchronised one, broadcast rank 0's buffers
        (torch's default). Gradients are views into DDP's buckets, which saves a copy each way and changes no
        value. `hook` replaces DDP's averaging of a bucket.
        """
        if self.world == 1:
            return module
        buffers: dict[str, Any] = {} if forward_buffers else {_NO_BUFFERS: False}
        with self._tap.purpose("start"):
            ddp = DistributedDataParallel(
                module,
                process_group=self.group,
                bucket_cap_mb=None if bucket_mb == DEFAULT_BUCKET_MB else bucket_mb,
                find_unused_parameters=find_unused,
                **buffers,
                gradient_as_bucket_view=True,
            )
        if hook is None and self.recorder.recording and not self._tap.hooked:
            # a lambda, because torch compares annotations and does not know postponed ones
            hook = self, lambda state, bucket: _reported_all_reduce(state, bucket)
        if hook is not None:
            ddp.register_comm_hook(*hook)
        return ddp

    def all_reduce(self, tensor: Tensor, purpose: str) -> Any:
        """Start to sum a tensor in place; returns torch's work object."""
        with self._tap.purpose(purpose):
            work = dist.all_reduce(tensor, group=self.group, async_op=True)
        self._tap.note(work, "all_reduce", purpose, tensor_bytes(tensor))
        return work

    def _wait(self, work: Any, what: str) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(what, error) from error

    def _lost(self, what: str, error: RuntimeError) -> PeerLost:
        where = self.recorder.whereabouts()
        return PeerLost(f"rank {self.rank}, {where}: {what} failed: {first_line(error)}")


Arriving = tuple[Any, str, Callable[[], None] | None]
"""torch's work, its name, and what to do once it is done."""


class Flight:
    """What travels while the main thread does something else."""

    def __init__(
        self, collectives: Collectives, works: Sequence[Arriving], pieces: Sequence[tuple[int, slice]] = ()
    ) -> None:
        """Made by `Collectives.launch` and `launch_gather`; `pieces` says what each work sums."""
        self._collectives = collectives
        self._works = works
        self._pieces = pieces

    def arriving(self) -> Iterator[tuple[int, slice]]:
        """(which tensor, slice) of each chunk as it arrives; only while one waits is the phase `exposed.parameters`,
        what the caller does with a chunk is `update`. Raises PeerLost.
        """
        recorder = self._collectives.recorder
        for index, piece in enumerate(self._pieces):
            if self._works:
                work, what, _ = self._works[index]
                if not work.is_completed():
                    recorder.switch("exposed.parameters")
                self._collectives._wait(work, what)
            recorder.switch("update")
            yield piece
        self._works = ()

    def land(self) -> None:
        """Wait until everything has arrived; at once when it has already. Raises PeerLost."""
        for work, what, then in self._works:
            self._collectives._wait(work, what)
            if then is not None:
                then()
        self._works = ()


def _reported_all_reduce(state: Collectives, bucket: Any) -> torch.futures.Future[Tensor]:
    """DDP's own averaging as a communication hook, for a torch whose process groups have no hooks of their
    own.
    """
    tensor = bucket.buffer().div_(state.world)
    work = state.all_reduce(tensor, "gradients")
    future: torch.futures.Future[Any] = work.get_future()
    return future.then(lambda done: done.value()[0])
