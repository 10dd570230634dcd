"""The ``netlab`` command. The only place in netlab that turns an exception into an exit code."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from netlab import notes
from netlab.errors import DocumentError, NetlabError, UserError

if TYPE_CHECKING:
    from netlab.job import Sink
    from netlab.lab import Lab
    from netlab.verify import Verification

EXIT_DONE, EXIT_FAILED, EXIT_USER, EXIT_INVALID = 0, 1, 2, 3


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
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted; the lab is gone")
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


def _say(text: str) -> None:
    for line in text.splitlines() or [""]:
        print(f"netlab: {line}" if not line[:1].isspace() else line, file=sys.stderr)


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
    run = verb("run", _run, "Run a command on every worker of an emulated network: netlab run PROFILE -- CMD ...")
    _carrier_option(run)
    _hosts_option(run)
    _writable_option(run)
    run.add_argument("--no-verify", action="store_true", help="do not measure the network before the command starts")
    run.add_argument("--out", metavar="DIR", help="store plan, verification, health and exits there, as network.json")
    run.add_argument("--timeout", type=float, metavar="S", help="end the command after S seconds")
    run.add_argument("--quiet", action="store_true", help="print only what the workers print, and errors")
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
    from netlab import cli_labs

    up = verb("up", cli_labs.up, "Build a network that stays until netlab down.")
    up.add_argument("--name", metavar="LAB", required=True, help="what to call it")
    _carrier_option(up)
    _hosts_option(up)
    _writable_option(up)
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
    ):
        made = verb(name, action, text, profile=False)
        made.add_argument("lab", metavar="LAB", help="a lab's name (netlab list)")
        if name in ("exec", "shell"):
            made.add_argument("worker", metavar="WORKER", help="a worker (SITE-INDEX) or a router (SITE.router)")
        if name == "set":
            made.add_argument("link", metavar="LINK", help="a link's name in the profile")
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


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    print()


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
        _print_json(made.to_json())
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


def _start(options: argparse.Namespace, *shared: str) -> Lab:
    from netlab.lab import Lab

    folders = (*getattr(options, "writable", ()), getattr(options, "out", None), *shared)
    writable = [Path(folder) for folder in folders if folder]
    return Lab.start(options.profile, carrier=options.carrier, hosts=options.hosts, writable=writable)


def _verify(options: argparse.Namespace, _command: list[str]) -> int:
    _check_links(options)
    with _start(options) as lab:
        verification = lab.verify(options.level, options.link)
    if options.json:
        _print_json(verification.to_json())
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
        _print_json(found)
    else:
        from netlab.view import print_doctor

        print_doctor(found)
    return EXIT_DONE if found["ok"] else EXIT_FAILED


def _run(options: argparse.Namespace, command: list[str]) -> int:
    if not command:
        raise UserError("run: no command; write it behind --: netlab run PROFILE -- python train.py")
    if options.timeout is not None and not 0 < options.timeout < 1e9:
        raise UserError(f"--timeout {options.timeout:g}: a positive number of seconds is needed")
    out = _prepare_folder(options.out)
    say = (lambda _text: None) if options.quiet else _say
    with notes.folder() as left, _start(options, left) as lab:
        for choice in lab.choices:
            say(choice)
        verification = None if options.no_verify else _verified(lab, say)
        record: dict[str, Any] = {
            "network": lab.describe(),
            "verification": verification and verification.to_json(),
        }
        _store(out, record)
        if verification is not None and not verification.ok:
            _say("the network is not the one asked for; nothing was run (--no-verify runs all the same)")
            _say(verification.describe())
            return EXIT_INVALID
        mark = lab.mark()
        result = _run_prefixed(lab, command, options.timeout, {"NETLAB_RUN": notes.run_id(), "NETLAB_NOTES": left})
        health = lab.health(mark)
        record |= {
            "health": health.to_json(),
            "traffic": lab.traffic(),
            "ok": result.ok,
            "result": result.describe(),
        }
        record["exits"] = [vars(end) for end in result.exits]
        said = notes.read(Path(left))
        for folder in (out, *said.records):
            _store(folder, record)
        if said.invalid:
            _say("the command says that this run is not valid:")
            for reason in said.invalid:
                _say(f"  {reason}")
            return EXIT_INVALID
        # Said before the lab ends: that may fail, too, and must not hide how the job did.
        if not result.ok:
            _say(result.describe())
            return EXIT_FAILED
        if not health.valid:
            _say(health.describe())
            return EXIT_INVALID
        say(health.describe())
    return EXIT_DONE


def _verified(lab: Lab, say: Callable[[str], None]) -> Verification:
    verification = lab.verify("quick")
    for row in verification.links:
        achieved = "nothing" if row.achieved is None else f"{row.achieved:g} {row.unit}"
        say(f"{row.link} {row.direction}: {row.quantity} {achieved} (asked {row.asked:g})")
    return verification


def _run_prefixed(lab: Lab, command: list[str], timeout: float | None, env: dict[str, str]) -> Any:
    from netlab.job import Job
    from netlab.prefix import Prefixer

    width = max(len(worker.name) for worker in lab.workers)
    out, err = (Prefixer(_writer(fd), width) for fd in (1, 2))

    def idle() -> float | None:
        waits = [wait for wait in (out.idle(), err.idle()) if wait is not None]
        return min(waits) if waits else None

    sinks: tuple[Sink, Sink] = (out.feed, err.feed)
    job = Job(lab, [(worker.name, worker.rank) for worker in lab.workers], *sinks, idle=idle)
    try:
        return job.run(command, lambda name: lab.environment(name, env), "", timeout)
    finally:
        for fd, prefixer in ((1, out), (2, err)):
            if os.isatty(fd):
                prefixer.finish()


def _writer(fd: int) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    return write


def _prepare_folder(text: str | None) -> Path | None:
    if text is None:
        return None
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {text}: {error.strerror}") from error
    return folder


def _store(folder: Path | None, record: dict[str, Any]) -> None:
    """Write network.json aside and rename it, so that a reader never sees half a file."""
    if folder is None:
        return
    aside = folder / "network.json.part"
    aside.write_text(json.dumps(record, indent=2, allow_nan=False, default=str) + "\n")
    aside.replace(folder / "network.json")


if __name__ == "__main__":
    sys.exit(main())
