"""The harness itself: a kernel that fails must fail the tests, and nothing may be left of it. Runs outside."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.netem import junit_results, uml

HERE = Path(__file__).parent

FAILING_TESTS = """
import pytest
pytestmark = pytest.mark.netem

def test_passes():
    print("said inside")

@pytest.mark.parametrize("text", ["a b", "c/d"])
def test_wants_a_blank(text):
    assert " " in text

def test_skips():
    pytest.skip("no reason")

@pytest.fixture
def brittle():
    yield
    raise ValueError("teardown")

def test_fails_twice(brittle):
    raise ValueError("call")
"""


@pytest.fixture(autouse=True)
def needs_user_mode_linux():
    try:
        uml.find_kernel()
    except uml.NotInstalledError as error:
        pytest.skip(str(error))


@pytest.fixture
def memory(monkeypatch, tmp_path):
    """Where this test's scratch folders are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def processes_naming(text: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text in (entry / "cmdline").read_text(errors="replace"):
                    found.append(int(entry.name))
            except OSError:
                continue  # it has just ended
    return found


def eventually(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def run(argv, timeout_s=60.0):
    with uml.guest(argv, cwd=HERE, env={}, timeout_s=timeout_s) as outcome:
        return outcome


def test_a_command_inside_can_write_to_its_scratch_folder_and_nowhere_else(memory):
    places = [HERE, "/etc", "/usr", "/var/tmp", Path(sys.prefix)]
    script = "; ".join(f"touch {place}/left-by-uml && echo WROTE {place}" for place in places)
    with uml.guest(
        ["sh", "-c", f"{script}; echo kept > {uml.INSIDE}/note; exit 7"], cwd=HERE, env={}, timeout_s=60
    ) as outcome:
        assert outcome.code == 7
        assert "WROTE" not in outcome.console
        assert outcome.console.count("Read-only file system") == len(places)
        assert (outcome.scratch / "note").read_text() == "kept\n"
    assert list(memory.iterdir()) == []
    assert processes_naming(str(memory)) == []


def test_a_kernel_that_hangs_is_ended_in_time_and_named(memory):
    began = time.monotonic()
    with pytest.raises(uml.GuestError, match="did not end within 5 s") as error:
        run(["sh", "-c", "echo waiting for ever; sleep 600"], timeout_s=5)
    assert 5 <= time.monotonic() - began <= 15
    assert "waiting for ever" in str(error.value)
    assert list(memory.iterdir()) == []
    assert processes_naming(str(memory)) == []


def test_a_kernel_that_does_not_boot_says_its_last_words(memory, monkeypatch):
    honest = uml.command_line
    monkeypatch.setattr(uml, "command_line", lambda *a: [one.replace("init=", "init=/nowhere") for one in honest(*a)])
    with pytest.raises(uml.GuestError, match=r"without a result(.|\n)*Kernel panic"):
        run(["true"])
    assert list(memory.iterdir()) == []


def test_a_module_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(uml, "MODULES", ("sch_netem", "no_such_module"))
    with pytest.raises(uml.GuestError, match=r"init failed: KeyError\('no_such_module'\)"):
        run(["true"])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_ending_whoever_started_it_leaves_no_process_and_no_file(memory, how):
    program = (
        "import sys, tempfile; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import uml\n"
        "tempfile.tempdir = sys.argv[2]\n"
        "with uml.guest(['sleep', '600'], cwd=Path('/'), env={}, timeout_s=600): pass\n"
    )
    command = [sys.executable, "-c", program, str(HERE), str(memory)]
    starter = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: any("booted" in one.read_text() for one in memory.glob("*/console")), 30)
        assert len(processes_naming(str(memory))) >= 3  # the starter, the launcher, the kernel
    finally:
        starter.send_signal(how)
        starter.wait(20)
    assert eventually(lambda: processes_naming(str(memory)) == [], 10)
    assert eventually(lambda: list(memory.iterdir()) == [], 5)


def inner_pytest(tmp_path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run FAILING_TESTS as a user would."""
    (tmp_path / "conftest.py").write_text(CONFTEST.replace("ROOT", repr(str(ROOT))))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = netem: x\n")
    (tmp_path / "test_some.py").write_text(FAILING_TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)


CONFTEST = """
import sys
sys.path.insert(0, ROOT)
from tests.netem import conftest as stand_ins
stand_ins.runs_here = lambda: stand_ins.INSIDE in stand_ins.os.environ
pytest_collection_modifyitems = stand_ins.pytest_collection_modifyitems
"""


def test_each_inside_test_reports_its_own_result_outside(tmp_path):
    done = inner_pytest(tmp_path, "-v", "-rA")
    assert done.returncode == 1, done.stdout
    for line in (
        "test_some.py::test_passes PASSED",
        "test_some.py::test_wants_a_blank[a b] PASSED",
        "test_some.py::test_wants_a_blank[c/d] FAILED",
        "test_some.py::test_skips SKIPPED",
        "test_some.py::test_fails_twice FAILED",
        "2 failed, 2 passed, 1 skipped",
    ):
        assert line in done.stdout
    assert "assert ' ' in 'c/d'" in done.stdout
    assert "ValueError: call" in done.stdout
    assert "inside user-mode Linux: no reason" in done.stdout


def test_only_what_was_selected_runs_inside(tmp_path):
    done = inner_pytest(tmp_path, "-k", "passes")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 4 deselected" in done.stdout


def test_a_test_that_ends_the_inside_pytest_fails_and_so_do_those_after_it(tmp_path):
    (tmp_path / "test_rude.py").write_text(
        "import os, pytest\npytestmark = pytest.mark.netem\ndef test_exits():\n    os._exit(0)\n"
    )
    done = inner_pytest(tmp_path, "test_rude.py", "test_some.py::test_passes")
    assert done.returncode == 1, done.stdout
    assert "2 failed" in done.stdout
    assert "reported nothing of this test" in done.stdout
    assert "see the first of these failures" in done.stdout


def test_without_a_kernel_to_boot_the_tests_are_skipped_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    done = inner_pytest(tmp_path, "-rs")
    assert done.returncode == 0, done.stdout
    assert "5 skipped" in done.stdout
    assert "no sch_netem, and user-mode Linux is not installed: apt-get install user-mode-linux" in done.stdout


def test_a_second_report_of_a_test_does_not_hide_its_failure():
    case = '<testcase time="1.5"><properties><property name="nodeid" value="t"/></properties>{}</testcase>'
    xml = "<testsuites><testsuite>" + case.format('<failure message="m">text</failure>') + case.format("")
    (result,) = junit_results.parse(xml + "</testsuite></testsuites>").values()
    assert (result.state, result.text, result.seconds) == ("failed", "m\ntext", 1.5)
