"""The types of a profile: a network as asked for, validated, with every default filled in. Pure data.

`netlab.profile` makes them from YAML, `netlab.topology` lays them out. Sites and links keep the order of the
file, because ranks follow it.
"""

from __future__ import annotations

from dataclasses import dataclass

from netlab.hosts.settings import NOTHING_SAID, HostSettings
from netlab.impairment import Impairment
from netlab.timeline import Entry, Way
from netlab.units import Delay, Rate


@dataclass(frozen=True)
class Lan:
    """The network inside a site. None: nothing is added to what this machine does by itself."""

    delay: Delay | None = None  # one way between two hosts of the site
    rate: Rate | None = None  # of each host's port, each direction


@dataclass(frozen=True)
class Uplink:
    """The port through which all of a site's workers reach all of its links. The rate holds in each
    direction."""

    rate: Rate


@dataclass(frozen=True)
class Site:
    """Hosts on one LAN; its workers are named NAME-0, NAME-1 and so on."""

    name: str
    workers: int
    lan: Lan
    uplink: Uplink | None
    line: int
    hosts: HostSettings = NOTHING_SAID
    hosts_of: tuple[tuple[int, HostSettings], ...] = ()  # of single workers, by their index

    def settings(self, index: int) -> HostSettings:
        """How the host of worker ``index`` is made, as far as the site says."""
        return dict(self.hosts_of).get(index, NOTHING_SAID).over(self.hosts)


@dataclass(frozen=True)
class Link:
    """A WAN path between two sites: `forward` leads from a to b, `backward` from b to a.

    Also a worker's own access to its site: then `a` is the worker, `b` the site, and the name is WORKER.access.
    """

    name: str
    a: str
    b: str
    forward: Impairment
    backward: Impairment
    mtu: int
    line: int

    @property
    def rtt(self) -> Delay:
        """Propagation there and back, without the time it takes to send a packet's bytes."""
        return Delay(self.forward.delay.ns + self.backward.delay.ns)

    def impairment(self, way: Way) -> Impairment:
        """What happens to packets in one direction."""
        return self.forward if way == "forward" else self.backward


@dataclass(frozen=True)
class Tcp:
    """Settings of the workers' TCP. None: as the kernel has it. Buffers in bytes: (min, default, max)."""

    congestion_control: str | None = None
    slow_start_after_idle: bool | None = None
    rmem: tuple[int, int, int] | None = None
    wmem: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Profile:
    """A network, as asked for. `path` and `text` are where it was read from, for messages and for the record;
    `files` are the (name, text) of the files it names. `schedule` begins with the traces of the links."""

    name: str
    source: str
    sites: tuple[Site, ...]
    links: tuple[Link, ...]
    tcp: Tcp
    mtu: int
    path: str
    text: str
    seed: int = 0
    schedule: tuple[Entry, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    hosts: HostSettings = NOTHING_SAID
    access: tuple[Link, ...] = ()  # of workers that are not on their site's LAN

    @property
    def shaped(self) -> tuple[Link, ...]:
        """Everything that has a name, can change and is measured: links between sites, then access of workers."""
        return (*self.links, *self.access)

    def settings(self, site: str, index: int) -> HostSettings:
        """How the host of a worker is made: what is said for it, else for its site, else for all."""
        (found,) = (each for each in self.sites if each.name == site)
        return found.settings(index).over(self.hosts)
