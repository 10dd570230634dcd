"""The report in a real Chromium: wide and narrow, light and dark, on paper; silent, and asking nothing of
anybody.
"""

import re

import pytest

from cpdp import analysis, report
from tests.browser.chromium import Chromium, find
from tests.unit.fake_run import PAPER, FakeRun

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find() is None, reason="needs Chromium: apt-get install chromium"),
]

WIDTHS = (360, 768, 1280)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = FakeRun(tmp_path_factory.mktemp("run") / "2026-12-01T14-05-33-fake", training=PAPER).write()
    report.write([analysis.open_run(run)], run.report)
    return run.report


@pytest.fixture(scope="module")
def browser():
    with Chromium() as opened:
        yield opened


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_never_scrolls_sideways(browser, page, width):
    browser.open(page, width)
    assert browser.ask("document.documentElement.scrollWidth <= window.innerWidth")
    wide = """[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1
        && !e.closest('.scroll') && !e.closest('pre') && !e.closest('svg')).map(e => e.tagName + ' ' + e.textContent)"""
    assert browser.ask(wide) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_complains_of_nothing_and_asks_nobody(browser, page, width):
    browser.open(page, width)
    assert browser.complaints() == []
    assert browser.requested() == [page.resolve().as_uri()]


def test_what_is_wider_than_a_telephone_scrolls_in_its_own_frame(browser, page):
    browser.open(page, 360)
    frames = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
    assert browser.ask(f"{frames}.length") >= 3
    assert browser.ask(f"{frames}.every(e => getComputedStyle(e).overflowX === 'auto' && e.tabIndex === 0)")


def test_captions_can_be_read_on_a_telephone_without_scrolling(browser, page):
    browser.open(page, 360)
    assert browser.ask("[...document.querySelectorAll('caption')].every(e => e.getBoundingClientRect().width <= 360)")


def test_figures_are_drawn_and_named(browser, page):
    browser.open(page, 1280)
    boxes = browser.ask(
        "[...document.querySelectorAll('svg')].map(e => [e.getBoundingClientRect().width,"
        " e.getBoundingClientRect().height, e.querySelector('title').textContent])"
    )
    assert len(boxes) == 7
    for width, height, title in boxes:
        assert 400 < width < 1000
        assert 100 < height < 900
        assert title


def test_the_numbers_can_be_read_back_from_the_page(browser, page):
    browser.open(page, 1280)
    read = "JSON.parse(document.getElementById('run-data').textContent).runs[0]"
    assert browser.ask(f"{read}.cells.length") == 20
    assert browser.ask(f"{read}.valid") is True
    exposed = f"{read}.strategies.find(s => s.label === 'ddp' && s.phase === 'exposure').exposed_ms.mean"
    assert browser.ask(exposed) == pytest.approx(720)


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two CSS colours (WCAG 2.1)."""

    def luminance(colour: str) -> float:
        channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_the_page_in_light_and_in_dark(page, dark):
    with Chromium(dark=dark) as opened:
        opened.open(page, 1280)
        behind = opened.ask("getComputedStyle(document.body).backgroundColor")
        for selector in ("p", "caption", "td", ".good", "svg text"):
            colour = "fill" if "svg" in selector else "color"
            ink = opened.ask(f"getComputedStyle(document.querySelector('{selector}')).{colour}")
            assert contrast(ink, behind) >= 4.5, selector
        assert (contrast(behind, "rgb(0, 0, 0)") < 2) is dark


def test_the_page_prints(browser, page):
    browser.open(page, 1280)
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page[^s]", pdf)) <= 14
