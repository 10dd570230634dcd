"""Hierarchical averaging: every step inside a site, every K steps across sites.

    every step:      gradients averaged over the site's workers in the backward pass (DDP on the site's group)
    every K steps:   x <- sum over sites of (workers of the site / all workers) x_site

Workers of a site therefore hold equal parameters at all times, and across the WAN travels one copy per site, not
one per worker: the first worker of each site sums with its peers, then hands every chunk to its own site while
later chunks are still on their way. With one site this is DDP, with one worker per site Local SGD, and with K = 1 and
plain SGD the synchronous average. Sites are those of the emulated network (NETLAB_SITE in each worker's
environment). Floating-point buffers differ within a site between boundaries (each worker's own batches) and are
averaged over all workers at a boundary.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cpdp.errors import StrategyError
from cpdp.recorder import RECONCILE
from cpdp.schedule import Every, Position
from cpdp.strategies.averaging import mean_of, reconcile
from cpdp.strategies.base import Attachment
from cpdp.strategies.ddp import BUCKETS
from cpdp.strategies.rounds import RoundStrategy, Schedule
from cpdp.strategies.slowmo import whole_run
from cpdp.strategies.statistics import STATISTICS
from cpdp.wire import SITE

if TYPE_CHECKING:
    from torch import nn

    from cpdp.collectives import Collectives

SITE_VARIABLE = "NETLAB_SITE"


class Hierarchical(RoundStrategy):
    """DDP within each site, periodic averaging between sites."""

    name = "hierarchical"
    summary = "gradients averaged in every step within a site, parameters every K steps across sites"
    source = "Lin, Stich, Patel, Jaggi, arXiv 1808.07217 (hierarchical local SGD); one copy per site on the WAN is ours"
    parameters = (*whole_run(4), *BUCKETS, STATISTICS)

    def _schedule_for(self, to: Attachment) -> Schedule:
        return Every(self.values["period"], epoch_end=self.values["epoch_end"])

    def attach(self, to: Attachment) -> nn.Module:
        """Find the sites, make a group for each and one of their first workers, and wrap the module for its site."""
        module = super().attach(to)
        own, ranks = _sites(to.collectives)
        made = [to.collectives.part(members, SITE) for members in ranks.values()]
        self._leaders = to.collectives.part([members[0] for members in ranks.values()])
        site = made[list(ranks).index(own)]
        assert site is not None, "a worker is a member of its own site"
        self._site: Collectives = site
        return site.data_parallel(
            module,
            bucket_mb=self.values["bucket_mb"],
            find_unused=self.values["find_unused"],
            forward_buffers=False,
        )

    def reduces_gradients(self, at: Position) -> bool:
        """In every step, where the site has several workers."""
        return self._site.world > 1

    def _rule(self, which: int, at: Position) -> Callable[[slice], None]:
        return mean_of(self._parameters[which], self._collectives.world)

    def synchronise(self, at: Position) -> None:
        """Buffers over all workers; parameters between the sites' first workers, and from them to their sites."""
        if self._collectives.world == 1:
            return
        reconcile(self._collectives, self._statistics.shares())
        if self._site.world == self._collectives.world:
            return  # one site: equal gradients have kept the parameters equal
        self._collectives.recorder.switch(RECONCILE)
        for buffer in self._parameters:
            buffer.check()
        for which, chunk in self._arriving():
            self._site.broadcast([self._parameters[which].data[chunk]], "parameters")
        self._collectives.recorder.switch(None)

    def _arriving(self) -> Iterator[tuple[int, slice]]:
        """Every chunk in order; on a site's first worker each holds the mean of all sites when it is yielded."""
        if self._leaders is None:
            for which, buffer in enumerate(self._parameters):
                yield from ((which, chunk) for chunk in self._collectives.chunks(buffer.data))
            return
        for buffer in self._parameters:
            buffer.data.mul_(self._site.world)
        for which, chunk in self._leaders.sum_in_chunks([(buffer.data, "parameters") for buffer in self._parameters]):
            self._parameters[which].data[chunk].div_(self._collectives.world)
            yield which, chunk


def _sites(collectives: Collectives) -> tuple[str, dict[str, list[int]]]:
    """This worker's site and the ranks of every site, in order of their first ranks."""
    own = os.environ.get(SITE_VARIABLE, "")
    names = collectives.names(own)
    if "" in names and collectives.world > 1:
        raise StrategyError(
            f"hierarchical: rank {names.index('')} does not know its site: {SITE_VARIABLE} is not set; "
            "run it in a lab, or set it to the site's name on every worker"
        )
    ranks: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        ranks.setdefault(name, []).append(rank)
    return own, ranks
