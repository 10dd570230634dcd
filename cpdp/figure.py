"""matplotlib figures -> SVG text that can stand inside an HTML page, in light and in dark.

Drawn without pyplot and without a display. Ink becomes `currentColor`, so the page's own text colour is the
figure's; text stays text, so it can be read aloud, searched and printed sharply. Ids are made unique per
figure, since all figures share one page.
"""

from __future__ import annotations

import functools
import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

INK = "#010203"
"""Stands for the page's text colour until the SVG is finished; no palette colour is near it."""

STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "hatch.color": INK,
}


@dataclass(frozen=True)
class Drawing:
    """A finished figure: its SVG, what it shows in one line, and in words for those who cannot see it."""

    name: str
    title: str
    description: str
    svg: str


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a drawing function work in the house's style without changing anybody else's."""

    @functools.wraps(draw)
    def inside(*arguments: P.args, **named: P.kwargs) -> R:
        with mpl.rc_context(STYLE):
            return draw(*arguments, **named)

    return inside


def make(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of this many inches with one pair of axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def finish(figure: Figure, name: str, title: str, description: str) -> Drawing:
    """Render a figure to SVG for a page."""
    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Drawing(name, title, description, _for_page(out.getvalue(), name, title, description))


def _for_page(svg: str, name: str, title: str, description: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    width = re.search(r'viewBox="0 0 ([0-9.]+) ', svg)
    svg = re.sub(r' width="[^"]*pt"', "", re.sub(r' height="[^"]*pt"', "", svg, count=1), count=1)
    points = float(width.group(1)) if width else 500.0
    head = f'<svg role="img" aria-labelledby="{name}-title {name}-desc" style="width:{points * 4 / 3:.0f}px" '
    words = f'<title id="{name}-title">{html.escape(title)}</title>'
    words += f'<desc id="{name}-desc">{html.escape(description)}</desc>'
    opening, _, rest = svg.removeprefix("<svg").partition(">")
    return f"{head}{opening.strip()}>{words}{rest.strip()}"
