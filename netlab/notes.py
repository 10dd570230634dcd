"""What a program that runs on every worker may tell `netlab run`: where its own record lies, and that it is not valid.

`netlab run` gives all workers of one job the same NETLAB_RUN, an id under which they can meet in one folder, and
NETLAB_NOTES, a folder in which each may leave NAME.json: {"record": FOLDER, "invalid": [REASON, ...]}. The network's
record is then stored in FOLDER too, and a reason makes `netlab run` end with status 3. netlab does not know what such a
program measures, only that it may find out that its traffic never crossed the network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from netlab import registry


@dataclass(frozen=True)
class Notes:
    """What the workers said, in the order of their names."""

    records: tuple[Path, ...] = ()
    invalid: tuple[str, ...] = ()


@contextmanager
def folder() -> Iterator[str]:
    """A folder for notes that every worker can write to, whatever user its container gives it.

    It lies among the user's labs, or, in the netlab service of a compose file, where the workers see the results. Its
    name says whose it is, so that the next one removes what a killed command has left.
    """
    shared = Path("runs").absolute()
    base = shared if os.environ.get("NETLAB_CONTROL") and shared.is_dir() else registry.home()
    _prune(base)
    owner = f".notes-{os.getpid()}-{registry.start_ticks(os.getpid())}-"
    with tempfile.TemporaryDirectory(prefix=owner, dir=base, ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o1777)
        yield path


def _prune(base: Path) -> None:
    for path in sorted(base.iterdir()):
        found = re.fullmatch(r"\.notes-(\d+)-(\d+)-\w+", path.name)
        if found is not None and registry.start_ticks(int(found[1])) != int(found[2]):
            shutil.rmtree(path, ignore_errors=True)


def run_id() -> str:
    """An id that sorts by time and that no other job has."""
    return f"{time.strftime('%Y-%m-%dT%H-%M-%S')}-{uuid.uuid4().hex[:4]}"


def read(folder: Path) -> Notes:
    """Everything that was left; a file that is not what it should be is left out."""
    records: dict[Path, None] = {}
    invalid: dict[str, None] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            records[Path(said["record"])] = None
            invalid |= dict.fromkeys(map(str, said["invalid"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return Notes(tuple(path for path in records if path.is_dir()), tuple(invalid))
