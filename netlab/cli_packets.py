"""The verbs of ``netlab`` about single packets: ``packets`` reads a log of fates, ``capture`` writes them down."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netlab.cli_common import EXIT_DONE, print_json, say
from netlab.errors import UserError
from netlab.packets import FATES, log_path, read_header, read_packets

if TYPE_CHECKING:
    import pandas as pd


def packets(options: argparse.Namespace, _command: list[str]) -> int:
    """``netlab packets FILE``."""
    path = log_path(str(options.log))
    header, table = read_header(path), read_packets(path)
    for target, write in ((options.csv, table.to_csv), (options.parquet, table.to_parquet)):
        if target is not None:
            _export(target, write)
    rows = [summary(table, name) for name in header.directions]
    if options.json:
        print_json({"records": len(table), "left_out": header.left_out, "limit": header.limit, "directions": rows})
        return EXIT_DONE
    from netlab.view import print_packets

    print_packets(rows, table.head(max(options.head, 0)), header.describe())
    return EXIT_DONE


def _export(target: Path, write: Any) -> None:
    try:
        write(target, index=False)
    except OSError as error:
        raise UserError(f"{target}: {error.strerror or error}") from error


def summary(table: pd.DataFrame, direction: str) -> dict[str, Any]:
    """What became of the packets of one direction: packets by fate (an offloaded unit is several), and how long those
    that passed took; delays in ms, None where nothing passed.
    """
    mine = table[table["direction"] == direction]
    by_fate = mine.groupby("fate", observed=False)["segments"].sum()
    delays = mine.loc[mine["fate"] == "passed", "delay_ns"].dropna().astype("float64") / 1e6
    quantiles = {f"p{round(100 * q)}": float(delays.quantile(q)) if len(delays) else None for q in (0.5, 0.99)}
    return {
        "direction": direction,
        "packets": int(by_fate.sum()),
        "fates": {fate: int(by_fate[fate]) for fate in FATES if by_fate[fate]},
        "delay_ms": {**quantiles, "max": float(delays.max()) if len(delays) else None},
        **{name: int(mine.loc[mine[name], "segments"].sum()) for name in ("marked", "corrupted", "overtook", "copy")},
    }


def capture(options: argparse.Namespace, _command: list[str]) -> int:
    """``netlab capture LAB LINK FILE``: until Ctrl-C, or for some seconds."""
    from netlab.lab import Lab

    if options.seconds is not None and not 0 < options.seconds < 1e9:
        raise UserError(f"--seconds {options.seconds:g}: a positive number is needed")
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    lab = Lab.attach(options.lab)
    try:
        handle = lab.capture(options.link, options.file, snaplen=options.snaplen)
        over.wait(options.seconds)
        found = lab.end_capture(handle)
    finally:
        lab.stop()
    say(f"{found.packets} packets in {options.file}" + (f", {found.left_out} left out" if found.left_out else ""))
    return EXIT_DONE
