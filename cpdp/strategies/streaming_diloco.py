"""Streaming DiLoCo: the model in fragments, each with outer steps of its own that travel beneath the inner ones.

Fragments take turns, each every K steps, so that traffic is spread evenly. With theta_p the p-th of P fragments as its
last outer step left it, and d the delay:

    n = K (p + 1) / P + i K:   Delta_i <- theta_p - theta_ip, sent
    d steps later:             Delta <- mean(Delta_i);   m <- mu m + Delta;   theta_p <- theta_p - eta (mu m + Delta)
                               theta_ip <- a theta_ip + (1 - a) theta_p

a = 0 takes the outer step's result and drops what the d steps in between did; a = 1/2 is what the paper studies.
`exchange` shortens Delta before it is sent (`quantise`); every worker then receives all the others' bytes and adds them
up in full precision and in the same order. One fragment, no delay, a = 0 and full precision is DiLoCo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cpdp.errors import StrategyError
from cpdp.schedule import Every, Position
from cpdp.strategies.averaging import reconcile
from cpdp.strategies.base import Attachment, Parameter
from cpdp.strategies.rounds import RoundStrategy, Schedule
from cpdp.strategies.slowmo import whole_run
from cpdp.strategies.statistics import STATISTICS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cpdp.collectives import Flight


@dataclass
class _Travelling:
    """What one fragment has sent: its own update, or everybody's bytes."""

    fragment: int
    sent_at: int
    packed: Tensor
    flight: Flight | None


class StreamingDiLoCo(RoundStrategy):
    """Outer steps fragment by fragment, merged some inner steps after they were sent."""

    name = "streaming"
    aliases = ("streaming-diloco", "streaming_diloco")
    summary = "DiLoCo in fragments that travel one after the other beneath the inner steps, optionally quantised"
    source = "Douillard et al., arXiv 2501.18512 (2025)"
    parameters = (
        whole_run(100)[0],
        Parameter("fragments", int, 4, "P: parts of the model, each with its own turn", low=1, high=10_000,
                  aliases=("p",), in_label=True),
        Parameter("pattern", str, "strided", "which layers form a fragment: neighbours (sequential) or every P-th "
                  "(strided)", choices=("sequential", "strided")),
        Parameter("delay", int, 1, "d: inner steps beneath which a fragment travels; at most a period", low=0,
                  high=1_000_000),
        Parameter("alpha", float, 0.5, "a: share of the local progress that a merge keeps", low=0, high=1),
        Parameter("outer_lr", float, 0.7, "eta", low=0, high=10),
        Parameter("outer_momentum", float, 0.9, "mu", low=0, high=1, below_high=True),
        Parameter("exchange", str, "full", "what an update is sent as", choices=("full", "float16", "int8", "int4")),
        STATISTICS,
    )  # fmt: skip

    def _schedule_for(self, to: Attachment) -> Schedule:
        period, count, delay = (self.values[key] for key in ("period", "fragments", "delay"))
        if count > period:
            raise StrategyError(f"streaming: fragments={count} need steps of their own, and period={period} has fewer")
        if delay > period:
            raise StrategyError(
                f"streaming: delay={delay} is longer than period={period}, when a fragment's turn is next"
            )
        return Every(period)

    def attach(self, to: Attachment) -> nn.Module:
        """As the others; then cut the model. Raises StrategyError for fragments that it cannot have."""
        from cpdp.fragments import split  # torch: not for `cpdp strategies`

        wrapped = super().attach(to)
        values = self.values
        self._fragments = split(to.module, self._parameters, values["fragments"], values["pattern"])
        return wrapped

    def _begin(self, to: Attachment) -> None:
        self._reference = self._keep("reference", start=True)
        self._velocity = self._keep("velocity", start=False)
        self._travelling: list[_Travelling] = []

    def _rule(self, which: int, at: Position) -> Callable[[slice], None]:
        raise AssertionError("fragments have no rule for whole buffers")

    def _turn_of(self, at: Position) -> list[int]:
        """The fragments that are sent after this step."""
        period, count = self.values["period"], self.values["fragments"]
        return [p for p in range(count) if (at.n - (p + 1) * period // count) % period == 0]

    def boundary(self, at: Position) -> bool:
        """Steps after which a fragment is sent."""
        return bool(self._turn_of(at))

    def equalises(self, at: Position) -> bool:
        """Only DiLoCo itself does: one fragment, nothing late, nothing kept."""
        values = self.values
        return values["fragments"] == 1 and not values["delay"] and not values["alpha"] and self.boundary(at)

    def between(self, at: Position) -> None:
        """Merge what is due."""
        if self._travelling:
            self._merge(at)
            self._collectives.recorder.switch(None)

    def synchronise(self, at: Position) -> None:
        """Merge what is due, send the fragments whose turn it is, and with the last of them the buffers."""
        self._merge(at)
        turns = self._turn_of(at)
        for fragment in turns:
            self._send(fragment, at)
        self._merge(at)
        if self.values["fragments"] - 1 in turns:
            reconcile(self._collectives, self._statistics.shares())
        self._collectives.recorder.switch(None)

    def _send(self, which: int, at: Position) -> None:
        from cpdp.quantise import encode

        self._collectives.recorder.switch("update")
        fragment = self._fragments[which]
        for buffer in self._parameters:
            buffer.check()
        packed = fragment.gather(self._reference)
        packed -= fragment.gather([buffer.data for buffer in self._parameters])
        if self.values["exchange"] == "full":
            flight = self._collectives.launch([(packed, "parameters")])
        else:
            packed, flight = self._collectives.launch_gather(encode(packed, self.values["exchange"]), "parameters")
        self._travelling.append(_Travelling(which, at.n, packed, flight))

    def _merge(self, at: Position) -> None:
        """Take up everything that was sent `delay` steps ago or earlier."""
        while self._travelling and at.n - self._travelling[0].sent_at >= self.values["delay"]:
            arrived = self._travelling.pop(0)
            self._collectives.recorder.switch("exposed.parameters")
            self._land(arrived)
            self._collectives.recorder.switch("update")
            self._outer_step(arrived)

    def _land(self, one: _Travelling) -> None:
        if one.flight is not None:
            one.flight.land()
            one.flight = None

    def _outer_step(self, arrived: _Travelling) -> None:
        rate, momentum, keep = (self.values[key] for key in ("outer_lr", "outer_momentum", "alpha"))
        fragment = self._fragments[arrived.fragment]
        mean = self._mean(arrived)
        velocities = fragment.parts(mean, self._velocity)
        references = fragment.parts(mean, self._reference)
        locals_ = fragment.parts(mean, [buffer.data for buffer in self._parameters])
        for (delta, m), (_, ref), (_, x) in zip(velocities, references, locals_, strict=True):
            m.mul_(momentum).add_(delta)
            ref.sub_(m, alpha=rate * momentum).sub_(delta, alpha=rate)
            x.lerp_(ref, 1 - keep)

    def _mean(self, arrived: _Travelling) -> Tensor:
        from cpdp.quantise import decode

        world, form = self._collectives.world, self.values["exchange"]
        if form == "full":
            return arrived.packed.div_(world)
        numel = sum(piece.stop - piece.start for _, piece in self._fragments[arrived.fragment].pieces)
        dtype = self._parameters[0].data.dtype
        total = decode(arrived.packed[0], form, numel, dtype)
        for data in arrived.packed[1:]:
            total += decode(data, form, numel, dtype)
        return total.div_(world)

    def finish(self) -> None:
        """Wait for what is on its way."""
        for one in self._travelling:
            self._land(one)

    def state_dict(self) -> dict[str, Any]:
        """What is kept, and what is on its way, arrived."""
        self.finish()
        travelling = [[one.fragment, one.sent_at, one.packed] for one in self._travelling]
        return {**super().state_dict(), "travelling": travelling}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        super().load_state_dict(state)
        self._travelling = [
            _Travelling(int(fragment), int(sent_at), packed.clone(), None)
            for fragment, sent_at, packed in state["travelling"]
        ]
