"""Finding and reading the documents a user names: a path, or the name of a profile that ships with the project.

Profiles and experiments live in the top-level `profiles/` folder of a checkout. A wheel carries them as data files
under share/netlab-cpdp/profiles of the environment it is installed in.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Literal

from netlab.document import MAX_CHARACTERS, Place, did_you_mean
from netlab.errors import DocumentError

Kind = Literal["networks", "experiments"]
_INSTALLED = Path("share", "netlab-cpdp", "profiles")


def shipped_folder() -> Path | None:
    """The folder with `networks/` and `experiments/`; None when the installation has lost it."""
    above = Path(__file__).resolve().parent.parent
    schemes = [sysconfig.get_path("data"), sysconfig.get_path("data", sysconfig.get_preferred_scheme("user"))]
    candidates = [above / "profiles"] if (above / "pyproject.toml").is_file() else []
    # `above` once more: pip install --target puts share/ beside the packages
    candidates += [Path(base) / _INSTALLED for base in (*schemes, above)]
    return next((folder for folder in candidates if folder.is_dir()), None)


def shipped_names(kind: Kind) -> tuple[str, ...]:
    """Names of the shipped documents, sorted."""
    folder = shipped_folder()
    return tuple(sorted(path.stem for path in (folder / kind).glob("*.yaml"))) if folder else ()


def find_document(kind: Kind, path_or_name: str) -> tuple[str, str]:
    """(path for messages, text) of a document. Anything with a slash or ending in .yaml or .yml is a path.

    Raises DocumentError when there is no such document or its bytes are no text.
    """
    names = shipped_names(kind)
    is_path = "/" in path_or_name or path_or_name.endswith((".yaml", ".yml"))
    folder = shipped_folder()
    if not is_path and path_or_name in names and folder is not None:
        path = folder / kind / f"{path_or_name}.yaml"
        return str(path), read_document(path)
    path = Path(path_or_name)
    if is_path or path.is_file():
        return path_or_name, read_document(path, hint=did_you_mean(path.stem, names))
    known = ", ".join(names) or "none"
    raise DocumentError(
        f"{path_or_name!r} is neither a file nor a shipped name (shipped: {known}){did_you_mean(path_or_name, names)}"
    )


def read_document(path: Path, hint: str = "") -> str:
    """The text of a UTF-8 file of reasonable size. Raises DocumentError."""
    try:
        with path.open("rb") as file:
            data = file.read(4 * MAX_CHARACTERS + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise DocumentError(f"{path}: cannot be read: {reason}{hint}") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise DocumentError(Place(str(path), line).problem(f"byte 0x{byte:02x} is not UTF-8 text")) from None
