"""What the verbs of ``netlab`` share: exit codes, how to speak, how to start a lab from options."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netlab.packets import log_path

if TYPE_CHECKING:
    from netlab.lab import Lab

EXIT_DONE, EXIT_FAILED, EXIT_USER, EXIT_INVALID = 0, 1, 2, 3


def say(text: str) -> None:
    """Tell people, on standard error, a line each."""
    for line in text.splitlines() or [""]:
        print(f"netlab: {line}" if not line[:1].isspace() else line, file=sys.stderr)


def print_json(value: Any) -> None:
    """For scripts, on standard output."""
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    print()


def start(options: argparse.Namespace, *shared: str, name: str | None = None) -> Lab:
    """The lab that the options ask for; containers may write to the folders ``shared`` too."""
    from netlab.lab import Lab

    folders = (*getattr(options, "writable", ()), getattr(options, "out", None), *shared)
    log = getattr(options, "packet_log", None)
    recorded = {} if log is None else {"packet_log": log_path(log), "packet_log_limit": options.packet_log_limit}
    return Lab.start(
        options.profile,
        carrier=options.carrier,
        hosts=options.hosts,
        name=name,
        writable=[Path(folder) for folder in folders if folder],
        **recorded,
    )
