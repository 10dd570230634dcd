"""Labs that outlive the command which made them: where their sockets are, and which of them are alive.

A lab that is up is a process; its folder only says how to reach it. A folder whose lab does not answer is what a killed
lab left (a few hundred bytes); ``claim`` reuses it, ``prune`` removes it. Nothing is ever looked for by name pattern.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from netlab.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Entry:
    """What the registry says about a lab: enough to list it and to see it end."""

    name: str
    profile: str
    carrier: str
    workers: int
    since: float
    pid: int
    start_ticks: int

    def running(self) -> bool:
        """Whether the lab's outermost process is the one that was started, and still there."""
        return start_ticks(self.pid) == self.start_ticks


def start_ticks(pid: int) -> int | None:
    """When a process started (clock ticks since boot): with the pid, a name for a process that is never used twice.

    None when it has ended, also while its parent has yet to notice.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rsplit(")", 1)[1].split()
    return None if fields[0] in "ZX" else int(fields[19])


def home() -> Path:
    """The folder of this user's labs, private to the user."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and Path(base).is_dir():
        folder = Path(base, "netlab")
    elif os.geteuid() == 0 and Path("/run").is_dir():
        folder = Path("/run/netlab")
    else:
        folder = Path(tempfile.gettempdir(), f"netlab-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.stat()
    if owner.st_uid != os.geteuid() or owner.st_mode & 0o077:
        raise UserError(f"{folder} belongs to another user or is open to others; remove it, or set XDG_RUNTIME_DIR")
    return folder


def folder_of(name: str) -> Path:
    """The folder of the lab ``name``. Raises UserError for a name that is none."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot name a lab: 1 to 63 letters, digits, '.', '_' and '-', no other first than the two"
        )
    return home() / name


def claim(name: str) -> Path:
    """Reserve a name for a new lab; returns its folder. Raises UserError when a lab of that name is up."""
    folder = folder_of(name)
    try:
        folder.mkdir(mode=0o700)
        return folder
    except FileExistsError:
        pass
    entry = read(name)
    if entry is not None and entry.running():
        raise UserError(f"a lab named {name} is up already (profile {entry.profile}); netlab down {name} ends it")
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    return folder


def write(entry: Entry) -> None:
    """Record a lab that has come up."""
    folder = folder_of(entry.name)
    aside = folder / "lab.json.part"
    aside.write_text(json.dumps(asdict(entry)))
    aside.replace(folder / "lab.json")


def read(name: str) -> Entry | None:
    """What is recorded about a lab, or None."""
    try:
        return Entry(**json.loads((folder_of(name) / "lab.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def entries() -> list[Entry]:
    """Every lab of this user that is up, by name."""
    found = [read(path.name) for path in sorted(home().iterdir()) if _NAME.fullmatch(path.name)]
    return [entry for entry in found if entry is not None and entry.running()]


def dead() -> list[str]:
    """Names of labs of which only the folder is left. One that is coming up has no record yet and is not among them."""
    names = [path.name for path in sorted(home().iterdir()) if _NAME.fullmatch(path.name)]
    found = {name: read(name) for name in names}
    return [name for name, entry in found.items() if entry is not None and not entry.running()]


def prune() -> list[str]:
    """Remove what dead labs left; returns their names."""
    names = dead()
    for name in names:
        shutil.rmtree(folder_of(name))
    return names


def listen(name: str) -> socket.socket:
    """The socket on which the lab ``name`` is to be reached."""
    listening = socket.socket(socket.AF_UNIX)
    with _short_path(folder_of(name)) as path:
        listening.bind(path)
    listening.listen()
    return listening


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A name for ``folder``/socket that fits into the 107 bytes of a socket address, however deep the folder lies."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/socket"
    finally:
        os.close(opened)


def connect(name: str) -> socket.socket:
    """A connection to the lab ``name``. Raises UserError naming those that are up."""
    channel = socket.socket(socket.AF_UNIX)
    try:
        with _short_path(folder_of(name)) as path:
            channel.connect(path)
    except OSError:
        channel.close()
        known = ", ".join(entry.name for entry in entries()) or "none"
        raise UserError(f"no lab named {name} is up; up are: {known}") from None
    return channel


def forget(name: str) -> None:
    """Remove the folder of a lab that has ended."""
    shutil.rmtree(folder_of(name), ignore_errors=True)
