"""``image: host``: a container over this machine's own file system, read-only, made without building an image.

The engine gets an image of a few empty folders and links, and every folder of ``/`` bound into it read-only. What is
the machine's own stays out: /proc, /sys and /dev are the container's, /tmp, /var/tmp and /run are empty, the engine's
own files are covered. A Unix socket can be connected to through a read-only mount, so every socket that a program of
the machine listens on, the engine's among them, is covered as well.
"""

from __future__ import annotations

import grp
import hashlib
import io
import os
import pwd
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from netlab.hosts.engine import EngineError

OWN = ("proc", "sys", "dev", "run", "tmp", "lost+found")
"""Folders of / that are each container's own."""

EMPTY = {"/tmp": "mode=1777,exec", "/var/tmp": "mode=1777,exec", "/run": "mode=755"}
"""Fresh file systems in memory; programs are compiled into /tmp and run there."""

_ENGINE_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
_NOT_FILES = (
    *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs"),
    *("fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "squashfs"),
    *("sysfs", "tracefs"),
)
_LISTENING = 0x10000


@dataclass(frozen=True)
class Bind:
    """A path of this machine that is seen in the container; ``whole`` with what is mounted below it."""

    source: str
    target: str
    read_only: bool = True
    whole: bool = False


@dataclass(frozen=True)
class Machine:
    """What a container over this machine consists of."""

    links: tuple[tuple[str, str], ...]  # name in /, where it leads
    binds: tuple[Bind, ...]
    covered: tuple[str, ...]  # folders that are shown empty
    gpus: tuple[str, ...] = ()  # device files of NVIDIA's driver

    def gpu_devices(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """Device files that give a container these GPUs; the driver's libraries are among the machine's files.

        Raises EngineError for GPUs that are not there.
        """
        if not wanted:
            return ()
        numbered = {path.removeprefix("/dev/nvidia"): path for path in self.gpus if path[-1].isdigit()}
        shared = [path for path in self.gpus if path not in numbered.values()]
        indices = sorted((index for index in numbered if index.isdecimal()), key=int)
        chosen = list(wanted)
        if wanted[0] == "all" and indices:
            chosen = indices
        elif wanted[0].startswith("#"):
            chosen = indices[: int(wanted[0][1:])] if int(wanted[0][1:]) <= len(indices) else list(wanted)
        if any(index not in indices for index in chosen):
            here = ", ".join(indices) or "none: no /dev/nvidia0, so no driver"
            raise EngineError(f"gpus: {', '.join(wanted)}: with image host GPUs go by index, and here are: {here}")
        return tuple(numbered[index] for index in chosen) + tuple(shared)

    def image(self) -> bytes:
        """The image's only layer, as a tar: the same machine gives the same bytes."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, target in self.links:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                tar.addfile(entry)
            for name in ("proc", "sys", "dev", "run", "tmp"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
        return buffer.getvalue()


def look(needed: Sequence[str], engine_root: str) -> Machine:
    """What this machine has now. ``needed`` paths are seen even where they lie in a folder that is not shown.

    Raises EngineError where a container could not start.
    """
    for path in _ENGINE_FILES:
        if not os.path.lexists(path):
            raise EngineError(
                f"image host: {path} does not exist here, and the engine has to cover it; make an empty one"
            )
    top = sorted(entry for entry in Path("/").iterdir() if entry.name not in OWN)
    links = tuple((entry.name, str(entry.readlink())) for entry in top if entry.is_symlink())
    shown = [str(entry) for entry in top if entry.is_dir() and not entry.is_symlink()]
    extra = [path for path in _outermost(needed) if _is_below(path, [*EMPTY]) or not _is_below(path, shown)]
    visible = [path for path in [*shown, *extra] if _exists(path)]
    covered = tuple(path for path in (engine_root, "/var/lib/containerd") if _is_below(path, visible) and _exists(path))
    binds = [Bind(path, path) for path in visible]

    def seen(path: str) -> bool:
        reached = _is_below(path, extra) or (_is_below(path, shown) and not _is_below(path, [*EMPTY]))
        return reached and not _is_below(path, covered) and path not in visible and _exists(path)

    binds += [Bind(path, path) for path in mounted(Path("/proc/self/mountinfo").read_text()) if seen(path)]
    binds += [Bind("/dev/null", path) for path in listening(Path("/proc/net/unix").read_text()) if seen(path)]
    gpus = sorted(str(path) for path in (*Path("/dev").glob("nvidia*"), *Path("/dev").glob("nvidia-caps/*")))
    return Machine(links, tuple(binds), covered, tuple(path for path in gpus if not Path(path).is_dir()))


def user_ids(user: str) -> str:
    """A user (and group) of this machine as numbers: the engine would look for the names in the empty image.

    Raises EngineError for names that nobody has.
    """
    name, colon, group = user.partition(":")
    try:
        uid = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
        if not colon:
            return f"{uid}:{pwd.getpwuid(uid).pw_gid}"
        return f"{uid}:{int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid}"
    except KeyError as error:
        raise EngineError(
            f"user {user}: this machine has no such user or group, and image host has its users"
        ) from error


def digest(layer: bytes) -> str:
    """A tag for the image of a layer: another layer has another one."""
    return hashlib.sha256(layer).hexdigest()[:16]


def mounted(mountinfo: str) -> Iterator[str]:
    """Mount points of file systems that hold files, from the text of /proc/self/mountinfo."""
    for line in mountinfo.splitlines():
        place, kind = line.split()[4], line.split(" - ", 1)[1].split()[0]
        if kind not in _NOT_FILES and not kind.startswith("fuse") and place != "/":
            yield re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place)  # a blank is written \040


def listening(unix: str) -> list[str]:
    """Paths of the sockets that somebody listens on, from the text of /proc/net/unix."""
    found: dict[str, None] = {}
    for line in unix.splitlines()[1:]:
        columns = line.split(None, 7)
        if len(columns) == 8 and columns[7].startswith("/") and int(columns[3], 16) & _LISTENING:
            found[columns[7]] = None
    return list(found)


def _exists(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116 - of any text, also what is no path of ours
    except (OSError, ValueError):
        return False
    return True


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or PurePosixPath(path).is_relative_to(folder) for folder in folders)


def _outermost(paths: Sequence[str]) -> list[str]:
    """Without those that lie in another."""
    kept: list[str] = []
    for path in sorted({str(Path(path)) for path in paths}):
        if not _is_below(path, kept):
            kept.append(path)
    return kept
