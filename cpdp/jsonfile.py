"""JSON as every reader accepts it: no NaN or Infinity token, files replaced in one rename.

Used by `rundir` for what a run stores, by the report for its embedded data and by `cpdp show --json`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpdp.errors import RunFolderError


def plain(value: Any) -> Any:
    """The same tree with lists for tuples, text keys, plain numbers for numpy's, and null for what is not
    finite.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    return _number(value)


def _number(value: Any) -> Any:
    """A float, numpy scalar or pandas missing value as JSON can hold it."""
    if hasattr(value, "item"):  # numpy scalars; their Python value is one of the cases of `plain`
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value != value:  # pandas.NaT and relatives
        return None
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r}")


def dumps(value: Any, *, indent: int | None = 2) -> str:
    """JSON text of a tree, after `plain`."""
    return json.dumps(plain(value), allow_nan=False, ensure_ascii=False, indent=indent)


def write(path: Path, value: Any) -> None:
    """Replace `path` by the JSON of `value` in one rename, so that a reader never sees half a file.

    Raises RunFolderError when the disk is full or the folder cannot be written.
    """
    write_text(path, dumps(value) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one rename. Raises RunFolderError like `write`."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from error


def read(path: Path) -> Any:
    """The tree that a file holds. Raises RunFolderError naming the file when it is absent or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise RunFolderError(f"{path} is not JSON: {error}") from error


def parse(line: bytes, path: Path) -> Any:
    """The tree of one line of a JSON-lines file. Raises RunFolderError naming the file."""
    try:
        return json.loads(line)
    except ValueError as error:
        raise RunFolderError(f"{path} holds a line that is not JSON: {error}") from error
