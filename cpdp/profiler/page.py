"""Profiled runs -> report.html: what `cpdp show` prints, the steps over time, and the numbers themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpdp import figure, jsonfile
from cpdp.errors import ProfileError
from cpdp.figure import Drawing
from cpdp.page import definitions, page, table, text
from cpdp.page import figure as framed
from cpdp.palette import COMPUTATION
from cpdp.profiler import analysis
from cpdp.profiler.analysis import World
from cpdp.profiler.kind import is_profile
from cpdp.profiler.show import PHASE_COLUMNS, sentences
from cpdp.profiler.split import PARTS
from cpdp.rundir import RunDir
from cpdp.screen import number

COLOURS = {"queue": "#7a5195", "peer": "#ef5675", "latency": "#ffa600", "bytes": "#2f7ed8", "traffic": "#8c6d31",
           "protocol": "#00876c", "copy": "#9aa5b1"}  # fmt: skip

MOST_RANKS = 4
"""Ranks that get a figure of their own; the tables have all."""


def report(folders: Sequence[RunDir], path: Path) -> None:
    """Write one report. Raises ProfileError for a mixture of profiled and compared runs."""
    other = [folder.path for folder in folders if not is_profile(folder)]
    if other:
        raise ProfileError(f"{other[0]} is not a profiled run: a report is about runs of one kind")
    body: list[str] = []
    data = []
    for which, folder in enumerate(folders, start=1):
        found = analysis.open_run(folder)
        analysis.store(found)
        told = analysis.to_json(found)
        data.append(told)
        body += _run(told, found.worlds, f"r{which}")
        body.append(definitions("Machine", {key: _plain(value) for key, value in found.machine.items()}))
        body.append(definitions("Versions", found.resolved.get("versions", {})))
    title = " and ".join(dict.fromkeys(str(told["name"]) for told in data))
    jsonfile.write_text(path, page(f"{title}: where the time of a step went", body, {"runs": data}))


def _plain(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _run(told: Mapping[str, Any], worlds: Sequence[World], prefix: str) -> Iterator[str]:
    yield f"<h1>{text(told['name'])}</h1><p class='soft'>{text(told['run'])}</p>"
    verdict = "valid" if told["valid"] else "not valid: " + "; ".join(told["reasons"])
    yield f"<p class='verdict {'good' if told['valid'] else 'bad'}'>{text(verdict)}</p>"
    for cell, world in zip(told["cells"], worlds, strict=True):
        yield f"<h2>{text(cell['id'])}: {cell['steps']} steps, {cell['ranks']} of {cell['world']} ranks</h2>"
        yield "<ul>" + "".join(f"<li>{text(line)}</li>" for line in sentences(cell)) + "</ul>"
        yield _table(
            "Milliseconds per step", cell, ("step", "computation", "exposed", "hidden", "rest", *PHASE_COLUMNS)
        )
        yield _causes(cell)
        for log in world.logs[:MOST_RANKS]:
            drawing = steps_figure(world, log.rank, f"{prefix}-{cell['id']}-{log.rank}")
            yield framed(drawing, f"Every step of rank {log.rank} on {log.place}, stacked.")


def _table(caption: str, cell: Mapping[str, Any], names: tuple[str, ...]) -> str:
    rows = [
        [text(f"rank {row['rank']} on {row['place']}"), *(number(row[f"{name}_ms"], 1) for name in names)]
        for row in cell["per_rank"]
    ]
    return table(caption, ["rank", *names], rows)


def _causes(cell: Mapping[str, Any]) -> str:
    rows = [
        [text(f"rank {row['rank']} on {row['place']}"), *(number(row["exposed_by_cause"][part], 1) for part in PARTS)]
        for row in cell["per_rank"]
    ]
    return table("Exposed milliseconds per step, by cause", ["rank", *PARTS], rows)


@figure.styled
def steps_figure(world: World, rank: int, name: str) -> Drawing | None:
    """One rank's steps as stacked areas; None without steps."""
    mine = world.steps[world.steps["rank"] == rank]
    if not len(mine):
        return None
    fig, axes = figure.make(7.0, 2.4)
    layers = {"computation": mine["computation_ms"], **{part: mine[f"exposed_{part}_ms"] for part in PARTS}}
    colours = [COMPUTATION, *(COLOURS[part] for part in PARTS)]
    axes.stackplot(mine["n"], *layers.values(), labels=list(layers), colors=colours)
    axes.set_xlabel("step")
    axes.set_ylabel("milliseconds")
    axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=4, fontsize=8)
    means = "; ".join(f"{part} {number(float(values.mean()), 1)} ms" for part, values in layers.items())
    return figure.finish(fig, name, f"Where rank {rank}'s steps went", f"Stacked areas over steps; means: {means}.")
