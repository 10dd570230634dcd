"""``netlab run``: build a network, verify it, run a command on every worker, judge it, end it all."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netlab import notes
from netlab.cli_common import EXIT_DONE, EXIT_FAILED, EXIT_INVALID, say, start
from netlab.errors import UserError
from netlab.packets import log_path, read_header

if TYPE_CHECKING:
    from netlab.health import Health
    from netlab.job import JobResult, Sink
    from netlab.lab import Lab
    from netlab.verify import Verification


def run(options: argparse.Namespace, command: list[str]) -> int:
    """``netlab run PROFILE -- CMD``."""
    if not command:
        raise UserError("run: no command; write it behind --: netlab run PROFILE -- python train.py")
    if options.timeout is not None and not 0 < options.timeout < 1e9:
        raise UserError(f"--timeout {options.timeout:g}: a positive number of seconds is needed")
    out = _prepare_folder(options.out)
    captures = [_link_and_file(text) for text in options.capture]
    remark: Callable[[str], None] = (lambda _text: None) if options.quiet else say
    with notes.folder() as left:
        with start(options, left) as lab:
            code = _Run(options, command, out, left, remark).carry_out(lab, captures)
        if options.packet_log is not None:
            path = log_path(options.packet_log)
            remark(f"packet log: {read_header(path).describe()} in {path}")
    return code


def _link_and_file(text: str) -> tuple[str, Path]:
    link, equals, path = text.partition("=")
    if not (equals and link and path):
        raise UserError(f"--capture {text}: LINK=FILE is wanted, like nancy-sophia=wan.pcapng")
    return link, Path(path)


@dataclass(frozen=True)
class _Run:
    """One run: its options, and where what is found out goes. ``say`` is silent with --quiet."""

    options: argparse.Namespace
    command: list[str]
    out: Path | None
    left: str
    say: Callable[[str], None]

    def carry_out(self, lab: Lab, captures: Sequence[tuple[str, Path]]) -> int:
        """Verify, run, judge; returns the exit code."""
        for choice in lab.choices:
            self.say(choice)
        verification = None if self.options.no_verify else _verified(lab, self.say)
        record: dict[str, Any] = {"network": lab.describe(), "verification": verification and verification.to_json()}
        _store(self.out, record)
        if verification is not None and not verification.ok:
            say("the network is not the one asked for; nothing was run (--no-verify runs all the same)")
            say(verification.describe())
            return EXIT_INVALID
        options = {"snaplen": self.options.snaplen}
        started = [(path, lab.capture(link, path, **options)) for link, path in captures]
        mark = lab.mark()
        env = {"NETLAB_RUN": notes.run_id(), "NETLAB_NOTES": self.left}
        result = _run_prefixed(lab, self.command, self.options.timeout, env)
        health = lab.health(mark)
        for path, handle in started:
            found = lab.end_capture(handle)
            missing = f", {found.left_out} left out" if found.left_out else ""
            self.say(f"capture: {found.packets} packets in {path}{missing}")
        record |= {"health": health.to_json(), "traffic": lab.traffic(), "ok": result.ok, "result": result.describe()}
        record["exits"] = [vars(end) for end in result.exits]
        # Said before the lab ends: that may fail, too, and must not hide how the job did.
        return self._judge(record, result, health)

    def _judge(self, record: dict[str, Any], result: JobResult, health: Health) -> int:
        noted = notes.read(Path(self.left))
        for folder in (self.out, *noted.records):
            _store(folder, record)
        if noted.invalid:
            say("the command says that this run is not valid:")
            for reason in noted.invalid:
                say(f"  {reason}")
            return EXIT_INVALID
        if not result.ok:
            say(result.describe())
            return EXIT_FAILED
        (self.say if health.valid else say)(health.describe())
        return EXIT_DONE if health.valid else EXIT_INVALID


def _verified(lab: Lab, say: Callable[[str], None]) -> Verification:
    verification = lab.verify("quick")
    for row in verification.links:
        achieved = "nothing" if row.achieved is None else f"{row.achieved:g} {row.unit}"
        say(f"{row.link} {row.direction}: {row.quantity} {achieved} (asked {row.asked:g})")
    return verification


def _run_prefixed(lab: Lab, command: list[str], timeout: float | None, env: dict[str, str]) -> JobResult:
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
