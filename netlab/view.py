"""Tables for people (rich), readable at 80 columns and when piped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

    from netlab.verify import Verification


def console() -> Console:
    """Standard output; colours only on a terminal, and never wider than it."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=False)


def print_verification(verification: Verification) -> None:
    """Asked, achieved, accepted and verdict of every link."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("where", overflow="fold")
    for name in ("asked", "achieved", "accepted"):
        table.add_column(name, justify="right", overflow="fold", min_width=8)
    table.add_column("")
    for row in verification.links:
        achieved = "-" if row.achieved is None else f"{row.achieved:.6g}"
        table.add_row(
            row.quantity,
            row.link if row.quantity == "rtt" else row.direction,
            f"{row.asked:.6g} {row.unit}",
            achieved,
            f"{row.low:.5g}..{row.high:.5g}",
            Text("ok", style="green") if row.ok else Text("NO", style="bold red"),
        )
    out = console()
    out.print(table)
    verdict = "every link is inside its bounds" if verification.ok else "the network is NOT the one asked for"
    out.print(f"carrier {verification.carrier}: {verdict}")


def print_doctor(found: dict[str, Any]) -> None:
    """What the machine has, a line each."""
    out = console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for group in ("carriers", "hosts"):
        for name, state in found[group].items():
            mark = Text("yes", style="green") if state["available"] else Text("no", style="yellow")
            table.add_row(f"{group[:-1]} {name}", mark, state["why"])
    for name, there in found["tools"].items():
        why = "" if there else "optional; used by tests and for looking around"
        table.add_row(f"tool {name}", "yes" if there else "no", why)
    table.add_row("GPUs", str(len(found["gpus"])), ", ".join(found["gpus"]) or "none: computation on the CPU, gloo")
    machine = found["machine"]
    memory = machine["memory_bytes"] / 2**30
    table.add_row("machine", "", f"Linux {machine['kernel']}, {machine['affinity']} cores, {memory:.0f} GiB")
    table.add_row("TCP", "", "congestion control: " + ", ".join(machine["congestion_control"]))
    out.print(table)
    if found["ok"]:
        out.print(f"A lab on this machine will use carrier [bold]{found['carrier']}[/bold].")
    else:
        out.print("[bold red]No lab can be built on this machine[/bold red]; see the lines that say no.")


def print_packets(rows: list[dict[str, Any]], first: pd.DataFrame, said: str) -> None:
    """What became of the packets of each direction, and the first of them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("direction", overflow="fold", ratio=1)
    for name in ("packets", "dropped", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("besides", overflow="fold", ratio=1)
    for row in rows:
        besides = {**row["fates"], **{key: row[key] for key in ("marked", "corrupted", "overtook", "copy")}}
        words = [f"{key} {count}" for key, count in besides.items() if count and key != "passed"]
        dropped = sum(count for key, count in row["fates"].items() if key not in ("passed", "held"))
        delays = ["-" if row["delay_ms"][q] is None else f"{row['delay_ms'][q]:.3f}" for q in ("p50", "p99")]
        table.add_row(row["direction"], str(row["packets"]), str(dropped), *delays, ", ".join(words))
    out = console()
    out.print(table)
    for packet in first.to_dict("records"):
        passed = "" if packet["fate"] != "passed" else f" after {packet['delay_ns'] / 1e6:.3f} ms"
        flags = "".join(f", {key}" for key in ("marked", "corrupted", "overtook", "copy") if packet[key])
        at = (packet["arrival_ns"] - first["arrival_ns"].iloc[0]) / 1e6
        out.print(f"{at:12.3f} ms  {packet['direction']}  {packet['ip_bytes']} B  {packet['fate']}{passed}{flags}")
    out.print(said)
