"""The verbs of ``netlab`` about containers: clean, compose."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from netlab.errors import UserError


def clean(options: argparse.Namespace, _command: list[str]) -> int:
    """``netlab clean [--dry-run]``: remove what dead owners left, and say so."""
    from netlab import registry
    from netlab.hosts import clean as cleaning

    engine = cleaning.open_engine()
    found = cleaning.survey(engine) if engine is not None else []
    verb = "would remove" if options.dry_run else "removed"
    dead = [left for left in found if left.verdict == "dead"]
    if engine is not None and not options.dry_run:
        dead = cleaning.clean(engine, found)
    for left in dead:
        print(f"{verb} {left.describe()}")
    for left in found:
        if left.verdict != "dead":
            print(f"left alone {left.describe()}", file=sys.stderr)
    for name in registry.dead() if options.dry_run else registry.prune():
        print(f"{verb} the record of lab {name}, which has ended")
    return 0


def compose(options: argparse.Namespace, command: list[str]) -> int:
    """``netlab compose PROFILE [--output FILE] [-- CMD]``: print or write a compose file."""
    from netlab import plan, topology
    from netlab.compose import PROFILE, Render, render
    from netlab.profile import load_profile
    from netlab.shipped import shipped_documents, shipped_folder

    profile = load_profile(options.profile)
    shipped = shipped_documents("networks").get(options.profile)
    folder = options.output.parent.absolute() if options.output else Path.cwd()
    name = options.profile if shipped else PROFILE
    profiles = shipped_folder()
    root = profiles.parent if profiles is not None and (profiles.parent / "docker" / "Dockerfile").exists() else None
    text = render(
        Render(
            plan=plan.make(topology.build(profile), "relay", "docker"),  # the file says nothing about carriers
            command=tuple(command) or ("netlab", "verify", name, "--hosts", "docker"),
            said=shlex.join(["netlab", "compose", options.profile, *(["--", *command] if command else [])]),
            profile_file=None if shipped else os.path.relpath(profile.path, folder),
            root=None if root is None else os.path.relpath(root, folder),
        )
    )
    if options.output is None:
        print(text, end="")
        return 0
    try:
        options.output.write_text(text)
    except OSError as error:
        raise UserError(f"--output {options.output}: {error.strerror}") from error
    return 0
