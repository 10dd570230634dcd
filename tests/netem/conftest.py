"""Tests marked `netem` need a kernel with sch_netem. Where this one has none, they run inside user-mode Linux.

Outside, each of them is replaced by an item of the same name and node id. The first to run boots the kernel once, runs
all of them inside with this repository's Python, and each item then reports its own result. So `-k`, node ids, JUnit
files and exit codes work as for any test. A kernel that does not boot, hangs or reports nothing fails all of them;
without a kernel to boot they are skipped with the reason.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from xml.etree.ElementTree import ParseError

import pytest

from netlab.links import netem
from tests.netem import chain, junit_results, uml

INSIDE = "NETLAB_TEST_IN_USER_MODE_LINUX"
TIMEOUT_S = 240  # for all of them together; about 75 are expected
TEST_TIMEOUT_S = 60  # for each, so that one that hangs does not cost the others their results

READ_ONLY_OPTIONS = ("-p", "no:cacheprovider")  # the repository cannot be written from inside


def runs_here() -> bool:
    """Whether this very process can run the tests: inside, or as root of a kernel that has what they need."""
    return INSIDE in os.environ or (os.geteuid() == 0 and netem.probe()[0])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After deselection: put stand-ins where tests must run inside, or name each test for the report inside."""
    wanted = [item for item in items if item.get_closest_marker("netem")]
    if INSIDE in os.environ:
        for item in wanted:
            item.user_properties.append((junit_results.NODE_ID, item.nodeid))
    elif wanted and not config.option.collectonly and not runs_here():
        guest = Guest(config.rootpath, [item.nodeid for item in wanted])
        items[:] = [StandIn.of(item, guest) if item in wanted else item for item in items]


@pytest.fixture
def pair() -> Iterator[chain.Chain]:
    """Two namespaces and a veth."""
    with chain.chain(2) as made:
        yield made


class Guest:
    """One boot of the user-mode kernel with one pytest run inside it, on the first demand for a result."""

    def __init__(self, root: Path, node_ids: Sequence[str]) -> None:
        self.root, self.node_ids = root, node_ids
        self._told = False

    def result(self, node_id: str) -> junit_results.Result:
        """What became of the test. Raises GuestError when nothing is known of it."""
        found, console = self._found
        if node_id not in found:
            why = "see the first of these failures" if self._told else console
            self._told = True
            raise uml.GuestError(f"the user-mode kernel reported nothing of this test\n{why}")
        return found[node_id]

    @cached_property
    def _found(self) -> tuple[dict[str, junit_results.Result], str]:
        report = f"{uml.INSIDE}/junit.xml"
        options = ["-v", "--color=no", f"--timeout={TEST_TIMEOUT_S}", f"--junitxml={report}"]
        argv = [sys.executable, "-m", "pytest", *READ_ONLY_OPTIONS, *options, *self.node_ids]
        env = {INSIDE: "1", "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis"}
        try:
            with uml.guest(argv, cwd=self.root, env=env, timeout_s=TIMEOUT_S) as outcome:
                junit = outcome.scratch / "junit.xml"
                return (junit_results.parse(junit.read_text()) if junit.exists() else {}), outcome.console
        except (uml.GuestError, ParseError) as error:
            return {}, str(error)  # asked for once, whatever the number of tests: a failed boot is not tried again


class StandIn(pytest.Item):
    """Takes the place of a test that runs inside, and reports what became of it."""

    original: pytest.Item
    guest: Guest

    @classmethod
    def of(cls, item: pytest.Item, guest: Guest) -> StandIn:
        """The stand-in for `item`, with its name, place and marks."""
        made: StandIn = cls.from_parent(item.parent, name=item.name)
        made.original, made.guest = item, guest
        # A result from inside is final there; asking for it again would not change it.
        made.own_markers = [mark for mark in item.iter_markers() if mark.name != "flaky"]
        made.keywords.update({name: value for name, value in item.keywords.items() if name != "flaky"})
        made.add_marker(pytest.mark.timeout(TIMEOUT_S + 30))
        return made

    def runtest(self) -> None:
        """Report the result from inside."""
        try:
            uml.find_kernel()
        except uml.NotInstalledError as error:
            pytest.skip(f"this kernel has no sch_netem, and {error}")
        result = self.guest.result(self.nodeid)
        self.user_properties.append(("seconds_inside", result.seconds))
        self.add_report_section("call", "output inside user-mode Linux", result.output)
        if result.state == "skipped":
            pytest.skip(f"inside user-mode Linux: {result.text}")
        if result.state == "failed":
            raise FailedInside(result.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> object:
        """The inside's own traceback; ours says nothing."""
        if isinstance(excinfo.value, FailedInside | uml.GuestError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[object, int | None, str]:
        """Where the test is written."""
        return self.original.reportinfo()


class FailedInside(Exception):
    """A test failed inside the user-mode kernel."""
