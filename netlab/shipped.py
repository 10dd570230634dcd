"""Finding and reading the documents a user names: a path, or the name of one that ships with the project.

Before the flow starts: `load_profile` and cpdp's experiments come here for their text, so that all the rest is
pure. Networks and experiments live in the top-level `profiles/` folder of a checkout; a wheel carries the
same files as data under share/netlab-cpdp/profiles of the environment it is installed in.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Literal

from netlab.document import MAX_CHARACTERS, Place
from netlab.errors import DocumentError
from netlab.fields import did_you_mean
from netlab.units import quote

Kind = Literal["networks", "experiments"]
_INSTALLED = Path("share", "netlab-cpdp", "profiles")
_MAX_BYTES = 4 * MAX_CHARACTERS  # UTF-8 takes at most four bytes a character
MAX_ATTACHED_BYTES = 8 * 2**20  # of a trace: a week of one row a second


def shipped_folder() -> Path | None:
    """The folder with `networks/` and `experiments/`; None when an installation has lost it."""
    above = Path(__file__).resolve().parent.parent
    if (above / "pyproject.toml").is_file():
        return above / "profiles"
    bases = [sysconfig.get_path("data"), sysconfig.get_path("data", sysconfig.get_preferred_scheme("user"))]
    # and `above` itself: pip install --target puts share/ beside the packages
    folders = [Path(base) / _INSTALLED for base in (str(above), *map(str, bases))]
    return next((folder for folder in folders if folder.is_dir()), None)


def shipped_documents(kind: Kind) -> dict[str, Path]:
    """Name -> file of the shipped documents, sorted by name."""
    folder = shipped_folder()
    return {path.stem: path for path in sorted((folder / kind).glob("*.yaml"))} if folder else {}


def find_document(kind: Kind, path_or_name: str | Path) -> tuple[str, str]:
    """(path for messages, text) of a document.

    A Path, a text with a slash or one ending in .yaml or .yml is a path; any other text is the name of a
    shipped document or else a path. Raises DocumentError when there is no such document or its bytes are no text.
    """
    text, shipped = str(path_or_name), shipped_documents(kind)
    is_path = isinstance(path_or_name, Path) or "/" in text or text.endswith((".yaml", ".yml"))
    if not is_path and text in shipped:
        return str(shipped[text]), _read(shipped[text], "")
    hint = did_you_mean(Path(text).stem, shipped)
    if is_path or _is_file(text):
        return text, _read(Path(text), hint)
    known = ", ".join(shipped) or "none found"
    raise DocumentError(f"{quote(text)} is neither a file nor a shipped name (shipped {kind}: {known}){hint}")


def read_beside(document: str, name: str) -> str:
    """The text of a file that a document names, by its path from the document's folder. Raises DocumentError."""
    return _read(Path(document).parent / name, "", MAX_ATTACHED_BYTES)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, a NUL in it
        return False


def _read(path: Path, hint: str, most: int = _MAX_BYTES) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DocumentError(f"{str(path)!r} cannot be read: {reason}{hint}") from None
    if len(data) > most:
        raise DocumentError(Place(str(path), 1).problem(f"longer than {most // 4} characters"))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = Place(str(path), data.count(b"\n", 0, error.start) + 1)
        raise DocumentError(place.problem(f"byte 0x{data[error.start]:02x} is not UTF-8 text")) from None
