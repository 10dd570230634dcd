"""Pieces of a self-contained HTML page: style, tables, figures, embedded data. Text in, text out, everything
escaped.

The page asks nothing of anybody: no script, no font, no picture from elsewhere. It follows the reader's light
or dark setting, prints on paper, and fits a telephone: wide tables and figures scroll inside their own frame.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from cpdp import jsonfile
from cpdp.figure import Drawing

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5a6675; --page: #ffffff; --card: #f4f6f8;
  --line: #d5dbe1; --good: #0b6b4b; --bad: #a83a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaef; --soft: #a3afbc; --page: #12171d; --card: #1b222a;
  --line: #35404c; --good: #4cc79b; --bad: #ff9a5c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .4rem; }
p, li { max-width: 48rem; }
.soft { color: var(--soft); }
.verdict { font-weight: 600; }
.good { color: var(--good); }
.bad { color: var(--bad); }
.answer { background: var(--card); border-left: .3rem solid var(--good); padding: .7rem 1rem; margin: 1rem 0; }
.scroll { overflow-x: auto; max-width: 100%; }
.scroll:focus-visible { outline: 2px solid var(--soft); }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; margin: .4rem 0; }
caption { text-align: left; color: var(--soft); padding: .2rem 0 .5rem; font-size: .9rem; position: sticky;
  left: 0; max-width: min(48rem, calc(100vw - 2.2rem)); }
th, td { padding: .3rem .7rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; }
thead th { vertical-align: bottom; }
tbody th { white-space: nowrap; }
th:first-child, td:first-child, .left { text-align: left; }
.range { color: var(--soft); font-size: .82rem; white-space: nowrap; }
.swatch { display: inline-block; width: .75rem; height: .75rem; margin-right: .45rem; border-radius: 2px; }
figure { margin: 1.2rem 0; }
figure svg { display: block; height: auto; min-width: 30rem; max-width: 100%; }
figcaption { color: var(--soft); font-size: .9rem; max-width: 48rem; }
pre { background: var(--card); padding: .8rem; overflow-x: auto; font-size: .82rem; line-height: 1.45; }
summary { cursor: pointer; font-weight: 600; padding: .3rem 0; }
@media (max-width: 34rem) { body { padding: 1rem .8rem 3rem; } h1 { font-size: 1.4rem; } }
@media print { :root { --ink: #000; --soft: #444; --page: #fff; --card: #f4f4f4; --line: #bbb; --good: #000;
  --bad: #000; } body { max-width: none; padding: 0; font-size: 10pt; } h2 { break-after: avoid; }
  figure, table, .answer { break-inside: avoid; } .scroll { overflow: visible; } figure svg { min-width: 0; } }
"""


def page(title: str, body: Sequence[str], data: Any) -> str:
    """The whole document. `data` is embedded as JSON for those who want the numbers back out."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="generator" content="cpdp report">',
            f"<title>{text(title)}</title><style>{STYLE}</style></head><body>",
            "<main>",
            *body,
            "</main>",
            embedded(data),
            "</body></html>",
            "",
        ]
    )


def embedded(data: Any) -> str:
    """A JSON tree inside the page; it cannot close its own element."""
    safe = jsonfile.dumps(data, indent=None).replace("<", "\\u003c").replace("&", "\\u0026")
    return f'<script type="application/json" id="run-data">{safe}</script>'


def text(value: object) -> str:
    """Escaped text; a dash for what is unknown."""
    return "–" if value is None else html.escape(str(value))


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A table whose cells are HTML already; its first `left` columns are text, and rows start with their
    header.
    """
    top = "".join(f'<th scope="col"{_side(i, left)}>{head}</th>' for i, head in enumerate(heads))
    body = "".join(f"<tr>{_row(row, left)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[str], left: int) -> str:
    first, *others = row
    cells = "".join(f"<td{_side(i, left)}>{cell}</td>" for i, cell in enumerate(others, start=1))
    return f'<th scope="row">{first}</th>{cells}'


def _side(index: int, left: int) -> str:
    return ' class="left"' if index < left else ""


def figure(drawing: Drawing | None, caption: str) -> str:
    """A figure with its caption; nothing when there is nothing to draw."""
    if drawing is None:
        return ""
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{text(drawing.title)}">{drawing.svg}</div>'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )


def definitions(caption: str, values: Mapping[str, object]) -> str:
    """Names and values as a two-column table."""
    return table(caption, ["what", "value"], [[text(key), text(value)] for key, value in values.items()], left=2)


def fold(summary: str, body: str) -> str:
    """Something long that opens on demand."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>"
