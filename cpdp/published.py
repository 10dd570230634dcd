"""Figures that a paper printed, to stand beside what a run measured. Pure data and look-ups.

The tables, the report and the live view ask here with the run's network and workload; a run for which no
paper published anything gets None and its tables have no "published" columns.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedRow:
    """One strategy as printed. `exposed_s` is exposed synchronisation in seconds per epoch."""

    strategy: str
    period: int
    exposed_s: float
    syncs_per_epoch: int
    sync_s: float
    total_s: float
    accuracy: float
    """Peak test accuracy, a share of one."""

    @property
    def key(self) -> tuple[str, int]:
        """What a measured strategy is matched by: its name and its period."""
        return (self.strategy, self.period)


@dataclass(frozen=True)
class Published:
    """All figures of one published experiment, with where they stand and what they were measured on."""

    network: str
    workload: str
    source: str
    setting: str
    steps_per_epoch: int
    epochs: int
    warmup_epochs: int
    """Epochs at the start in which every strategy synchronised at every step."""
    computation_s: float
    """Computation in seconds per epoch: the middle of the printed range."""
    rows: tuple[PublishedRow, ...]

    def find(self, strategy: str, period: int) -> PublishedRow | None:
        """The printed row of a strategy with that period, or None."""
        return next((row for row in self.rows if row.key == (strategy, period)), None)

    def share_of_ddp(self, row: PublishedRow) -> float | None:
        """A row's exposed time as a share of the printed DDP's; None when no DDP was printed."""
        ddp = self.find("ddp", 1)
        return row.exposed_s / ddp.exposed_s if ddp else None

    def predicted_total_s(self, row: PublishedRow) -> float:
        """Total that the printed computation and exposed time add up to, warm-up epochs at DDP's cost."""
        ddp = self.find("ddp", 1)
        warm = ddp.exposed_s if ddp else row.exposed_s
        later = self.epochs - self.warmup_epochs
        return self.epochs * self.computation_s + self.warmup_epochs * warm + later * row.exposed_s


CPDP_WAN = Published(
    network="grid5000-nancy-sophia",
    workload="resnet50-cifar100",
    source="Ettifouri, Zbakh, Tadonki: CPDP, arXiv 2607.21224v1, 23 July 2026, Tables 5 and 8",
    setting="ResNet-50 on CIFAR-100, 4 + 4 RTX 2080 Ti in two nodes, Nancy - Sophia, NCCL over TCP",
    steps_per_epoch=48,
    epochs=100,
    warmup_epochs=5,
    computation_s=8.9,
    rows=(
        PublishedRow("ddp", 1, 40.0, 48, 0.83, 4959.0, 0.7384),
        PublishedRow("localsgd", 2, 39.9, 24, 1.66, 6922.0, 0.7412),
        PublishedRow("localsgd", 4, 20.5, 12, 1.71, 4170.0, 0.7451),
        PublishedRow("cpdp", 2, 40.0, 24, 1.66, 7203.0, 0.7612),
        PublishedRow("cpdp", 4, 20.5, 12, 1.70, 4275.0, 0.7628),
    ),
)

ALL = (CPDP_WAN,)


def published_for(network: str, workload: str) -> Published | None:
    """What was published for this network and workload, or None."""
    return next((one for one in ALL if (one.network, one.workload) == (network, workload)), None)
