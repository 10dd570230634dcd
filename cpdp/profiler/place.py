"""Where a rank's event file goes: one cell per world of ranks, so that two worlds of one never share a file.

Ranks that met each other agree on a token through the store they met at: each proposes one, the first wins. Nobody
waits for anybody, so a group of which only some ranks are profiled works too.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

KEY = "cpdp_profile_world"
CELL = "profile"


def token(store: Any) -> str:
    """The name on which all ranks of this world agree."""
    mine = uuid.uuid4().hex[:12]
    if store is None:
        return mine
    try:
        found = store.compare_set(KEY, "", mine)
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        # A store that cannot do this, such as a fake one: who was started together belongs together.
        return os.environ.get("CPDP_PROFILE_LAUNCH", mine)
    return found.decode() if isinstance(found, bytes) else str(found)


def claim(folder: Path, world: str, rank: int) -> Path:
    """The path of a rank's event file in the cell of its world. Raises OSError."""
    cells = folder / "cells"
    cells.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        cell = cells / (CELL if number == 1 else f"{CELL}-{number}")
        if _belongs(cell, world):
            return cell / f"rank-{rank}.events.jsonl"
    raise OSError(f"{cells} holds 999 worlds already")


def _belongs(cell: Path, world: str) -> bool:
    """Whether the cell is this world's; makes it when it does not exist."""
    if not cell.exists():
        aside = cell.with_name(f".{cell.name}.{os.getpid()}.{uuid.uuid4().hex[:6]}")
        aside.mkdir()
        (aside / "world.json").write_text(json.dumps({"world": world}) + "\n", encoding="utf-8")
        try:
            aside.rename(cell)
            return True
        except OSError:  # another rank was first
            (aside / "world.json").unlink()
            aside.rmdir()
    found = json.loads((cell / "world.json").read_text(encoding="utf-8"))
    return bool(found["world"] == world)
