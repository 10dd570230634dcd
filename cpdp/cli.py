"""The `cpdp` command: arguments in, exit code out. The only place in cpdp that turns an exception into an
exit code.

0 done, 1 a job failed, 2 a user's mistake, 3 the emulation was not valid; 130 and 143 after Ctrl-C and
SIGTERM. Nothing heavy is imported until a command needs it, so that --help and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from cpdp.errors import CpdpError
from netlab import NetlabError

DONE, FAILED, MISTAKE, INVALID = 0, 1, 2, 3


class Interrupted(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived; it unwinds like Ctrl-C, so that the lab ends in order and the run stays
    readable.
    """

    def __init__(self, number: int) -> None:
        """Remember the signal for the exit code."""
        super().__init__(signal.Signals(number).name)
        self.number = number


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of the console script."""
    given, command = _split(list(sys.argv[1:] if arguments is None else arguments))
    options = _parser().parse_args(given)
    if command and options.command != "profile":
        _parser().error(f"{options.command} takes no command behind --")
    options.cmd = command
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        code: int = options.action(options)
        sys.stdout.flush()
        return code
    except (CpdpError, NetlabError) as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt as stop:
        return 128 + (stop.number if isinstance(stop, Interrupted) else int(signal.SIGINT))
    except BrokenPipeError:
        # Whoever read our output has gone; nobody is left to tell. Keep the interpreter from trying again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Options, and the command behind `--`, which argparse must not touch."""
    if "--" not in arguments:
        return arguments, []
    cut = arguments.index("--")
    return arguments[:cut], arguments[cut + 1 :]


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)


def say(text: str) -> None:
    """A message to the user, beside the output proper."""
    for line in text.splitlines() or [""]:
        print(f"cpdp: {line}" if not line[:1].isspace() else line, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cpdp",
        description="Train across an emulated WAN and see how much of every step is exposed synchronisation.",
    )
    verbs = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_compare(verbs)
    _add_profile(verbs)
    show = verbs.add_parser("show", help="print the tables of a run", description="Print the tables of a run.")
    _run_argument(show, "?")
    show.add_argument("--json", action="store_true", help="print JSON (keys: docs/reference/run-folder.md)")
    show.set_defaults(action=_show)
    report = verbs.add_parser(
        "report", help="write report.html into a run folder", description="Write a self-contained report.html."
    )
    _run_argument(report, "*")
    report.add_argument("--out", type=Path, metavar="FILE", help="write it there instead of the first run's folder")
    report.set_defaults(action=_report)
    _add_record_compute(verbs)
    listing = verbs.add_parser(
        "strategies", help="list the synchronisation strategies", description="List the synchronisation strategies."
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(action=_strategies)
    return parser


def _add_record_compute(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    record = verbs.add_parser(
        "record-compute",
        help="time a model layer by layer, for replayed computation",
        description="Time a model's steps on this machine (a GPU if there is one) and write a timeline that a replayed"
        " workload reads.",
    )
    record.add_argument(
        "model", metavar="MODEL", help="cnn, resnet18, resnet20, resnet50, vgg16, vit-s; or MODULE:FUNCTION"
    )
    record.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="the timeline to write")
    record.add_argument("--name", metavar="NAME", help="its name (default: the file's)")
    for flag, default, what in (
        ("batch", 32, "images in a step"),
        ("image", 32, "side of an image in pixels"),
        ("classes", 100, "classes"),
        ("steps", 10, "steps measured"),
        ("warmup", 3, "steps before them"),
    ):
        record.add_argument(f"--{flag}", type=_at_least_one, default=default, metavar="N", help=f"{what} ({default})")
    record.add_argument("--device", metavar="DEVICE", help="cpu or cuda (default: cuda where there is one)")
    record.add_argument(
        "--payload-scale",
        type=float,
        default=1.0,
        metavar="X",
        help="multiply the parameters, to stand for a larger model",
    )
    record.set_defaults(action=_record_compute)


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: a whole number from 1")
    return value


def _record_compute(options: argparse.Namespace) -> int:
    from cpdp.workloads import record, timelines

    preset = record.run(options)
    made = timelines.parse(preset, str(options.out))
    print(
        f"{options.out}: {len(made.layers)} layers, {made.parameters / 1e6:.2f} M parameters,"
        f" {made.step_ns / 1e6:.1f} ms a step ({preset['device']})"
    )
    return DONE


def _run_argument(parser: argparse.ArgumentParser, count: str) -> None:
    parser.add_argument("run", metavar="RUN", nargs=count, type=Path, help="a run's folder (default: runs/latest)")


def _add_compare(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    compare = verbs.add_parser(
        "compare",
        help="run an experiment: every strategy on one network",
        description="Run every strategy of an experiment on an emulated network and write a run folder.",
    )
    compare.add_argument(
        "experiment", metavar="EXPERIMENT", nargs="?", help="an experiment file, or the name of a shipped one"
    )
    asked = compare.add_argument_group("instead of an experiment file, or to change what it says")
    asked.add_argument("--network", metavar="P", help="a network profile, or the name of a shipped one")
    asked.add_argument("--workload", metavar="W", help="what is trained, like resnet50-cifar100 or digits")
    asked.add_argument("--strategies", metavar="LIST", help="like ddp,localsgd:k=2,cpdp:k=4,beta=0.3")
    asked.add_argument("--steps", type=int, metavar="N", help="measured steps per cell of replayed phases")
    asked.add_argument("--warmup-steps", type=int, metavar="N", help="steps before them that are not measured")
    asked.add_argument("--epochs", type=int, metavar="N", help="epochs of training phases")
    asked.add_argument("--repeats", type=int, metavar="N", help="how often every strategy runs")
    asked.add_argument("--seed", type=int, metavar="N", help="seed of the training and of the order of the cells")
    how = compare.add_argument_group("how")
    how.add_argument("--carrier", choices=("auto", "netem", "relay"), help="what carries the WAN links")
    how.add_argument("--hosts", choices=("process", "docker"), help="what a worker runs in")
    how.add_argument("--out", type=Path, metavar="DIR", help="the run's folder, new or empty (default: runs/TIME-NAME)")
    how.add_argument("--resume", type=Path, metavar="RUN", help="run only what this run still misses")
    how.add_argument(
        "--on-bad-network", choices=("stop", "continue"), help="when the network measured is not the one asked for"
    )
    how.add_argument("--on-failure", choices=("continue", "stop"), help="when a cell fails")
    how.add_argument(
        "--on-invalid", choices=("again", "keep"), help="when the emulation did not keep up in a cell (default: again)"
    )
    how.add_argument("--plain", action="store_true", help="print lines, draw nothing, also on a terminal")
    compare.set_defaults(action=_compare)


def _add_profile(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    profile = verbs.add_parser(
        "profile",
        usage="cpdp profile [-h] [--out DIR] -- CMD ...",
        help="run any training script and see where every millisecond of its steps went",
        description="Run a command, unmodified, under the profiler: cpdp profile -- torchrun train.py. Works with"
        " torchrun, spawned and forked ranks, and on every worker of a lab: netlab run P -- cpdp profile -- CMD.",
    )
    profile.add_argument("--out", type=Path, metavar="DIR", help="the run's folder, new or empty (default: runs/...)")
    profile.set_defaults(action=_profile)
    export = verbs.add_parser(
        "export", help="write a profiled run as traces and tables", description="Write a profiled run for other tools."
    )
    _run_argument(export, "?")
    export.add_argument(
        "--format",
        choices=("all", "perfetto", "kineto", "parquet"),
        default="all",
        help="perfetto: trace.json for ui.perfetto.dev; kineto: traces for Holistic Trace Analysis; parquet: tables",
    )
    export.set_defaults(action=_export)
    watch = verbs.add_parser(
        "watch",
        help="which rank is late, on which operation, while a profiled run goes on",
        description="Watch a profiled run live (Ctrl-C ends).",
    )
    _run_argument(watch, "?")
    watch.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default 1)")
    watch.add_argument("--count", type=int, metavar="N", help="end after N looks")
    watch.set_defaults(action=_watch)


def _profile(options: argparse.Namespace) -> int:
    from cpdp.profiler.launch import profile

    return profile(options.cmd, options.out)


def _export(options: argparse.Namespace) -> int:
    from cpdp.profiler.export import export

    return export(options.run, options.format)


def _watch(options: argparse.Namespace) -> int:
    from cpdp.profiler.watch import watch

    return watch(options.run, options.interval, options.count)


def _compare(options: argparse.Namespace) -> int:
    from cpdp import compare

    return compare.compare(options)


def _show(options: argparse.Namespace) -> int:
    from cpdp import show

    return show.show(options.run, as_json=options.json)


def _report(options: argparse.Namespace) -> int:
    from cpdp import show

    return show.report(options.run, options.out)


def _strategies(options: argparse.Namespace) -> int:
    from cpdp import show

    return show.strategies(as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
