"""The commands that only read: `cpdp show`, `cpdp report`, `cpdp strategies`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cpdp import rundir

DONE = 0


def show(run: Path | None, *, as_json: bool) -> int:
    """Print a run's tables, or the JSON of the command contract."""
    from cpdp import analysis, jsonfile, screen
    from cpdp.profiler import compared
    from cpdp.profiler.kind import is_profile

    folder = rundir.find(run)
    if is_profile(folder):
        from cpdp.profiler import show as profiled

        return profiled.show(folder, as_json=as_json)
    found = analysis.open_run(folder)
    if as_json:
        print(jsonfile.dumps(analysis.to_json(found)))
        return DONE
    console = screen.console()
    console.print(f"{found.run.name}  {found.run.path}", style="bold", highlight=False, soft_wrap=True)
    if found.run.network is not None:
        console.print(screen.network_table(found.run.network, console.width))
    console.print(screen.summary_view(found, console.width))
    for line in compared.sentences(analysis.to_json(found)["cells"]):
        console.print(line, highlight=False, markup=False)
    return DONE


def report(runs: Sequence[Path], out: Path | None) -> int:
    """Write the report of one or several runs and say where it is."""
    from cpdp import analysis
    from cpdp import report as writer
    from cpdp.profiler.kind import is_profile

    folders = [rundir.find(run) for run in runs] or [rundir.find(None)]
    path = out or folders[0].report
    if any(is_profile(folder) for folder in folders):
        from cpdp.profiler import page

        page.report(folders, path)
        print(path)
        return DONE
    writer.write([analysis.open_run(folder) for folder in folders], path)
    print(path)
    return DONE


def strategies(*, as_json: bool) -> int:
    """List every strategy with its parameters, defaults and source."""
    from cpdp import jsonfile
    from cpdp.strategies import catalogue

    found = catalogue()
    if as_json:
        print(jsonfile.dumps(found))
        return DONE
    for entry in found:
        print(f"{entry['name']}: {entry['summary']}")
        for parameter in entry["parameters"]:
            names = ", ".join([parameter["name"], *parameter["aliases"]])
            print(f"    {names} = {parameter['default']}: {parameter['meaning']} ({parameter['allowed']})")
        print(f"    source: {entry['source']}")
    return DONE
