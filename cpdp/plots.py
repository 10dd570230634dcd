"""The report's figures, each from a summary or a table: numbers in, `figure.Drawing` out. They compute no
figures.

A strategy has the same colour and marker everywhere (`palette`). Computation is grey, exposed time is drawn
in the strategy's colour, hidden communication in the same colour but hatched and beside the bar, since it is
not part of the step's sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cpdp import figure
from cpdp.figure import INK, Drawing
from cpdp.palette import COMPUTATION, REST, Look
from cpdp.summary import Line
from cpdp.timeline import Strip

WIDTH = 7.0


@figure.styled
def exposure_bars(lines: Sequence[Line], looks: Mapping[str, Look], name: str) -> Drawing | None:
    """Where a step's time went, per strategy: computation, exposed, rest; hidden communication beneath."""
    shown = [line for line in lines if line.values["step_ms"]]
    if not shown:
        return None
    fig, axes = figure.make(WIDTH, 1.1 + 0.62 * len(shown))
    for row, line in enumerate(shown):
        _step_bar(axes, row, line, looks[line.label].colour)
    _names(axes, [line.label for line in shown])
    axes.set_xlabel("milliseconds per step")
    axes.legend(
        handles=[
            Patch(facecolor=COMPUTATION, label="computation"),
            Patch(facecolor="none", edgecolor=INK, label="exposed (in the strategy's colour)"),
            Patch(facecolor=REST, label="rest"),
            Patch(facecolor="none", edgecolor=INK, hatch="////", label="hidden, beneath computation"),
        ],
        loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2, fontsize=9,
    )  # fmt: skip
    parts = "; ".join(
        f"{line.label}: step {_ms(line, 'step_ms')}, computation {_ms(line, 'computation_ms')}, exposed"
        f" {_ms(line, 'exposed_ms')}, hidden {_ms(line, 'hidden_ms')}"
        for line in shown
    )
    return figure.finish(fig, name, "Where the time of a step goes", f"Stacked bars. {parts}.")


def _ms(line: Line, name: str) -> str:
    value = line.mean(name)
    return "unknown" if value is None else f"{value:.0f} ms"


def _step_bar(axes: Axes, row: int, line: Line, colour: str) -> None:
    computation, exposed, rest, hidden = (
        line.mean(f"{part}_ms") or 0.0 for part in ("computation", "exposed", "rest", "hidden")
    )
    axes.barh(row, computation, height=0.5, color=COMPUTATION)
    axes.barh(row, exposed, left=computation, height=0.5, color=colour)
    axes.barh(row, rest, left=computation + exposed, height=0.5, color=REST)
    axes.barh(row + 0.34, hidden, height=0.14, facecolor="none", edgecolor=colour, hatch="/////", linewidth=0.8)
    axes.annotate(
        f"{exposed:.0f} ms exposed", (computation + exposed + rest, row), xytext=(4, 0),
        textcoords="offset points", va="center", fontsize=9,
    )  # fmt: skip
    axes.margins(x=0.18)


def _names(axes: Axes, labels: Sequence[str]) -> None:
    """Strategies down the side, the first on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)


@figure.styled
def against_published(lines: Sequence[Line], looks: Mapping[str, Look], name: str) -> Drawing | None:
    """Exposed seconds per epoch: measured, with its smallest and largest repeat, and as published."""
    shown = [line for line in lines if line.published and line.epoch_s]
    if not shown:
        return None
    fig, axes = figure.make(WIDTH, 1.2 + 0.45 * len(shown))
    words = []
    for row, line in enumerate(shown):
        ours, theirs = line.epoch_s, line.published
        assert ours is not None
        assert theirs is not None
        look = looks[line.label]
        axes.plot([ours.low, ours.high], [row, row], color=look.colour, linewidth=3, solid_capstyle="butt")
        axes.plot(ours.mean, row, marker=look.marker, color=look.colour, markersize=9, linestyle="none")
        axes.plot(
            theirs.exposed_s, row, marker="d", markersize=9, markerfacecolor="none", markeredgecolor=INK,
            linestyle="none",
        )  # fmt: skip
        words.append(f"{line.label}: {ours.mean:.1f} s measured, {theirs.exposed_s:.1f} s published")
    _names(axes, [line.label for line in shown])
    axes.margins(y=0.15)
    axes.set_xlabel("exposed seconds per epoch  (filled: measured, open diamond: published)")
    return figure.finish(fig, name, "Exposed time, measured and published", ". ".join(words) + ".")


@figure.styled
def timeline(strips: Sequence[Strip], looks: Mapping[str, Look], name: str) -> Drawing | None:
    """The same number of steps of every strategy, as rank 0 spent them."""
    if not strips:
        return None
    fig, axes = figure.make(WIDTH, 1.3 + 0.6 * len(strips))
    for row, strip in enumerate(strips):
        _strip(axes, row, strip, looks[strip.label].colour)
    _names(axes, [strip.label for strip in strips])
    axes.set_xlabel(f"milliseconds, {strips[0].steps} steps of rank 0")
    axes.legend(
        handles=[
            Patch(facecolor=COMPUTATION, label="computation"),
            Patch(facecolor="none", edgecolor=INK, label="exposed (in the strategy's colour)"),
            Patch(facecolor="none", edgecolor=INK, hatch="/////", label="a collective on its way"),
        ],
        loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=3, fontsize=9,
    )  # fmt: skip
    words = ". ".join(f"{strip.label}: {strip.steps} steps take {strip.length_ms:.0f} ms" for strip in strips)
    return figure.finish(fig, name, "Timeline of the last period", f"{words}.")


def _strip(axes: Axes, row: int, strip: Strip, colour: str) -> None:
    axes.broken_barh(list(strip.computation), (row - 0.28, 0.4), facecolors=COMPUTATION)
    axes.broken_barh(list(strip.exposed), (row - 0.28, 0.4), facecolors=colour)
    axes.broken_barh(
        list(strip.moving), (row + 0.16, 0.14), facecolors="none", edgecolors=colour, hatch="/////", linewidth=0.8
    )
    for edge in strip.edges:
        axes.plot([edge, edge], [row - 0.36, row + 0.34], color=INK, linewidth=0.8)


@figure.styled
def accuracy(evals: pd.DataFrame, looks: Mapping[str, Look], target: float, name: str) -> Drawing | None:
    """Test accuracy against time spent in steps; one line per repeat, the strategy's colour and marker."""
    drawn = _over_time(evals.assign(value=evals["accuracy"] * 100), looks, target * 100, "{:.1f}%")
    if drawn is None:
        return None
    fig, axes, words = drawn
    axes.set_ylabel("test accuracy, percent")
    axes.legend(loc="lower right", fontsize=9)
    return figure.finish(fig, name, "Accuracy against wall time", words)


@figure.styled
def training_loss(evals: pd.DataFrame, looks: Mapping[str, Look], target: float, name: str) -> Drawing | None:
    """Training loss against time spent in steps; one line per repeat, the strategy's colour and marker."""
    drawn = _over_time(evals.assign(value=evals["train_loss"]), looks, target, "{:.3g}")
    if drawn is None:
        return None
    fig, axes, words = drawn
    axes.set_yscale("log")
    axes.set_ylabel("training loss")
    axes.legend(loc="upper right", fontsize=9)
    return figure.finish(fig, name, "Training loss against wall time", words)


def _over_time(
    evals: pd.DataFrame, looks: Mapping[str, Look], target: float, form: str
) -> tuple[Figure, Axes, str] | None:
    """The column `value` over time, a dashed line at the target, and in words where each strategy ends; None where no
    value is known.
    """
    known = evals[evals["value"].notna()]
    if known.empty:
        return None
    fig, axes = figure.make(WIDTH, 3.6)
    words = []
    for label, look in looks.items():
        cells = [cell for _, cell in known[known["label"] == label].groupby("cell", sort=False)]
        for number, cell in enumerate(cells):
            axes.plot(
                cell["train_s"], cell["value"], color=look.colour, marker=look.marker, markersize=5, linewidth=1.6,
                label=label if number == 0 else None,
            )  # fmt: skip
        if cells:
            last = cells[0].iloc[-1]
            words.append(f"{label} ends at {form.format(last['value'])} after {last['train_s']:.1f} s")
    axes.axhline(target, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds in training steps (evaluations not counted)")
    return fig, axes, ". ".join(words) + "."


@figure.styled
def network(rows: Sequence[Mapping[str, Any]], name: str) -> Drawing | None:
    """Achieved against asked, as a share of what was asked, with the accepted range behind it."""
    shown = [row for row in rows if _number(row["asked"]) and _number(row["achieved"]) is not None]
    if not shown:
        return None
    fig, axes = figure.make(WIDTH, 1.0 + 0.45 * len(shown))
    words = []
    for index, row in enumerate(shown):
        asked, got, low, high = (float(row[key]) for key in ("asked", "achieved", "low", "high"))
        scale = 100 / asked
        axes.barh(index, (high - low) * scale, left=low * scale, height=0.5, color=COMPUTATION, alpha=0.5)
        axes.plot(got * scale, index, marker="o", color="#0072B2" if row["ok"] else "#D55E00", markersize=8)
        axes.annotate(
            f"{got:g} {row.get('unit', '')}", (got * scale, index), xytext=(0, 9), textcoords="offset points",
            ha="center", fontsize=9,
        )  # fmt: skip
        words.append(f"{_quantity(row)}: asked {asked:g}, achieved {got:g} {row.get('unit', '')}")
    axes.axvline(100, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(shown)), [_quantity(row) for row in shown])
    axes.invert_yaxis()
    axes.margins(y=0.25)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("percent of what was asked  (band: accepted)")
    return figure.finish(fig, name, "The network that was achieved", ". ".join(words) + ".")


def _quantity(row: Mapping[str, Any]) -> str:
    return f"{row['quantity']} {row['direction']}"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
