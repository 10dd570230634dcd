"""The ``netlab`` command. The only place in netlab that turns an exception into an exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from netlab import cli_run
from netlab.cli_common import EXIT_DONE, EXIT_FAILED, EXIT_INVALID, print_json, say, start
from netlab.errors import DocumentError, NetlabError
from netlab.packets import DEFAULT_LIMIT


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of the console script. Exit codes: 0 done, 1 failed, 2 a user's mistake, 3 emulation not valid."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, command = _parse(given)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code: int = options.action(options, command)
        sys.stdout.flush()
        return code
    except DocumentError as error:
        print(error, file=sys.stderr)  # "FILE:LINE: key: ..." as it stands, for editors and scripts to read
        return error.exit_code
    except NetlabError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted; the lab is gone")
        return 128 + signal.SIGINT
    except _Terminated:
        return 128 + signal.SIGTERM
    except BrokenPipeError:
        # Whoever read our output has gone; nobody is left to tell. Keep the interpreter from trying once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_FAILED


class _Terminated(BaseException):
    """SIGTERM arrived; unwinds like Ctrl-C, so that everything is stopped in order."""


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise _Terminated


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options, and the command behind ``--``, which argparse must not touch."""
    command: list[str] = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, command = arguments[:cut], arguments[cut + 1 :]
    parser = _parser()
    options = parser.parse_args(arguments)
    if command and options.verb not in ("run", "exec", "compose"):
        parser.error(f"{options.verb} takes no command behind --")
    return options, command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netlab", description="Emulate sites and WAN links on one machine, and run any program on them."
    )
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)

    def verb(name: str, action: Callable[..., int], text: str, *, profile: bool = True) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(action=action)
        if profile:
            made.add_argument("profile", metavar="PROFILE", help="a profile's path, or the name of a shipped one")
        return made

    verb("check", _check, "Read a profile and say what is wrong with it; exit 0 when nothing is.")
    for made in (verb("plan", _plan, "Print the exact operations that would build a network, and do nothing."),):
        _carrier_option(made)
        _hosts_option(made)
        _json_option(made)
    run = verb("run", cli_run.run, "Run a command on every worker of an emulated network: netlab run PROFILE -- CMD")
    _carrier_option(run)
    _hosts_option(run)
    _writable_option(run)
    run.add_argument("--no-verify", action="store_true", help="do not measure the network before the command starts")
    run.add_argument("--out", metavar="DIR", help="store plan, verification, health and exits there, as network.json")
    run.add_argument("--timeout", type=float, metavar="S", help="end the command after S seconds")
    run.add_argument("--quiet", action="store_true", help="print only what the workers print, and errors")
    _record_options(run)
    text = "write the packets of a link to FILE (pcapng), as they are at both of its ends (repeatable)"
    run.add_argument("--capture", metavar="LINK=FILE", action="append", default=[], help=text)
    _snaplen_option(run)
    verify = verb("verify", _verify, "Build a network, measure it with real traffic, and compare with the profile.")
    _carrier_option(verify)
    _hosts_option(verify)
    _json_option(verify)
    verify.add_argument(
        "--level", choices=("rtt", "quick", "full"), default="quick", help="how thorough (default: quick)"
    )
    text = "only this link, by its name in the profile, or this WORKER.access (repeatable)"
    verify.add_argument("--link", metavar="NAME", action="append", default=[], help=text)
    doctor = verb(
        "doctor",
        _doctor,
        "Say what this machine has, what would be used, and how to get the rest.",
        profile=False,
    )
    _json_option(doctor)
    verb("profiles", _profiles, "List the shipped profiles.", profile=False)
    _lab_verbs(verb)
    _docker_verbs(verb)
    return parser


def _lab_verbs(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """The verbs about labs that outlive a command."""
    from netlab import cli_labs, cli_packets

    up = verb("up", cli_labs.up, "Build a network that stays until netlab down.")
    up.add_argument("--name", metavar="LAB", required=True, help="what to call it")
    _carrier_option(up)
    _hosts_option(up)
    _writable_option(up)
    _record_options(up)
    listing = verb("list", cli_labs.list_labs, "List the labs that are up.", profile=False)
    _json_option(listing)
    for name, action, text in (
        ("down", cli_labs.down, "End a lab and everything in it."),
        (
            "set",
            cli_labs.change,
            "Change a link while traffic flows: netlab set LAB LINK rate=10mbit delay=50ms state=up.",
        ),
        ("exec", cli_labs.execute, "Run a command on a worker of a lab: netlab exec LAB WORKER -- CMD ..."),
        ("shell", cli_labs.shell, "Open a shell on a worker of a lab."),
        ("events", cli_labs.events, "What happened to a lab, in order."),
        ("top", cli_labs.top, "Watch a lab's links live (Ctrl-C ends)."),
        ("capture", cli_packets.capture, "Write the packets of a lab's link to a pcapng file (Ctrl-C ends)."),
    ):
        made = verb(name, action, text, profile=False)
        made.add_argument("lab", metavar="LAB", help="a lab's name (netlab list)")
        if name in ("exec", "shell"):
            made.add_argument("worker", metavar="WORKER", help="a worker (SITE-INDEX) or a router (SITE.router)")
        if name in ("set", "capture"):
            made.add_argument("link", metavar="LINK", help="a link's name in the profile")
        if name == "set":
            made.add_argument(
                "settings", metavar="KEY=VALUE", nargs="+", help="as in a profile; backward.KEY for one way"
            )
        if name == "events":
            _json_option(made)
        if name == "top":
            made.add_argument(
                "--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default 1)"
            )
            made.add_argument("--count", type=int, metavar="N", help="end after N looks")
            made.add_argument("--no-rtt", action="store_true", help="send no echoes over the links")
        if name == "capture":
            made.add_argument("file", metavar="FILE", type=Path, help="what to write")
            made.add_argument("--seconds", type=float, metavar="S", help="end after S seconds")
            _snaplen_option(made)
    text = "Print a log of packets that netlab run --packet-log wrote: what became of each."
    packets = verb("packets", cli_packets.packets, text, profile=False)
    packets.add_argument("log", metavar="FILE", type=Path, help="the log, or the folder it is in")
    packets.add_argument("--csv", metavar="OUT", type=Path, help="write every packet there as CSV")
    packets.add_argument("--parquet", metavar="OUT", type=Path, help="write every packet there as Parquet")
    packets.add_argument("--head", metavar="N", type=int, default=0, help="print the first N packets, too")
    _json_option(packets)


def _docker_verbs(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """The verbs about containers."""
    from netlab import cli_docker

    text = "Remove what labs left whose owner was killed: containers that carry a dead owner's label, and records."
    clean = verb("clean", cli_docker.clean, text, profile=False)
    clean.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    text = "Print a compose file that runs a command on a network: netlab compose PROFILE [-- CMD ...]"
    compose = verb("compose", cli_docker.compose, text)
    compose.add_argument("--output", type=Path, metavar="FILE", help="write it there; paths in it start at its folder")


def _carrier_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--carrier", choices=("auto", "netem", "relay"), default="auto", help="what carries the links")


def _hosts_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", choices=("process", "docker"), default="process", help="what a worker runs in")


def _writable_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--writable",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder in which containers may write; all else of this machine is read-only to them (repeatable)",
    )


def _record_options(parser: argparse.ArgumentParser) -> None:
    text = "note there what became of each packet (netlab packets reads it); carried by the relay"
    parser.add_argument("--packet-log", metavar="FILE|DIR", help=text)
    parser.add_argument(
        "--packet-log-limit",
        metavar="N",
        type=int,
        default=DEFAULT_LIMIT,
        help=f"how many packets at most, 48 bytes each (default {DEFAULT_LIMIT}); what is left out is counted",
    )


def _snaplen_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--snaplen", metavar="BYTES", type=int, default=128, help="of each captured packet, at most (default 128)"
    )


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _check(options: argparse.Namespace, _command: list[str]) -> int:
    from netlab import topology
    from netlab.profile import load_profile

    topology.build(load_profile(options.profile))
    return EXIT_DONE


def _plan(options: argparse.Namespace, _command: list[str]) -> int:
    from netlab import carriers, plan, topology
    from netlab.profile import load_profile

    laid_out = topology.build(load_profile(options.profile))
    # A plan can be read on a machine that could not carry it out, so a demanded carrier is taken at its word.
    carrier, why = carriers.choose("auto", laid_out) if options.carrier == "auto" else (options.carrier, "as asked")
    made = plan.make(laid_out, carrier, options.hosts)
    if options.json:
        print_json(made.to_json())
        return EXIT_DONE
    print(f"# {made.topology.profile.name}, carried by {carrier} ({why})")
    for note in made.topology.notes:
        print(f"# {note}")
    print(made.describe())
    return EXIT_DONE


def _profiles(_options: argparse.Namespace, _command: list[str]) -> int:
    from netlab.profile import load_profile
    from netlab.shipped import shipped_documents

    for name in shipped_documents("networks"):
        profile = load_profile(name)
        workers = sum(site.workers for site in profile.sites)
        print(f"{name:28} {len(profile.sites)} sites, {workers} workers, {len(profile.links)} links")
    return EXIT_DONE


def _verify(options: argparse.Namespace, _command: list[str]) -> int:
    _check_links(options)
    with start(options) as lab:
        verification = lab.verify(options.level, options.link)
    if options.json:
        print_json(verification.to_json())
    else:
        from netlab.view import print_verification

        print_verification(verification)
    return EXIT_DONE if verification.ok else EXIT_INVALID


def _check_links(options: argparse.Namespace) -> None:
    """Refuse names of links that there are not before anything is built."""
    from netlab.live import known_link
    from netlab.profile import load_profile

    if options.link:
        profile = load_profile(options.profile)
        for name in options.link:
            known_link(profile, name)


def _doctor(options: argparse.Namespace, _command: list[str]) -> int:
    from netlab.doctor import examine

    found = examine()
    if options.json:
        print_json(found)
    else:
        from netlab.view import print_doctor

        print_doctor(found)
    return EXIT_DONE if found["ok"] else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
