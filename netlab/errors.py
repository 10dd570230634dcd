"""What can go wrong, sorted by whose turn it is to act.

Every error that a user can cause, or that says a result must not be trusted, is one of these. They are
raised anywhere in the flow and turned into an exit code in one place only, the command line (`netlab.cli`,
`cpdp.cli`). Anything else that reaches the command line is a bug of ours and may show its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence


class NetlabError(Exception):
    """Base of all errors with a readable message. `exit_code` is what a command ends with."""

    exit_code = 1


class UserError(NetlabError):
    """The request cannot be carried out as written: the user has to change it."""

    exit_code = 2


class UnitError(UserError, ValueError):
    """A text that should be a quantity is none, or lies outside the allowed range."""


class DocumentError(UserError):
    """A file has faults. `problems` holds one line per fault: "FILE:LINE: key: what, and what is allowed"."""

    def __init__(self, problems: Sequence[str] | str) -> None:
        """Keep the list, so that a caller can count or filter; `str()` joins it, one fault a line."""
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class ProfileError(DocumentError):
    """A network profile has faults, or there is no such profile."""


class PlanError(UserError):
    """The profile is well formed, but no plan can be made for it on this machine or with these options."""


class InvalidEmulation(NetlabError):
    """The network that was achieved is not the one asked for: results must not be used."""

    exit_code = 3
