"""The files that a document names, like traces: who reads them, and which were read.

Parsing stays pure: `netlab.profile.load_profile` brings a function that reads, `parse_profile` calls it by the names it
finds, and what was read is kept with the profile, so that a run can record everything it depended on.
"""

from __future__ import annotations

from collections.abc import Callable

from netlab.document import Node
from netlab.errors import DocumentError
from netlab.fields import Problems, read_text
from netlab.units import quote


def no_files(name: str) -> str:
    """The reader of a text that has no folder. Raises DocumentError."""
    raise DocumentError(f"{quote(name)}: a file can be named in a profile only, and in one that is a file itself")


class Attached:
    """The files named so far, each read once."""

    def __init__(self, read: Callable[[str], str]) -> None:
        """`read` gives the text of a file by the name in the document, or raises DocumentError."""
        self._read = read
        self._texts: dict[str, str] = {}

    def text(self, node: Node, problems: Problems) -> tuple[str, str] | None:
        """(name, text) of the file that a scalar names; a fault when there is no such file."""
        name = read_text(node, problems)
        if name is None:
            return None
        try:
            if name not in self._texts:
                self._texts[name] = self._read(name)
        except DocumentError as error:
            problems.add(node.place, str(error))
            return None
        return name, self._texts[name]

    def all(self) -> tuple[tuple[str, str], ...]:
        """(name, text) of every file read, in the order in which they were named."""
        return tuple(self._texts.items())
