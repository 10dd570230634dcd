"""A profiled run for other tools: a Chrome/Perfetto trace, Kineto-style traces for Holistic Trace Analysis, Parquet."""

from __future__ import annotations

from pathlib import Path

from cpdp import jsonfile, rundir
from cpdp.errors import ProfileError
from cpdp.profiler import analysis, kineto, perfetto
from cpdp.profiler.kind import is_profile

DONE = 0


def export(run: Path | None, form: str) -> int:
    """Write the exports into the run's folder and say where they are."""
    folder = rundir.find(run)
    if not is_profile(folder):
        raise ProfileError(f"{folder.path} is not a profiled run: cpdp profile makes one")
    found = analysis.open_run(folder)
    if form in ("all", "perfetto"):
        path = folder.path / "trace.json"
        jsonfile.write_text(path, jsonfile.dumps(perfetto.trace(found), indent=None))
        print(path)
    if form in ("all", "kineto"):
        target = folder.path / "kineto"
        target.mkdir(exist_ok=True)
        for world in found.worlds:
            for i, log in enumerate(world.logs):
                name = f"{world.cell}-" if len(found.worlds) > 1 else ""
                jsonfile.write_text(
                    target / f"{name}rank-{log.rank}.json", jsonfile.dumps(kineto.trace(world, i), indent=None)
                )
        print(target)
    if form in ("all", "parquet"):
        analysis.store(found)
        print(folder.tables)
    return DONE
