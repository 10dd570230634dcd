"""The report is one file that asks nothing of anybody, says what the tables say, and can be read by everyone."""

import json
import re
from html.parser import HTMLParser

import pytest

from cpdp import analysis, figure, palette, report
from cpdp.page import embedded, table, text
from tests.unit.fake_run import CPDP4, DDP, LOCAL4, PAPER, FakeRun

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Reader(HTMLParser):
    """Collects tags and ids, and complains about what is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.broken: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.broken.append(tag)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    fake = FakeRun(tmp_path_factory.mktemp("run") / "2026-12-01T14-05-33-fake", training=PAPER)
    return analysis.open_run(fake.write())


@pytest.fixture(scope="module")
def html(found):
    return report.render([found])


def data_of(html: str) -> dict:
    (raw,) = re.findall(r'<script type="application/json" id="run-data">(.*?)</script>', html, re.DOTALL)

    def refuse(token):
        raise AssertionError(token)

    return json.loads(raw, parse_constant=refuse)


def test_every_element_is_closed_and_every_id_is_unique(html):
    reader = read(html)
    assert reader.broken == []
    assert reader.open == []
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_every_reference_inside_the_page_leads_somewhere(html):
    ids = {attributes["id"] for _, attributes in read(html).tags if "id" in attributes}
    used = set(re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', html))
    named = {name for found in re.findall(r'aria-labelledby="([^"]+)"', html) for name in found.split()}
    assert used - ids == set()
    assert named - ids == set()


def test_nothing_is_asked_of_the_outside(html):
    for _tag, attributes in read(html).tags:
        for key in ("src", "href", "data", "action", "poster", "srcset", "xlink:href"):
            assert not str(attributes.get(key, "#")).startswith(("http:", "https:", "//", "file:"))
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert not [attributes for tag, attributes in read(html).tags if tag == "script" and "json" not in str(attributes)]


def test_the_embedded_data_is_what_show_prints(found, html):
    assert data_of(html)["runs"] == [json.loads(json.dumps(analysis.to_json(found)))]


def test_data_cannot_close_its_own_element():
    assert embedded({"a": "</script><b>"}).count("</script>") == 1
    assert text("<b> & 'x'") == "&lt;b&gt; &amp; &#x27;x&#x27;"


def test_every_figure_has_a_title_and_words_and_every_table_a_caption(html):
    reader = read(html)
    figures = sum(tag == "svg" for tag, _ in reader.tags)
    assert figures == 3 + 3 + 1  # bars, published, timeline; accuracy, bars, timeline; network
    assert len(re.findall(r"<svg[^>]*role=\"img\"[^>]*>\s*<title", html)) == figures
    assert html.count("<desc") == figures
    tables = sum(tag == "table" for tag, _ in reader.tags)
    assert html.count("<caption>") == tables > 5


def test_the_figures_say_the_same_numbers_as_the_tables(html):
    assert "ddp: step 906 ms, computation 185 ms, exposed 720 ms, hidden 80 ms" in html
    assert "cpdp K=4: 18.2 s measured, 20.5 s published" in html


def test_a_strategy_has_one_colour_in_every_figure_and_table(html):
    looks = palette.looks(["ddp", "localsgd K=2", "localsgd K=4", "cpdp K=2", "cpdp K=4"])
    for label, look in looks.items():
        swatches = set(re.findall(rf'background:(#\w+)"></span>{re.escape(label)}', html))
        assert swatches == {look.colour}
        assert html.lower().count(look.colour.lower()) > 4
    assert len({look.colour for look in looks.values()}) == 5
    assert len({look.marker for look in looks.values()}) == 5


def test_light_dark_print_and_narrow_screens_are_provided_for(html):
    for wanted in ("prefers-color-scheme: dark", "@media print", "currentColor", 'name="viewport"', 'lang="en"'):
        assert wanted in html
    assert figure.INK not in html


def test_an_invalid_cell_is_shown_with_its_reason(tmp_path):
    fake = FakeRun(tmp_path / "run", strategies=(DDP, CPDP4), repeats=1)
    run = fake.start()
    first, second = fake.cells()
    fake.write_cell(run, first)
    fake.write_cell(run, second, done={"valid": False, "reasons": ["the relay was <late>"]})
    html = report.render([analysis.open_run(run)])
    assert "1 of 2 cells valid" in html
    assert "the relay was &lt;late&gt;" in html


def test_a_run_without_any_step_has_a_report(tmp_path):
    run = FakeRun(tmp_path / "run", network=None).start()
    html = report.render([analysis.open_run(run)])
    assert read(html).broken == []
    assert "NaN" not in html
    assert data_of(html)["runs"][0]["valid"] is False
    assert "Nothing was verified" in html


def test_a_run_of_one_worker_has_a_report_without_nan(tmp_path):
    fake = FakeRun(tmp_path / "run", strategies=(DDP, LOCAL4), repeats=1, world=1)
    html = report.render([analysis.open_run(fake.write())])
    assert "NaN" not in html
    assert "Infinity" not in html
    assert data_of(html)["runs"][0]["strategies"][0]["share_of_ddp"] is None


def test_several_runs_stand_beside_each_other(tmp_path, found):
    other = analysis.open_run(FakeRun(tmp_path / "other", strategies=(DDP,), repeats=1).write())
    html = report.render([found, other])
    assert "2 runs beside each other" in html
    reader = read(html)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert [run["name"] for run in data_of(html)["runs"]] == ["fake", "fake"]


def test_the_same_run_gives_the_same_report(found, html):
    assert report.render([found]) == html


def test_a_table_marks_its_row_and_column_headers():
    html = table("what", ["a", "b"], [["x", "1"]])
    assert '<th scope="col">b</th>' in html
    assert '<th scope="row">x</th><td>1</td>' in html
