"""What can go wrong in a training job, as exceptions that only the command line turns into exit codes.

Every class carries `exit_code` with the meaning of the design's contract: 1 the job failed, 2 a user's
mistake.
"""

from __future__ import annotations


class CpdpError(Exception):
    """The job failed; the text says what was attempted and with which value."""

    exit_code = 1


class StrategyError(CpdpError):
    """A strategy, or one of its parameters, that does not exist or is out of range."""

    exit_code = 2


class WorkloadError(CpdpError):
    """A workload, timeline or data set that does not exist or cannot be used as asked."""

    exit_code = 2


class CellError(CpdpError):
    """A cell file that cannot be understood: names the file and the key."""

    exit_code = 2


class UsageError(CpdpError):
    """A training loop that uses the wrapper in a way no strategy can honour."""

    exit_code = 2


class EventError(CpdpError):
    """An event file whose contents are not what a rank writes: names the file and the line."""


class PeerLost(CpdpError):
    """A collective did not finish because a peer died or stayed away longer than the stated timeout."""


class ExperimentError(CpdpError):
    """An experiment that cannot be run as written: names the file, line and key, or the flag."""

    exit_code = 2


class RunFolderError(CpdpError):
    """A run folder that does not exist, is not one, or cannot be written: names the path."""

    exit_code = 2


class NetworkNotAsAsked(CpdpError):
    """The network measured before the first cell is not the one of the profile: carries the measured values."""

    exit_code = 3


class ProfileError(CpdpError):
    """A profile that cannot be taken or shown as asked."""

    exit_code = 2


class InvalidRun(CpdpError):
    """A profiled run that must not be counted: its traffic did not cross the emulated network."""

    exit_code = 3
