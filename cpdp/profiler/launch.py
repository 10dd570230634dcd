"""`cpdp profile -- CMD ...`: runs the command with the profiler on its path, watches the network, judges the run.

Several launchers may share one run: in a lab every worker has one, and NETLAB_RUN names the run they belong to. The
first makes the folder; each adds launches/NAME.json and network/NAME.jsonl. In a lab each launcher also proves that its
ranks' collectives crossed its interface: a world that met itself on loopback makes the run not valid, said loudly.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cpdp import jsonfile, machine, rundir
from cpdp.errors import InvalidRun, ProfileError
from cpdp.profiler import proof
from cpdp.profiler.monitor import Monitor
from cpdp.rundir import RunDir

SITE = Path(__file__).resolve().parent / "site"
DONE, FAILED, INVALID = 0, 1, 3
FLIGHT = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
FLIGHT_FILE = "TORCH_FR_DUMP_TEMP_FILE"
"""NCCL's flight recorder leaves its last operations in flight/ when a run hangs; what the user has set stays."""


def profile(command: Sequence[str], out: Path | None) -> int:
    """Run a command under the profiler; returns the exit status of the command contract."""
    if not command:
        raise ProfileError("profile: no command; write it behind --: cpdp profile -- python train.py")
    run = _folder(command, out)
    name = os.environ.get("NETLAB_WORKER") or "local"
    name = _unused(run, name)
    for folder in ("launches", "network"):
        (run.path / folder).mkdir(exist_ok=True)
    started, clock = datetime.now(UTC), time.monotonic()
    record: dict[str, Any] = {
        "name": name,
        "worker": os.environ.get("NETLAB_WORKER"),
        "command": list(command),
        "started": started.isoformat(timespec="seconds"),
        "paths": proof.environment_paths(os.environ),
    }
    jsonfile.write(run.path / "launches" / f"{name}.json", record)
    with Monitor(run.path / "network" / f"{name}.jsonl") as monitor:
        status = _run(command, _environment(run, name))
    record |= {"status": status, "wall_s": round(time.monotonic() - clock, 3), "moved": monitor.moved()}
    verdict = proof.judge(run, name, monitor.moved(), os.environ)
    record |= {"invalid": list(verdict.reasons), "notes": list(verdict.notes), "least_bytes": verdict.least_bytes}
    jsonfile.write(run.path / "launches" / f"{name}.json", record)
    _tell_lab(run, name, verdict.reasons)
    return _end(run, command, status, verdict)


def _end(run: RunDir, command: Sequence[str], status: int, verdict: proof.Verdict) -> int:
    """What is said at the end, and the exit status."""
    for note in verdict.notes:
        _say(note)
    if verdict.reasons:
        raise InvalidRun("\n".join(("THIS RUN IS NOT VALID:", *(f"  {reason}" for reason in verdict.reasons))))
    if status != 0:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        _say(f"{shlex.join(command)} {how}; what was recorded up to then: cpdp show {_near(run.path)}")
        return FAILED
    if "NETLAB_WORKER" not in os.environ:
        from cpdp.profiler import show

        show.show(run, as_json=False)
    _say(f"recorded in {_near(run.path)}; cpdp show, cpdp report and cpdp export read it")
    return DONE


def _near(path: Path) -> Path:
    """The path as the user would write it from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _say(text: str) -> None:
    print(f"cpdp: {text}", file=sys.stderr, flush=True)


def _folder(command: Sequence[str], out: Path | None) -> RunDir:
    """The run's folder: new, or the one that another launcher of the same lab job has made."""
    shared = os.environ.get("NETLAB_RUN")
    if shared is None:
        run = rundir.create_at(out) if out is not None else rundir.create(rundir.DEFAULT_ROOT, _name(command), _now())
        _describe(run, command)
        return run
    path = out if out is not None else rundir.DEFAULT_ROOT / f"{shared}-{_name(command)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError:
        return RunDir(path.resolve())
    except OSError as error:
        raise ProfileError(f"cannot make the run folder {path}: {error.strerror or error}") from error
    run = RunDir(path.resolve())
    _describe(run, command)
    if out is None:
        rundir.point_latest_at(run.path)
    return run


def _now() -> datetime:
    return datetime.now()


def _name(command: Sequence[str]) -> str:
    """What the run is called: the script, else the program."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    stem = "".join(char if char.isalnum() or char in "-_" else "-" for char in Path(script).stem)
    return f"profile-{stem}"[:60]


def _describe(run: RunDir, command: Sequence[str]) -> None:
    """resolved.json and machine.json, as every run has them."""
    jsonfile.write(run.machine, machine.describe())
    lab = {key: value for key, value in os.environ.items() if key.startswith("NETLAB_") and key != "NETLAB_PATHS"}
    jsonfile.write(
        run.resolved,
        {
            "format": 1,
            "kind": "profile",
            "experiment": {
                "name": _name(command),
                "kind": "profile",
                "command": list(command),
                "phases": [],
                "lab": lab,
            },
            "cells": [],
            "versions": machine.versions(),
            "command": list(command),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )


def _unused(run: RunDir, name: str) -> str:
    """A launch's name; several launchers of one worker get different ones."""
    launches = run.path / "launches"
    return name if not (launches / f"{name}.json").exists() else f"{name}-{uuid.uuid4().hex[:4]}"


def _environment(run: RunDir, name: str) -> dict[str, str]:
    """Ours first on PYTHONPATH, so that every Python process below starts with our sitecustomize."""
    environment = dict(os.environ)
    behind = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environment["PYTHONPATH"] = os.pathsep.join([str(SITE), *behind])
    folder = run.path / "flight"
    folder.mkdir(exist_ok=True)
    flight = FLIGHT | {FLIGHT_FILE: str(folder / f"{name}-rank-")}
    return flight | environment | {"CPDP_PROFILE": str(run.path), "CPDP_PROFILE_LAUNCH": name}


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run and wait; signals that are meant for the command reach it. Negative: ended by that signal."""
    try:
        process = subprocess.Popen(list(command), env=dict(environment))
    except OSError as error:
        raise ProfileError(f"cannot start {command[0]}: {error.strerror or error}") from error
    with _forwarded(process):
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # Ctrl-C reached the command too: its end is awaited, then told
                continue


@contextmanager
def _forwarded(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """SIGTERM and SIGHUP go on to the command."""
    before = {
        number: signal.signal(number, lambda got, _frame: process.send_signal(got))
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_lab(run: RunDir, name: str, reasons: Sequence[str]) -> None:
    """Leave word for `netlab run`: where the network's record belongs, and why the run is not valid."""
    folder = os.environ.get("NETLAB_NOTES")
    if folder and Path(folder).is_dir():
        jsonfile.write(Path(folder) / f"{name}.json", {"record": str(run.path), "invalid": list(reasons)})
