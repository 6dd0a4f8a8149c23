"""The report in a browser: it opens from disk, draws its curves and pictures, and asks for nothing."""

import pytest
from playwright.sync_api import expect

from logicdiag.engine.run import read_metrics
from logicdiag.report.page import write_report


@pytest.fixture(scope="module")
def report(run, tmp_path_factory):
    return write_report([run.path], tmp_path_factory.mktemp("page") / "report.html", device="cpu").as_uri()


def test_it_opens_and_all_is_there(run, report, opened):
    page = opened(report)
    expect(page).to_have_title("logicdiag: small")
    links = page.locator("nav a")
    assert links.count() == page.locator("main > section").count() >= 9
    for link in links.all():
        expect(page.locator(f"section{link.get_attribute('href')} h2")).to_have_text(link.inner_text())
    sizes = page.evaluate(
        "Promise.all([...document.images].map((image) => image.decode().then(() => image.naturalWidth)))"
    )
    assert len(sizes) > 20
    assert min(sizes) > 0


def test_curves_are_drawn(run, report, opened):
    page = opened(report)
    curves = page.locator("section", has=page.locator("h2", has_text="Curves")).locator("svg.chart")
    assert curves.count() == page.locator("section:has(> h2:text-is('Curves')) figcaption").count() > 5
    loss = curves.first
    points = [line["loss"] for line in read_metrics(run.path) if "loss" in line]
    assert loss.locator("polyline").evaluate("(line) => line.points.numberOfItems") == len(points)
    box = loss.locator("polyline").bounding_box()
    assert box["width"] > 100
    assert box["height"] > 20
    colours = loss.locator("polyline").evaluate("(line) => getComputedStyle(line).stroke")
    assert colours == "rgb(0, 114, 178)"


@pytest.mark.parametrize("width", [320, 800, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen(report, opened, width, scheme):
    page = opened(report, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = page.locator("body").evaluate("(body) => getComputedStyle(body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 23, 28)")


def test_it_needs_no_script(run, report, opened):
    page = opened(report, java_script_enabled=False)
    page.locator("nav a", has_text="Classes").click()
    expect(page.locator("h2", has_text="Classes")).to_be_in_viewport()
