"""The profiler's report in a real Chromium: wide and narrow; silent, asking nobody, with the numbers of `show`."""

import pytest

from cpdp import jsonfile
from cpdp.profiler import analysis, page
from cpdp.profiler.split import PARTS
from cpdp.rundir import RunDir
from tests.browser.chromium import Chromium, find
from tests.unit.test_profile_split import write

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find() is None, reason="needs Chromium: apt-get install chromium"),
]

WIDTHS = (360, 768, 1280)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two ranks, six steps of 135 ms: rank 0 computes 33 ms, waits 50 for rank 1, 50 for the network, 2 for copies."""
    folder = RunDir(tmp_path_factory.mktemp("run"))
    cell = folder.path / "cells" / "profile"
    cell.mkdir(parents=True)
    for rank in (0, 1):
        issued = 30 + 50 * rank
        spans = [1, 0, 10, 2, 10, 132, 3, 132, 135]
        op = [(0, n, issued, issued, 130, -1, -1) for n in range(6)]
        write(cell, rank, [(1000 + 135 * n, 1135 + 135 * n, spans, [1, issued, 132], [op[n]]) for n in range(6)])
    (folder.path / "launches").mkdir()
    for rank in (0, 1):
        jsonfile.write(folder.path / "launches" / f"w{rank}.json", {"name": f"w{rank}", "worker": None, "status": 0})
    experiment = {"name": "profile-train", "kind": "profile", "phases": []}
    jsonfile.write(
        folder.resolved, {"format": 1, "kind": "profile", "experiment": experiment, "cells": [], "versions": {}}
    )
    page.report([folder], folder.report)
    return folder


@pytest.fixture(scope="module")
def browser():
    with Chromium() as opened:
        yield opened


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_complains_of_nothing_and_asks_nobody(browser, run, width):
    browser.open(run.report, width)
    assert browser.ask("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.complaints() == []
    assert browser.requested() == [run.report.resolve().as_uri()]


def test_every_cause_has_its_column_and_every_rank_its_figure(browser, run):
    browser.open(run.report, 1280)
    heads = browser.ask("[...document.querySelectorAll('th')].map(e => e.textContent)")
    assert set(PARTS) <= set(heads)
    titles = browser.ask("[...document.querySelectorAll('svg title')].map(e => e.textContent)")
    assert sum("Where rank" in title for title in titles) == 2


def test_the_numbers_of_the_page_are_those_of_show(browser, run):
    browser.open(run.report, 1280)
    cell = browser.ask("JSON.parse(document.getElementById('run-data').textContent).runs[0].cells[0]")
    (told,) = analysis.to_json(analysis.open_run(run))["cells"]
    assert cell["exposed_by_cause"] == told["exposed_by_cause"]
    assert cell["per_rank"][0]["exposed_by_cause"]["peer"] == pytest.approx(50)
    assert browser.ask("document.body.textContent").count("rank 1 is waited for most") == 1
