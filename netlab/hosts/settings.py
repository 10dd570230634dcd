"""What a profile says about the hosts of its workers: the key ``hosts`` at the top, of a site and of one worker. Pure.

It describes containers; a profile that uses it cannot be run on bare processes, which would be another experiment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any

from netlab.document import Items, Node, Scalar, Table, describe
from netlab.fields import Fields, Problems, read_fields, read_text
from netlab.units import Size, quote

MACHINE = "host"
"""The image that is none: a container over this machine's own file system, read-only."""

KEYS = ("image", "cpus", "cpuset", "memory", "shm_size", "gpus", "volumes", "environment", "user", "workdir")
_HINTS = {
    "cpu": "write cpus (how many) or cpuset (which)",
    "mem_limit": "write memory",
    "env": "write environment",
    "working_dir": "write workdir",
    "privileged": "containers of a lab need no privilege",
    "network": "netlab gives each container its network",
    "ports": "nothing leads out of a lab, and nothing into it",
    "build": "build the image first (docker build) and name it in image",
}
MIN_MEMORY = 6 << 20  # what the engine itself asks for at least
MAX_CPUS = 4096
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"


@dataclass(frozen=True)
class Volume:
    """A folder or file of this machine that a container sees at ``target``."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True)
class HostSettings:
    """How a worker's container is made. None or empty: not said. ``gpus``: ids, or ("all",), or a count as ("#2",)."""

    image: str | None = None
    cpus: float | None = None
    cpuset: str | None = None
    memory: Size | None = None
    shm_size: Size | None = None
    gpus: tuple[str, ...] | None = None
    volumes: tuple[Volume, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    user: str | None = None
    workdir: str | None = None

    def over(self, wider: HostSettings) -> HostSettings:
        """These settings where they say something, else the ``wider`` ones; volumes and variables add up."""
        merged: dict[str, Any] = {
            each.name: value if (value := getattr(self, each.name)) is not None else getattr(wider, each.name)
            for each in fields(HostSettings)
        }
        volumes = {volume.target: volume for volume in (*wider.volumes, *self.volumes)}
        merged["volumes"] = tuple(volumes.values())
        merged["environment"] = tuple({**dict(wider.environment), **dict(self.environment)}.items())
        return HostSettings(**merged)

    @property
    def image_name(self) -> str:
        """The image, the machine's own file system unless another is named."""
        return self.image or MACHINE

    @property
    def on_machine(self) -> bool:
        """Whether programs see this machine's own file system, at the same paths."""
        return self.image_name == MACHINE

    def said(self) -> tuple[str, ...]:
        """The keys that say something."""
        return tuple(each.name for each in fields(self) if getattr(self, each.name) not in (None, ()))

    def options(self) -> tuple[str, ...]:
        """The settings in the words of ``docker run``."""
        words: list[str] = []
        for key, flag in (("cpus", "--cpus"), ("cpuset", "--cpuset-cpus"), ("user", "--user"), ("workdir", "-w")):
            if getattr(self, key) is not None:
                words += [flag, f"{getattr(self, key)}"]
        for size, flag in ((self.memory, "--memory"), (self.shm_size, "--shm-size")):
            words += [flag, f"{size.bytes}b"] if size else []
        words += ["--gpus", gpu_option(self.gpus)] if self.gpus else []
        for volume in self.volumes:
            words += ["-v", f"{volume.source}:{volume.target}{':ro' if volume.read_only else ''}"]
        for name, value in self.environment:
            words += ["-e", f"{name}={value}"]
        return tuple(words)


NOTHING_SAID = HostSettings()


def gpu_option(gpus: Sequence[str]) -> str:
    """GPUs as ``docker run --gpus`` spells them."""
    if gpus[0] == "all" or gpus[0].startswith("#"):
        return gpus[0].removeprefix("#")
    return "device=" + ",".join(gpus)


def read_settings(parent: Fields) -> HostSettings:
    """The key ``hosts`` of the profile's top."""
    found = parent.fields("hosts", KEYS, (), _HINTS)
    return _settings(found) if found else NOTHING_SAID


def read_site_settings(site: Fields, workers: int) -> tuple[HostSettings, tuple[tuple[int, HostSettings], ...]]:
    """The key ``hosts`` of a site: for all of its workers, and (under ``workers``, by index) for single ones."""
    found = site.fields("hosts", (*KEYS, "workers"), (), _HINTS)
    if found is None:
        return NOTHING_SAID, ()
    single: list[tuple[int, HostSettings]] = []
    for key, node in (found.table("workers") or {}).items():
        if not re.fullmatch(r"0|[1-9][0-9]{0,5}", key) or int(key) >= workers:
            site.problems.add(node.place, f"{quote(key)} is no worker of this site: 0 to {workers - 1} are")
            continue
        own = read_fields(node, site.problems, KEYS, (), _HINTS)
        if own is not None:
            single.append((int(key), _settings(own)))
    return _settings(found), tuple(single)


def _settings(found: Fields) -> HostSettings:
    return HostSettings(
        image=found.string("image", pattern=r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}", allowed="the name of an image"),
        cpus=found.number("cpus", 0.01, MAX_CPUS),
        cpuset=found.string("cpuset", pattern=r"\d+(-\d+)?(,\d+(-\d+)?)*", allowed='CPU numbers, like "0-3" or "0,2"'),
        memory=_size(found, "memory", MIN_MEMORY),
        shm_size=_size(found, "shm_size", 4096),
        gpus=_gpus(found),
        volumes=_volumes(found),
        environment=_environment(found),
        user=found.string(
            "user", pattern=r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+)?", allowed="USER or USER:GROUP"
        ),
        workdir=found.string("workdir", pattern=r"/.*", allowed="an absolute path"),
    )


def _size(found: Fields, key: str, least: int) -> Size | None:
    size = found.unit(key, Size)
    if size is not None and size.bytes < least:
        found.fault(key, f"{quote(str(size))} is too small: at least {Size(least)}")
        return None
    return size


def _gpus(found: Fields) -> tuple[str, ...] | None:
    node = found.node("gpus")
    if node is None:
        return None
    if isinstance(node, Items):
        names = [read_text(item, found.problems) or "" for item in node.items]
    else:
        text = found.string("gpus", pattern=r"all|[1-9][0-9]{0,2}", allowed='"all", a number, or a list of ids')
        names = [] if text is None else [text if text == "all" else f"#{text}"]
    if isinstance(node, Items) and not (names and all(re.fullmatch(r"[A-Za-z0-9/-]+", name) for name in names)):
        found.fault("gpus", 'a list of ids as nvidia-smi -L shows them is wanted, like ["0", "1"]')
        return None
    return tuple(names) or None


def _volumes(found: Fields) -> tuple[Volume, ...]:
    volumes = []
    for node in found.items("volumes") or ():
        volume = _volume(node, found.problems)
        if volume is not None:
            volumes.append(volume)
    return tuple(volumes)


def _volume(node: Node, problems: Problems) -> Volume | None:
    text = read_text(node, problems)
    parts = text.split(":") if text is not None else []
    mode = parts[2] if len(parts) == 3 else "rw"
    if text is None:
        return None
    if len(parts) not in (2, 3) or mode not in ("ro", "rw") or not parts[1].startswith("/"):
        problems.add(node.place, f"{quote(text)} is no volume: SOURCE:TARGET or SOURCE:TARGET:ro, TARGET absolute")
        return None
    source, target = parts[0], str(PurePosixPath(parts[1]))
    if not source.startswith(("/", "./", "../")) and source != ".":
        problems.add(node.place, f"{quote(source)} is no path: absolute, or from the profile's folder with ./")
        return None
    if target == "/" or ".." in PurePosixPath(target).parts:
        problems.add(node.place, f"{quote(parts[1])} is no place for a volume: a path below / without ..")
        return None
    return Volume(source, target, mode == "ro")


def _environment(found: Fields) -> tuple[tuple[str, str], ...]:
    given: list[tuple[str, str]] = []
    for name, node in (found.table("environment") or {}).items():
        if not re.fullmatch(_NAME, name):
            found.problems.add(node.place, f"{quote(name)} is no name of a variable")
        elif isinstance(node, Table | Items):
            found.problems.add(node.place, f"{describe(node)} found where a value is wanted")
        elif isinstance(node, Scalar):
            given.append((name, node.text))
    return tuple(given)
