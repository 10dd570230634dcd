"""`cpdp compare`: from the command line to a finished run folder with tables and a report.

It decides what is run (a file, flags, or a run to resume), makes or finds the run folder, lets `runner` carry
the matrix out under a view that fits the terminal, and says at the end what was found and what did not count.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from cpdp import analysis, experiment, jsonfile, live, machine, matrix, rundir, runner, screen, tables, workloads
from cpdp import report as reports
from cpdp.analysis import Analysis
from cpdp.errors import CpdpError, ExperimentError, NetworkNotAsAsked
from cpdp.experiment import Experiment
from cpdp.phase import EPOCH, SGD, Phase, parse_strategies
from cpdp.rundir import RunDir
from netlab import Lab, NetlabError, Profile, load_profile, parse_profile

DONE, FAILED, INVALID = 0, 1, 3

_TOP_FLAGS = ("carrier", "hosts", "on_bad_network", "on_failure", "on_invalid", "network")


def compare(options: argparse.Namespace, start: Callable[..., Lab] = Lab.start) -> int:
    """Run what was asked for. Returns the exit code; raises CpdpError or NetlabError for a user's mistake."""
    asked, text, profile = _asked(options)
    resolved = matrix.resolve(asked, profile, machine.versions())
    folder = _folder(options, asked, resolved, text)
    job = runner.Job(asked, profile, matrix.cells(asked), folder)
    console = screen.console()
    console.print(f"run folder: {_shown(folder)}", highlight=False, soft_wrap=True)
    try:
        with _view(console, job, plain=options.plain) as view:
            runner.run(job, view, start)
    except (CpdpError, NetlabError, KeyboardInterrupt) as error:
        _store(folder)
        if not isinstance(error, NetworkNotAsAsked):
            console.print(_interrupted(folder), highlight=False, soft_wrap=True)
        raise
    found = _store(folder)
    reports.write([found], folder.report)
    _print(console, found, folder)
    return exit_code(found)


def _asked(options: argparse.Namespace) -> tuple[Experiment, str, Profile]:
    """The experiment, the text it is stored with, and the network's profile."""
    if options.resume is not None and options.experiment is None and options.network is None:
        return _asked_by_run(rundir.find(options.resume), options)
    if options.experiment is not None:
        asked, text = experiment.load(options.experiment)
        asked = _changed(asked, options)
    else:
        asked = _changed(_from_flags(options), options)
        text = f"# made from: cpdp {shlex.join(sys.argv[1:])}\n{experiment.render(asked)}"
    return asked, text, load_profile(asked.network)


def _asked_by_run(folder: RunDir, options: argparse.Namespace) -> tuple[Experiment, str, Profile]:
    """What an earlier run was asked for, its profile included, wherever the files are now."""
    stored = jsonfile.read(folder.resolved)
    network = stored["experiment"]["network"]
    asked = _changed(experiment.from_json(matrix.unresolve(stored)), options)
    files: dict[str, str] = network.get("files", {})
    return asked, "", parse_profile(network["text"], network["path"], lambda name: files.get(name, ""))


def _from_flags(options: argparse.Namespace) -> Experiment:
    """An experiment of one phase, from --network, --workload and --strategies."""
    for flag in ("network", "workload", "strategies"):
        if getattr(options, flag) is None:
            raise ExperimentError(f"name an EXPERIMENT, or all of --network, --workload, --strategies (no --{flag})")
    workload = workloads.check({"name": options.workload})
    trained = workload["compute"] == "real"
    by_epoch = trained and options.steps is None
    phase = Phase(
        name="training" if trained else "exposure",
        kind="training" if trained else "replayed",
        workload={"name": options.workload, **workload},
        strategies=parse_strategies(options.strategies),
        optimizer=dict(SGD),
        steps=None if by_epoch else 12,
        warmup_steps=0 if trained else 4,
        steps_per_epoch=None if trained else EPOCH,
        epochs=3 if by_epoch else None,
    )
    name = f"{options.workload}-{Path(options.network).stem}"
    return Experiment(experiment.slug(name), "from the command line", options.network, (phase,))


def _changed(asked: Experiment, options: argparse.Namespace) -> Experiment:
    """The experiment with what the flags change; it is the changed one that is stored."""
    top = {key: getattr(options, key) for key in _TOP_FLAGS}
    if options.seed is not None:
        top["order_seed"] = options.seed
    given = {key: value for key, value in top.items() if value is not None}
    for flag, counted in (("steps", "steps"), ("warmup_steps", "steps"), ("epochs", "epochs")):
        if getattr(options, flag) is not None and all(getattr(phase, counted) is None for phase in asked.phases):
            name = flag.replace("_", "-")
            raise ExperimentError(f"--{name} {getattr(options, flag)} changes nothing: no phase counts {counted}")
    phases = tuple(_changed_phase(phase, options) for phase in asked.phases)
    return replace(asked, **given, phases=phases)


def _changed_phase(phase: Phase, options: argparse.Namespace) -> Phase:
    given: dict[str, Any] = {key: getattr(options, key) for key in ("repeats", "seed")}
    if phase.steps is not None:
        given |= {"steps": options.steps, "warmup_steps": options.warmup_steps}
    if phase.epochs is not None:
        given["epochs"] = options.epochs
    if options.workload is not None and options.experiment is not None:
        raise ExperimentError("--workload cannot change an experiment file's phases: edit the file")
    if options.strategies is not None:
        given["strategies"] = parse_strategies(options.strategies)
    given = {key: value for key, value in given.items() if value is not None}
    for key, lowest in (("steps", 0), ("warmup_steps", 0), ("epochs", 1), ("repeats", 1), ("seed", 0)):
        if given.get(key, lowest) < lowest:
            raise ExperimentError(
                f"--{key.replace('_', '-')} {given[key]} is not allowed: a whole number from {lowest}"
            )
    return replace(phase, **given)


def _folder(options: argparse.Namespace, asked: Experiment, resolved: dict[str, Any], text: str) -> RunDir:
    """The run folder: the one to resume, checked to be the same run, or a new one with its first files."""
    if options.resume is not None:
        folder = rundir.find(options.resume)
        matrix.check_resumable(jsonfile.read(folder.resolved), resolved, str(options.resume))
        stored = jsonfile.read(folder.machine) if folder.machine.exists() else {}
        stored["resumed"] = [*stored.get("resumed", []), {**machine.describe(), "at": _now()}]
        jsonfile.write(folder.machine, stored)
        return folder
    now = datetime.now().astimezone()
    folder = rundir.create_at(options.out) if options.out else rundir.create(rundir.DEFAULT_ROOT, asked.name, now)
    jsonfile.write_text(folder.experiment, text)
    jsonfile.write(folder.machine, {**machine.describe(), "at": _now()})
    jsonfile.write(folder.resolved, {**resolved, "command": sys.argv, "started": _now()})
    return folder


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


@contextlib.contextmanager
def _view(console: Console, job: runner.Job, *, plain: bool) -> Iterator[runner.View]:
    """A live screen on a terminal, lines elsewhere or when asked for."""
    if plain or not console.is_terminal:
        yield live.PlainView(console, job.cells)
        return
    with live.LiveView(console, job.cells) as view:
        yield view


def _store(folder: RunDir) -> Analysis:
    """Write the tables of whatever was measured."""
    found = analysis.open_run(folder)
    tables.store(found.tables, folder.tables)
    return found


def _shown(folder: RunDir) -> str:
    """A path as short as it can be typed from here."""
    here = Path.cwd()
    return str(folder.path.relative_to(here) if folder.path.is_relative_to(here) else folder.path)


def _interrupted(folder: RunDir) -> str:
    name = shlex.quote(_shown(folder))
    return (
        f"interrupted: what was measured is in {name}\n"
        f"  look at it:  cpdp show {name}\n"
        f"  go on:       cpdp compare --resume {name}"
    )


def _print(console: Console, found: Analysis, folder: RunDir) -> None:
    console.print(screen.summary_view(found, console.width))
    console.print(f"\nreport: {_shown(folder)}/report.html", highlight=False, soft_wrap=True)
    if not found.run.complete:
        console.print(f"go on:  cpdp compare --resume {_shown(folder)}", highlight=False, soft_wrap=True)


def exit_code(found: Analysis) -> int:
    """0 when every cell counts, 1 when one failed or was not run, 3 when the emulation did not keep up in
    one.
    """
    cells = found.tables.cells
    if (cells["state"] != "done").any():
        return FAILED
    return DONE if found.valid else INVALID
