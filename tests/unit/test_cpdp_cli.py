"""What a user of `cpdp` sees: exit codes, messages, files. The Lab is fake; everything else is real."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from cpdp import cli, compare, jsonfile, rundir, sampler
from netlab import NetlabError
from tests.conftest import ROOT
from tests.unit.fake_lab import FakeLab
from tests.unit.fake_run import DDP, NETWORK, FakeRun, verified

SMALL = """
name: small
network: grid5000-nancy-sophia
strategies: [ddp, "cpdp:k=4,beta=0.3"]
phases:
  - {name: exposure, kind: replayed, workload: resnet50-cifar100, steps: 8, warmup_steps: 4, repeats: 2}
  - {name: accuracy, kind: training, workload: digits, epochs: 3, target_accuracy: 0.5}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    return tmp_path


def run(monkeypatch, lab: FakeLab, *arguments: str) -> int:
    """The command, in a lab that is not one."""
    original = compare.compare if not isinstance(compare.compare, functools.partial) else compare.compare.func
    monkeypatch.setattr(compare, "compare", functools.partial(original, start=lab.start))
    return cli.main(["compare", *arguments])


def shown(capsys, *arguments: str) -> dict:
    capsys.readouterr()
    assert cli.main(["show", *arguments, "--json"]) == 0

    def refuse(token):
        raise AssertionError(token)

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


def test_an_experiment_leaves_a_complete_run_folder(here, monkeypatch, capsys):
    lab = FakeLab()
    assert run(monkeypatch, lab, "small.yaml") == 0
    latest = here / "runs" / "latest"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-small", latest.resolve().name)
    names = {"experiment.yaml", "resolved.json", "machine.json", "network.json", "cells", "tables", "report.html"}
    assert {path.name for path in latest.iterdir()} == names
    assert (latest / "experiment.yaml").read_text() == SMALL
    cells = sorted(path.name for path in (latest / "cells").iterdir())
    assert len(cells) == 2 * 2 + 2
    wanted = {"cell.json", "done.json", "output.log", "rank-0.events.jsonl", "rank-1.events.jsonl", "traffic.jsonl"}
    assert {path.name for path in (latest / "cells" / cells[0]).iterdir()} == wanted
    assert (latest / "cells" / cells[0] / "output.log").read_text() == "[nancy-0] hello\n[nancy-0] world\n"
    assert set(pd.read_parquet(latest / "tables" / "cells.parquet")["state"]) == {"done"}


def test_one_lab_serves_all_cells_in_the_order_of_the_matrix(here, monkeypatch):
    lab = FakeLab()
    run(monkeypatch, lab, "small.yaml")
    resolved = jsonfile.read(here / "runs" / "latest" / "resolved.json")
    ran = [entry[1] for entry in lab.log if entry[0] == "run"]
    assert ran == [cell["id"] for cell in resolved["cells"]]
    assert [entry[0] for entry in lab.log].count("start") == 1
    assert lab.log[-1] == ("stop",)


def test_show_json_has_the_contracts_keys_and_no_nan(here, monkeypatch, capsys):
    run(monkeypatch, FakeLab(), "small.yaml")
    found = shown(capsys)
    assert found["valid"] is True
    assert {cell["strategy"] for cell in found["cells"]} == {"ddp", "cpdp"}
    ddp = next(cell for cell in found["cells"] if cell["strategy"] == "ddp" and cell["phase"] == "exposure")
    assert (ddp["period"], ddp["repeat"], ddp["valid"]) == (1, 1, True)
    assert ddp["computation_ms"] + ddp["exposed_ms"] + ddp["rest_ms"] == pytest.approx(ddp["step_ms"])
    assert ddp["exposed_by_cause"]["gradients"] == pytest.approx(ddp["exposed_ms"])
    assert found["trainings"][0]["reached"] == 1


def test_the_end_shows_the_table_the_published_figures_and_the_report(here, monkeypatch, capsys):
    run(monkeypatch, FakeLab(), "small.yaml")
    out = capsys.readouterr().out
    for wanted in ("cpdp K=4", "published", "20.5", "Differences explained", "report.html", "every link is inside"):
        assert wanted in out
    assert "carrier relay: this kernel has no sch_netem" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


def test_flags_alone_make_an_experiment(here, monkeypatch, capsys):
    arguments = ["--network", "grid5000-nancy-sophia", "--workload", "resnet50-cifar100", "--strategies"]
    code = run(monkeypatch, FakeLab(), *arguments, "ddp,cpdp:k=2,beta=0.3", "--steps", "4", "--out", "here")
    assert code == 0
    assert not (here / "runs").exists()
    assert [cell["period"] for cell in shown(capsys, "here")["cells"]] in ([1, 2], [2, 1])
    assert jsonfile.read(here / "here" / "resolved.json")["experiment"]["phases"][0]["steps"] == 4


def test_flags_change_what_a_file_says_and_the_change_is_stored(here, monkeypatch):
    lab = FakeLab()
    code = run(monkeypatch, lab, "small.yaml", "--repeats", "1", "--steps", "4", "--carrier", "relay", "--seed", "3")
    assert code == 0
    stored = jsonfile.read(here / "runs" / "latest" / "resolved.json")["experiment"]
    assert (stored["phases"][0]["steps"], stored["phases"][0]["repeats"], stored["order_seed"]) == (4, 1, 3)
    assert lab.log[0][2] == "relay"


def test_a_network_outside_its_bounds_stops_the_run_with_what_was_measured(here, monkeypatch, capsys):
    row = verified("round trip", "rtt", "ms", 16.6, 21.25, 0.5)
    lab = FakeLab(verification={**NETWORK, "ok": False, "links": [row]})
    assert run(monkeypatch, lab, "small.yaml") == 3
    err = capsys.readouterr().err
    assert "rtt asked 16.6 ms, achieved 21.25 ms, accepted 16.1 ms to 17.1 ms" in err
    assert not [entry for entry in lab.log if entry[0] == "run"]
    assert jsonfile.read(here / "runs" / "latest" / "network.json")["ok"] is False
    # Asked otherwise, everything is measured and nothing is counted.
    assert run(monkeypatch, lab, "small.yaml", "--on-bad-network", "continue") == 3
    cells = shown(capsys)["cells"]
    assert {cell["state"] for cell in cells} == {"done"}
    assert {cell["valid"] for cell in cells} == {False}


def test_a_run_whose_network_was_wrong_is_resumed_once_it_is_right(here, monkeypatch, capsys):
    row = verified("round trip", "rtt", "ms", 16.6, 21.25, 0.5)
    bad = FakeLab(verification={**NETWORK, "ok": False, "links": [row]})
    assert run(monkeypatch, bad, "small.yaml") == 3
    assert run(monkeypatch, FakeLab(), "--resume", "runs/latest") == 0
    stored = jsonfile.read(here / "runs" / "latest" / "network.json")
    assert (stored["ok"], [one["ok"] for one in stored["earlier"]]) == (True, [False])


def test_a_lab_that_dies_leaves_what_was_measured_and_says_how_to_go_on(here, monkeypatch, capsys):
    class Dying(FakeLab):
        def health(self, since):
            raise NetlabError("the lab has ended")

    assert run(monkeypatch, Dying(), "small.yaml") == 1
    said = capsys.readouterr()
    assert "cpdp: the lab has ended" in said.err
    assert "cpdp compare --resume runs/" in said.out
    assert (here / "runs" / "latest" / "tables" / "steps.csv").exists()


def test_a_cell_during_which_the_emulation_was_late_is_shown_and_not_counted(here, monkeypatch, capsys):
    assert run(monkeypatch, FakeLab(late="ddp-r2"), "small.yaml", "--on-invalid", "keep") == 3
    assert "NOT VALID: the relay was late" in capsys.readouterr().out
    found = shown(capsys)
    assert [cell["reasons"] for cell in found["cells"] if not cell["valid"]] == [["the relay was late"]]
    line = next(line for line in found["strategies"] if line["label"] == "ddp" and line["phase"] == "exposure")
    assert (line["cells"], line["valid_cells"]) == (2, 1)


def test_a_cell_during_which_the_emulation_was_late_is_measured_again_after_the_others(here, monkeypatch, capsys):
    lab = FakeLab(late="ddp-r2", late_times=2)
    assert run(monkeypatch, lab, "small.yaml") == 0
    out = " ".join(capsys.readouterr().out.split())
    ran = [entry[1] for entry in lab.log if entry[0] == "run"]
    cell = ran[-1]
    assert ran.count(cell) == 3
    assert len(set(ran[:-2])) == len(ran) - 2, "the others come first"
    assert f"{cell} will be measured again, after the others: the emulation did not keep up" in out
    assert f"Measured again {cell}: kept in attempts/{cell}-1: the relay was late" in out
    (again,) = [one for one in shown(capsys)["cells"] if one["earlier_attempts"]]
    assert (again["id"], again["valid"], again["reasons"]) == (cell, True, [])
    assert [one["folder"] for one in again["earlier_attempts"]] == [f"attempts/{cell}-1", f"attempts/{cell}-2"]
    assert (here / "runs" / "latest" / "attempts" / f"{cell}-2" / "rank-0.events.jsonl").exists()


def test_an_emulation_that_never_keeps_up_is_given_up_after_three_attempts(here, monkeypatch, capsys):
    lab = FakeLab(late="ddp-r1")
    assert run(monkeypatch, lab, "small.yaml", "--repeats", "1") == 3
    cells = [entry[1] for entry in lab.log if entry[0] == "run" and "ddp-r1" in entry[1]]
    assert {cells.count(cell) for cell in cells} == {3}
    assert {len(one["earlier_attempts"]) for one in shown(capsys)["cells"] if not one["valid"]} == {2}


def test_a_cell_that_anything_else_speaks_against_is_not_measured_again(here, monkeypatch, capsys):
    lab = FakeLab(late="ddp-r1", bypass="ddp-r1")
    assert run(monkeypatch, lab, "small.yaml", "--repeats", "1") == 3
    ran = [entry[1] for entry in lab.log if entry[0] == "run"]
    assert len(set(ran)) == len(ran)


def test_a_cell_whose_bytes_did_not_cross_the_wan_is_not_valid(here, monkeypatch, capsys):
    assert run(monkeypatch, FakeLab(bypass="ddp-r1"), "small.yaml") == 3
    bad = [cell for cell in shown(capsys)["cells"] if not cell["valid"]]
    assert {cell["strategy"] for cell in bad} == {"ddp"}
    assert all("only 0.0 MB left nancy over the WAN" in cell["reasons"][0] for cell in bad)


def test_a_failed_cell_keeps_its_steps_and_last_words_and_the_rest_goes_on(here, monkeypatch, capsys):
    assert run(monkeypatch, FakeLab(fail="ddp-r1"), "small.yaml", "--repeats", "1") == 1
    out = capsys.readouterr().out
    assert "sophia-0 (rank 1) exited with status 7: RuntimeError: the peer has gone" in " ".join(out.split())
    found = shown(capsys)
    failed = [cell for cell in found["cells"] if cell["state"] == "failed"]
    assert {cell["strategy"] for cell in failed} == {"ddp"}
    assert failed[0]["steps"] == 2  # six of twelve were taken, four of them warm-up
    assert {cell["state"] for cell in found["cells"] if cell["strategy"] == "cpdp"} == {"done"}
    done = jsonfile.read(here / "runs" / "latest" / "cells" / failed[0]["id"] / "done.json")
    assert (done["failure"]["worker"], done["failure"]["code"]) == ("sophia-0", 7)


def test_stop_at_the_first_failure_when_asked(here, monkeypatch, capsys):
    lab = FakeLab(fail="-r1")
    assert run(monkeypatch, lab, "small.yaml", "--on-failure", "stop") == 1
    assert [entry[0] for entry in lab.log].count("run") == 1
    assert "stopped at the first cell that failed" in capsys.readouterr().out


def test_ctrl_c_leaves_a_readable_run_that_resume_completes(here, monkeypatch, capsys):
    first = FakeLab(interrupt="cpdp-k4-r2")
    assert run(monkeypatch, first, "small.yaml") == 130
    out = capsys.readouterr().out
    assert "cpdp compare --resume runs/" in out
    found = shown(capsys)
    states = [cell["state"] for cell in found["cells"]]
    assert states.count("interrupted") == 1
    assert (found["complete"], found["valid"]) == (False, False)
    interrupted = next(cell["id"] for cell in found["cells"] if cell["state"] == "interrupted")
    before = {cell["id"] for cell in found["cells"] if cell["state"] == "done"}
    second = FakeLab()
    assert run(monkeypatch, second, "--resume", "runs/latest") == 0
    assert before.isdisjoint(entry[1] for entry in second.log if entry[0] == "run")
    assert shown(capsys)["complete"] is True
    assert (here / "runs" / "latest" / "attempts" / f"{interrupted}-1" / "rank-0.events.jsonl").exists()
    assert len(jsonfile.read(here / "runs" / "latest" / "machine.json")["resumed"]) == 1
    third = FakeLab()
    assert run(monkeypatch, third, "small.yaml", "--resume", "runs/latest") == 0
    assert third.log == []


def test_resume_runs_a_failed_cell_again_and_an_invalid_one_not(here, monkeypatch, capsys):
    run(monkeypatch, FakeLab(fail="ddp-r1", late="cpdp-k4-r1"), "small.yaml", "--repeats", "1")
    again = FakeLab()
    assert run(monkeypatch, again, "--resume", "runs/latest") == 3
    assert {entry[1].split("-")[1] for entry in again.log if entry[0] == "run"} == {"ddp"}


def test_resume_with_another_configuration_is_refused(here, monkeypatch, capsys):
    run(monkeypatch, FakeLab(), "small.yaml")
    assert run(monkeypatch, FakeLab(), "small.yaml", "--steps", "12", "--resume", "runs/latest") == 2
    assert "experiment.phases[0].steps: 8 there, 12 here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "nowhere"], "there is no run at nowhere"),
        (["report", "nowhere"], "there is no run at nowhere"),
        (["show"], "no run was made here yet"),
        (["compare"], "name an EXPERIMENT"),
        (["compare", "no-such"], "neither a file nor a shipped name"),
        (["compare", "missing.yaml"], "'missing.yaml' cannot be read: No such file or directory"),
        (["compare", "small.yaml", "--steps", "-1"], "--steps -1 is not allowed"),
        (["compare", "small.yaml", "--strategies", "ddp,sdg"], "'sdg' does not exist"),
        (["compare", "small.yaml", "--network", "atlantis"], "atlantis"),
        (["compare", "--network", "lan", "--workload", "digit", "--strategies", "ddp"], "did you mean 'digits'?"),
        (
            ["compare", "--network", "lan", "--workload", "digits", "--strategies", "ddp", "--warmup-steps", "4"],
            "--warmup-steps 4 changes nothing: no phase counts steps",
        ),
        (
            ["compare", "--network", "lan", "--workload", "resnet50-cifar100", "--strategies", "ddp", "--epochs", "2"],
            "--epochs 2 changes nothing: no phase counts epochs",
        ),
        (["compare", "--resume", "nowhere"], "there is no run at nowhere"),
    ],
)
def test_a_mistake_is_said_in_words_and_ends_with_two(here, capsys, arguments, said):
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not (here / "runs").exists()


def test_out_is_never_overwritten(here, monkeypatch, capsys):
    (here / "full").mkdir()
    (here / "full" / "precious").write_text("")
    assert run(monkeypatch, FakeLab(), "small.yaml", "--out", "full") == 2
    assert "is not empty" in capsys.readouterr().err


def test_report_writes_one_page_and_names_it(here, capsys):
    FakeRun(here / "a", strategies=(DDP,), repeats=1).write()
    FakeRun(here / "b", strategies=(DDP,), repeats=1).write()
    assert cli.main(["report", "a", "b", "--out", "both.html"]) == 0
    assert capsys.readouterr().out == "both.html\n"
    assert "2 runs beside each other" in (here / "both.html").read_text()
    assert cli.main(["report", "a"]) == 0
    assert (here / "a" / "report.html").exists()


def test_show_reads_a_run_that_was_killed_before_its_first_cell(here, capsys):
    FakeRun(here / "a", network=None).start()
    assert cli.main(["show", "a"]) == 0
    out = capsys.readouterr().out
    assert "15 of 15 cells are not measured yet" in out
    assert "nan" not in out.lower().replace("nancy", "")


def test_strategies_are_listed_with_defaults_and_sources(capsys):
    assert cli.main(["strategies"]) == 0
    assert "beta = 0.3" in capsys.readouterr().out
    assert cli.main(["strategies", "--json"]) == 0
    assert {entry["name"] for entry in json.loads(capsys.readouterr().out)} >= {"ddp", "localsgd", "cpdp"}


def test_help_does_not_pay_for_torch_or_pandas():
    code = (
        "import sys, contextlib, io; from cpdp import cli\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): cli.main(['--help'])\n"
        "print([name for name in ('torch', 'pandas', 'matplotlib', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_closed_pipe_is_no_traceback(here):
    FakeRun(here / "a").write()
    command = f"{sys.executable} -m cpdp.cli show a | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_sigterm_ends_like_ctrl_c_and_leaves_a_readable_run(here):
    script = (
        "import functools, sys, time\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.unit.fake_lab import FakeLab\n"
        "from cpdp import cli, compare\n"
        "class Slow(FakeLab):\n"
        "    def run(self, argv, **named):\n"
        "        result = super().run(argv, **named)\n"
        "        print('cell', flush=True)\n"
        "        time.sleep(30)\n"
        "        return result\n"
        "compare.compare = functools.partial(compare.compare, start=Slow().start)\n"
        "sys.exit(cli.main(['compare', 'small.yaml']))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=here)
    assert "cell\n" in iter(process.stdout.readline, "")
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out = process.stdout.read()
    process.stdout.close()
    assert process.wait(timeout=30) == 143
    assert time.monotonic() - started < 15
    assert "cpdp compare --resume" in out
    data = rundir.read_run(rundir.find(here / "runs" / "latest"))
    assert len(data.cells[0].logs[0].steps) == 12


def test_the_step_counter_reads_whole_lines_once(tmp_path):
    path = tmp_path / "rank-0.events.jsonl"
    tail = sampler.StepTail(path)
    assert tail.read() == 0
    path.write_text('{"k":"start"}\n{"k":"step","n":1}\n{"k":"st')
    assert tail.read() == 1
    with path.open("a") as file:
        file.write('ep","n":2}\n')
    assert tail.read() == 2
    assert tail.read() == 2


def test_a_counter_that_cannot_be_read_ends_the_sampling_and_is_kept(tmp_path):
    def broken():
        raise OSError("the lab has ended")

    with sampler.Sampler(broken, tmp_path / "t.jsonl", tmp_path / "e.jsonl") as watching:
        pass
    assert str(watching.error) == "the lab has ended"


def test_samples_bracket_the_time_inside(tmp_path):
    counts = iter(range(0, 10**6, 10))
    before = time.monotonic_ns()
    with sampler.Sampler(lambda: {"a>b": next(counts)}, tmp_path / "t.jsonl", tmp_path / "e.jsonl"):
        time.sleep(0.25)
    after = time.monotonic_ns()
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    times = [line["t"] for line in lines]
    assert before <= times[0] < times[-1] <= after
    assert times == sorted(times)
    assert 3 <= len(lines) <= 5


def test_a_live_screen_draws_on_a_terminal_of_sixty_columns_without_breaking_lines(here, monkeypatch):
    environment = {**os.environ, "COLUMNS": "60", "TERM": "xterm", "NO_COLOR": "1"}
    script = (
        "import functools, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.unit.fake_lab import FakeLab\n"
        "from cpdp import cli, compare\n"
        "compare.compare = functools.partial(compare.compare, start=FakeLab().start)\n"
        "sys.exit(cli.main(['compare', 'small.yaml']))\n"
    )
    command = f'stty cols 60 rows 30; exec {sys.executable} -c "$SCRIPT"'
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"], env={**environment, "SCRIPT": script}, cwd=here,
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout)
    assert max(len(line) for line in re.split(r"[\r\n]+", plain)) <= 60
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", done.stdout)  # NO_COLOR: no colour, though it is a terminal
    assert "cell " in plain
