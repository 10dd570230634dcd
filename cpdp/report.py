"""One or several runs -> report.html, self-contained: the tables, the figures, the reasons, the data itself.

Last in the flow: analysis -> here -> a file. It draws and words; every number comes from `analysis`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpdp import analysis, jsonfile, palette, plots, race_view, timeline
from cpdp.analysis import Analysis
from cpdp.page import definitions, figure, fold, page, table, text
from cpdp.palette import Look
from cpdp.screen import length, number, plain, repeats, share
from cpdp.summary import Line, Spread, Summary, Training


def write(runs: Sequence[Analysis], path: Path) -> None:
    """Write the report of these runs. Raises RunFolderError when the file cannot be written."""
    jsonfile.write_text(path, render(runs))


def render(runs: Sequence[Analysis]) -> str:
    """The report's HTML."""
    title = " and ".join(dict.fromkeys(run.run.name for run in runs))
    body = list(_together(runs)) if len(runs) > 1 else []
    for number_, run in enumerate(runs, start=1):
        body += _run(run, f"r{number_}")
    return page(f"{title}: exposed synchronisation", body, {"runs": [analysis.to_json(run) for run in runs]})


def _together(runs: Sequence[Analysis]) -> Iterator[str]:
    """Several runs beside each other: exposed time of every strategy in each."""
    yield f"<h1>{len(runs)} runs beside each other</h1>"
    rows: dict[tuple[str, str], list[str]] = {}
    for index, run in enumerate(runs):
        for line in run.summary.lines():
            cells = rows.setdefault((line.phase, line.label), ["–"] * len(runs))
            cells[index] = _spread(line.values["exposed_ms"])
    heads = ["strategy", "phase", *(text(run.run.path.name) for run in runs)]
    body = [[text(label), text(phase), *cells] for (phase, label), cells in rows.items()]
    yield table("Exposed milliseconds per step, mean (smallest-largest repeat)", heads, body, left=2)


def _run(found: Analysis, prefix: str) -> Iterator[str]:
    labels = [line.label for line in found.summary.lines()]
    looks = palette.looks(labels)
    yield from _head(found)
    for number_, (phase, lines) in enumerate(found.summary.phases.items(), start=1):
        yield from _phase(found, phase, lines, looks, f"{prefix}p{number_}")
    yield from _sentences("Take care", found.cautions)
    yield from _sentences("Differences explained", found.differences)
    yield from _network(found.run.network, f"{prefix}-network")
    yield from _cells(found)
    yield from _provenance(found)


def _head(found: Analysis) -> Iterator[str]:
    run, experiment = found.run, found.run.resolved["experiment"]
    counted = sum(1 for cell in found.cells if cell["valid"])
    kind = "good" if found.valid else "bad"
    verdict = "every cell counts" if found.valid else "not every cell counts, see the cells below"
    carrier = f", carried by {run.network['carrier']}" if run.network else ""
    yield f"<h1>{text(run.name)}</h1>"
    yield (
        f'<p class="soft">{text(run.path.name)} on the network {text(experiment["network"]["name"])}{text(carrier)}.'
        f" {text(experiment.get('source') or '')}</p>"
    )
    yield f'<p class="verdict {kind}">{counted} of {len(found.cells)} cells valid: {verdict}.</p>'
    answers = list(_answers(found))
    if answers:
        yield '<div class="answer">' + "".join(f"<p>{text(answer)}</p>" for answer in answers) + "</div>"


def _answers(found: Analysis) -> Iterator[str]:
    """The run in a sentence per phase: who stands still least, who reaches the target first."""
    for phase, lines in found.summary.phases.items():
        yield from race_view.race_sentences(phase, found.races.get(phase, ()))
        if phase in found.trainings:
            yield from _first_there(phase, found.trainings[phase])
            continue
        known = {line.label: line.share_of_ddp.mean for line in lines if line.counted and line.share_of_ddp}
        others = {label: share for label, share in known.items() if label != "ddp"}
        if others:
            named = ", ".join(f"{label} {share:.0%}" for label, share in sorted(others.items(), key=lambda x: x[1]))
            yield f"{phase}: exposed synchronisation as a share of DDP's: {named}."


def _first_there(phase: str, trainings: Sequence[Training]) -> Iterator[str]:
    """Times to the target accuracy, the fastest first."""
    times = {one.label: one.to_target_s.mean for one in trainings if one.to_target_s}
    if times:
        named = ", ".join(f"{label} {time:.1f} s" for label, time in sorted(times.items(), key=lambda x: x[1]))
        yield f"{phase}: time in training steps to {trainings[0].target:.0%} test accuracy: {named}."


def _phase(found: Analysis, phase: str, lines: Sequence[Line], looks: Mapping[str, Look], prefix: str) -> Iterator[str]:
    spec = next(one for one in found.run.resolved["experiment"]["phases"] if one["name"] == phase)
    yield f"<h2>{text(phase)}</h2><p class='soft'>{text(_setting(spec))}</p>"
    yield _strategies(lines, looks, found.summary, phase)
    if found.trainings.get(phase):
        yield _trainings(found.trainings[phase], looks)
        evals = found.tables.eval[found.tables.eval["phase"] == phase]
        drawing = plots.accuracy(evals, looks, found.trainings[phase][0].target, f"{prefix}-accuracy")
        yield figure(drawing, "Test accuracy of the averaged model. Dashed: the target.")
    yield from _race(found, phase, looks, prefix)
    yield figure(
        plots.exposure_bars(lines, looks, f"{prefix}-bars"),
        "Mean over valid cells. Computation, exposed time and rest add up to the step; hidden communication ran"
        " beneath the computation and is not part of the sum.",
    )
    yield figure(
        plots.against_published(lines, looks, f"{prefix}-published"),
        "Bar: smallest to largest repeat. The published figures are seconds per epoch of"
        f" {found.summary.steps_per_epoch[phase]} steps.",
    )
    strips = timeline.strips(found.run, phase, [line.label for line in lines])
    yield figure(
        plots.timeline(strips, looks, f"{prefix}-timeline"),
        "As many steps as the longest period, ending with a synchronisation. Thin lines: where steps end.",
    )


def _race(found: Analysis, phase: str, looks: Mapping[str, Look], prefix: str) -> Iterator[str]:
    racers, runtimes = found.races.get(phase, ()), found.runtimes.get(phase, ())
    if racers:
        yield table(race_view.race_caption(racers), race_view.RACE, _texts(race_view.race_rows(racers)))
        evals = found.tables.eval[found.tables.eval["phase"] == phase]
        drawing = plots.training_loss(evals, looks, racers[0].target, f"{prefix}-loss")
        yield figure(drawing, "Loss of the averaged model on all training data. Dashed: the loss of the table.")
    if runtimes:
        yield table(race_view.model_caption(runtimes), race_view.MODEL, _texts(race_view.model_rows(runtimes)))


def _texts(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[text(cell) for cell in row] for row in rows]


def _setting(spec: Mapping[str, Any]) -> str:
    work = ", ".join(f"{key} {value}" for key, value in spec["workload"].items() if key != "name")
    warm = f" after {spec['warmup_steps']} warm-up steps" if spec.get("warmup_steps") else ""
    return f"{spec['workload']['name']} ({work}); {length(spec)}{warm}; {repeats(spec)}."


def _strategies(lines: Sequence[Line], looks: Mapping[str, Look], summed: Summary, phase: str) -> str:
    paper = summed.published.get(phase)
    heads = ["strategy", "step", "computation", "hidden", "exposed", "rest", "MB per step", "of DDP's exposed"]
    caption = (
        f"{phase}: milliseconds per step, mean over valid cells (smallest-largest repeat); MB over the busiest WAN"
        " direction."
    )
    if paper:
        heads += ["exposed s/epoch", "published s/epoch", "published of DDP's"]
        caption += f" An epoch is {paper.steps_per_epoch} steps. Published: {paper.source}."
    rows = [_strategy_row(line, looks[line.label], published=paper is not None) for line in lines]
    return table(caption, [*heads, "valid cells"], rows)


def _strategy_row(line: Line, look: Look, *, published: bool) -> list[str]:
    wire = line.mean("wire_bytes_per_step")
    row = [
        f'<span class="swatch" style="background:{look.colour}"></span>{text(line.label)}',
        *(_spread(line.values[f"{part}_ms"]) for part in ("step", "computation", "hidden", "exposed")),
        _spread(line.values["rest_ms"], 1),
        number(None if wire is None else wire / 1e6, 1),
        share(line.share_of_ddp.mean if line.share_of_ddp else None),
    ]
    if published:
        row.append(_spread(line.epoch_s, 1))
        row += [number(line.published.exposed_s if line.published else None, 1), share(line.published_share)]
    return [*row, f"{line.valid}/{line.cells}"]


def _spread(value: Spread | None, digits: int = 0) -> str:
    if value is None:
        return "–"
    mean, low, high = (f"{one:.{digits}f}" for one in (value.mean, value.low, value.high))
    return mean if low == high else f'{mean}<br><span class="range">{low}-{high}</span>'


def _trainings(trainings: Sequence[Training], looks: Mapping[str, Look]) -> str:
    target = trainings[0].target
    heads = ["strategy", "final accuracy %", "best accuracy %", f"s to {target:.0%}", "reached", "s in steps"]
    rows = []
    for one in trainings:
        swatch = f'<span class="swatch" style="background:{looks[one.label].colour}"></span>{text(one.label)}'
        final, best = (_spread(value.scaled(100), 1) if value else "–" for value in (one.final, one.best))
        times = _spread(one.to_target_s, 1), f"{one.reached}/{one.repeats}", _spread(one.total_s, 1)
        rows.append([swatch, final, best, *times])
    return table("Test accuracy against time spent in steps", heads, rows)


def _sentences(head: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"<h2>{head}</h2><ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>"


def _network(network: Mapping[str, Any] | None, name: str) -> Iterator[str]:
    if network is None:
        yield "<h2>Network</h2><p>Nothing was verified: the run ended before.</p>"
        return
    rows = network.get("links", [])
    heads = ["link", "direction", "quantity", "asked", "achieved", "accepted", "verdict"]
    body = [
        [
            text(row["link"]), text(row["direction"]), text(f"{row['quantity']} {row.get('unit') or ''}"),
            text(plain(row["asked"])), text(plain(row["achieved"])),
            text(f"{plain(row['low'])} to {plain(row['high'])}"),
            f'<span class="{"good" if row["ok"] else "bad"}">{"ok" if row["ok"] else "not ok"}</span>',
        ]
        for row in rows
    ]  # fmt: skip
    yield "<h2>Network</h2>"
    yield table("Measured with real traffic before the first cell", heads, body, left=3)
    yield figure(plots.network(rows, name), "The dot is what was achieved.")
    choices = (network.get("lab") or {}).get("choices", [])
    if choices:
        yield "<ul>" + "".join(f"<li>{text(choice)}</li>" for choice in choices) + "</ul>"


def _cells(found: Analysis) -> Iterator[str]:
    heads = ["cell", "state", "why not counted", "phase", "repeat", "steps", "step ms", "exposed ms", "hidden ms",
             "rest ms", "MB per step", "dropped packets", "relay late by µs (p99)"]  # fmt: skip
    rows = []
    for cell in found.cells:
        wire = cell["wire_bytes_per_step"]
        state = "valid" if cell["valid"] else cell["state"] if cell["state"] != "done" else "not valid"
        rows.append([
            text(cell["cell"]), f'<span class="{"good" if cell["valid"] else "bad"}">{text(state)}</span>',
            text(cell["reasons"] or ""), text(cell["phase"]), text(cell["repeat"]), text(cell["steps"]),
            *(number(cell[f"{part}_ms"]) for part in ("step", "exposed", "hidden")), number(cell["rest_ms"], 1),
            number(None if wire is None else wire / 1e6, 1), number(cell["queue_drops"]),
            number(cell["lateness_p99_us"]),
        ])  # fmt: skip
    yield "<h2>Cells</h2>"
    yield table("Every cell of the matrix, in the order in which it ran", heads, rows, left=4)


def _provenance(found: Analysis) -> Iterator[str]:
    resolved = found.run.resolved
    yield "<h2>How it was measured</h2>"
    yield definitions("Machine", {key: _value(value) for key, value in found.run.machine.items()})
    yield definitions("Versions", resolved.get("versions", {}))
    yield fold("The resolved experiment", f"<pre>{text(jsonfile.dumps(_without_text(resolved['experiment'])))}</pre>")
    yield fold("The network profile", f"<pre>{text(resolved['experiment']['network'].get('text', ''))}</pre>")


def _without_text(experiment: Mapping[str, Any]) -> dict[str, Any]:
    network = {key: value for key, value in experiment["network"].items() if key != "text"}
    return {**experiment, "network": network}


def _value(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
